"""Opens zip archives from untrusted sources."""

from __future__ import annotations

import zipfile
from typing import IO

LARGEST_DIRECTORY = 2**20
"""Default size limit in bytes of an archive's directory, enough for about 10,000 members.

An entry takes about 100 bytes, and zipfile is slow to read many of them.
"""


class LargeDirectoryError(ValueError):
    """The archive's directory is larger than the limit."""


def open_zip(source: IO[bytes], largest: int = LARGEST_DIRECTORY) -> zipfile.ZipFile:
    """Open an archive.

    Args:
        source: the file, open for reading.
        largest: maximum size of the archive's directory in bytes. A larger directory is not read.

    Raises:
        LargeDirectoryError: the directory is larger than ``largest``.
        Exception: the file is not an archive, or is damaged; the type depends on the damage.
    """
    archive = zipfile.ZipFile(_LimitedReads(source, largest))
    archive.fp = source
    return archive


class _LimitedReads:
    """A file that limits the size of a read, because zipfile reads the whole directory of an archive at once."""

    def __init__(self, source: IO[bytes], longest: int) -> None:
        self._source, self._longest = source, longest
        self.seek, self.tell, self.seekable = source.seek, source.tell, source.seekable

    def read(self, size: int = -1) -> bytes:
        if size > self._longest:
            raise LargeDirectoryError(f"its list of members has {size:,} bytes, expected at most {self._longest:,}")
        return self._source.read(size)
