"""A results folder out of which nothing can be read: no name leads elsewhere, and no link is followed.

Names come from a browser and from the disk, where a run may have been unpacked from anywhere.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

Parts = tuple[str, ...]

_FORBIDDEN = frozenset("/\\\0:" if os.name == "nt" else "/\0")
_BY_DESCRIPTOR = os.open in os.supports_dir_fd and os.scandir in os.supports_fd
_NO_LINK = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOINHERIT", 0)
# A pipe of that name must not keep us waiting.
_FILE = os.O_RDONLY | _NO_LINK | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
_FOLDER = os.O_RDONLY | _NO_LINK | getattr(os, "O_DIRECTORY", 0)
_ROOT = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0)
_MOST_ENTRIES = 20_000
_LINKS = (getattr(stat, "IO_REPARSE_TAG_SYMLINK", 1), getattr(stat, "IO_REPARSE_TAG_MOUNT_POINT", 1))


@dataclass(frozen=True, slots=True)
class Entry:
    """A plain file or a folder.

    Attributes:
        name: of itself.
        is_folder: otherwise it is a file.
        size: bytes.
        changed: seconds since 1970.
        identity: differs between two files, and between a file and another one that takes its place.
    """

    name: str
    is_folder: bool
    size: int
    changed: float
    identity: tuple[int, int]


class ContainedFolder:
    """What lies in a folder, for reading.

    Attributes:
        path: the folder itself, which may well be reached by links.
    """

    def __init__(self, path: Path) -> None:
        """Remember the folder, which may come into being later.

        Raises:
            OSError: its path goes in circles.
        """
        self.path = path.resolve()

    def entries(self, parts: Parts) -> list[Entry]:
        """Return the files and folders of a folder, by name; links and whatever else there is are left out.

        Raises:
            OSError: there is no such folder, or a link is on the way.
        """
        found: list[Entry] = []
        with self._scanned(parts) as listing:
            for entry in listing:
                if len(found) >= _MOST_ENTRIES:
                    break
                try:
                    entry.name.encode()
                    status = entry.stat(follow_symlinks=False)
                except (OSError, UnicodeEncodeError):  # gone meanwhile; a name that no browser could ask for
                    continue
                if _is_plain(status):
                    found.append(_entry(entry.name, status))
        return sorted(found, key=lambda each: each.name)

    def folders(self, parts: Parts) -> list[Entry]:
        """Return the folders of a folder, by name; none where there is no such folder."""
        return [entry for entry in self.list(parts) if entry.is_folder]

    def list(self, parts: Parts) -> Sequence[Entry]:
        """Return ``entries``; none where there is no such folder."""
        try:
            return self.entries(parts)
        except OSError:
            return []

    @contextmanager
    def opened(self, parts: Parts) -> Iterator[BinaryIO]:
        """Open a plain file while this lasts.

        Raises:
            OSError: there is no such file, or a link is on the way.
        """
        with self.open(parts) as file:
            yield file

    def open(self, parts: Parts) -> BinaryIO:
        """Return a plain file, open.

        Raises:
            OSError: as ``opened``.
        """
        with self._parent(parts) as (parent, name):
            descriptor = os.open(name, _FILE, dir_fd=parent)
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise FileNotFoundError(f"{'/'.join(parts)} is no plain file")
            return os.fdopen(descriptor, "rb")
        except BaseException:
            os.close(descriptor)
            raise

    def head(self, parts: Parts, most: int) -> bytes | None:
        """Return what a file begins with, at most so many bytes; None where there is none that can be read."""
        try:
            with self.opened(parts) as file:
                return file.read(most)
        except OSError:
            return None

    def tail(self, parts: Parts, most: int) -> bytes | None:
        """Return what a file ends with, at most so many bytes; None where there is none that can be read."""
        try:
            with self.opened(parts) as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - most))
                return file.read(most)
        except OSError:
            return None

    def entry(self, parts: Parts) -> Entry | None:
        """Return what is known of a file or folder; None where there is none."""
        try:
            with self._parent(parts) as (parent, name):
                status = os.stat(name, dir_fd=parent, follow_symlinks=False)
        except OSError:
            return None
        return _entry(parts[-1], status) if _is_plain(status) else None

    @contextmanager
    def _scanned(self, parts: Parts) -> Iterator[Iterator[os.DirEntry[str]]]:
        if not _BY_DESCRIPTOR:
            with os.scandir(self._checked(parts)) as listing:
                yield listing
            return
        descriptor = self._descend(parts)
        try:
            with os.scandir(descriptor) as listing:
                yield listing
        finally:
            os.close(descriptor)

    @contextmanager
    def _parent(self, parts: Parts) -> Iterator[tuple[int | None, str]]:
        """Yield an open folder and the last name, to be opened within it; on Windows None and a whole path."""
        _check(parts)
        if not parts:
            raise FileNotFoundError("no name")
        if not _BY_DESCRIPTOR:
            yield None, str(self._checked(parts))
            return
        descriptor = self._descend(parts[:-1])
        try:
            yield descriptor, parts[-1]
        finally:
            os.close(descriptor)

    def _descend(self, parts: Parts) -> int:
        """Return the folder, open. From one to the next, so that none can become a link in between."""
        _check(parts)
        descriptor = os.open(self.path, _ROOT)
        for part in parts:
            try:
                inner = os.open(part, _FOLDER, dir_fd=descriptor)
            finally:
                os.close(descriptor)
            descriptor = inner
        return descriptor

    def _checked(self, parts: Parts) -> Path:
        """Return the path, where the system cannot open from one folder to the next."""
        _check(parts)
        path = self.path
        for part in parts:
            path = path / part
            status = os.lstat(path)
            if stat.S_ISLNK(status.st_mode) or getattr(status, "st_reparse_tag", 0) in _LINKS:
                raise FileNotFoundError(f"{path} is a link")
        return path


def _check(parts: Parts) -> None:
    for part in parts:
        if part in ("", ".", "..") or _FORBIDDEN.intersection(part):
            raise FileNotFoundError(f"{part!r} is no name")


def _is_plain(status: os.stat_result) -> bool:
    is_link = getattr(status, "st_reparse_tag", 0) in _LINKS
    return not is_link and (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode))


def _entry(name: str, status: os.stat_result) -> Entry:
    return Entry(name, stat.S_ISDIR(status.st_mode), status.st_size, status.st_mtime, (status.st_dev, status.st_ino))
