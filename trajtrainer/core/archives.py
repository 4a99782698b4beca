"""Opens zip archives of unknown origin."""

from __future__ import annotations

import zipfile
from typing import IO

LARGEST_DIRECTORY = 2**20
"""Enough for some 10,000 members. Their entries take about 100 bytes each, and zipfile takes its time with them."""


class LargeDirectoryError(ValueError):
    """An archive lists far more members than anything that is read here."""


def open_zip(source: IO[bytes], largest: int = LARGEST_DIRECTORY) -> zipfile.ZipFile:
    """Open an archive.

    Args:
        source: of it.
        largest: size of its directory, in bytes. A larger one is not read.

    Raises:
        LargeDirectoryError: it is larger.
        Exception: it is no archive, or it is damaged; the type depends on what is wrong.
    """
    archive = zipfile.ZipFile(_LimitedReads(source, largest))
    archive.fp = source
    return archive


class _LimitedReads:
    """A file while zipfile opens it: a few short reads find the directory, which is then read at once."""

    def __init__(self, source: IO[bytes], longest: int) -> None:
        self._source, self._longest = source, longest
        self.seek, self.tell, self.seekable = source.seek, source.tell, source.seekable

    def read(self, size: int = -1) -> bytes:
        if size > self._longest:
            raise LargeDirectoryError(f"its list of members has {size:,} bytes, expected at most {self._longest:,}")
        return self._source.read(size)
