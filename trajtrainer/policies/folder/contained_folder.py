"""Reads files below a folder, but never outside it, regardless of file names and symbolic links.

File names come from a browser, and the folder may contain runs downloaded from untrusted sources.
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
# Without O_NONBLOCK, opening a named pipe would block until it has a writer.
_FILE = os.O_RDONLY | _NO_LINK | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
_FOLDER = os.O_RDONLY | _NO_LINK | getattr(os, "O_DIRECTORY", 0)
_ROOT = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0)
_MOST_ENTRIES = 20_000
_LINKS = (getattr(stat, "IO_REPARSE_TAG_SYMLINK", 1), getattr(stat, "IO_REPARSE_TAG_MOUNT_POINT", 1))


@dataclass(frozen=True, slots=True)
class FolderEntry:
    """A regular file or a folder.

    Attributes:
        name: name without the path.
        is_folder: True for a folder, False for a file.
        size: size in bytes.
        changed: modification time in seconds since 1970.
        identity: device and inode, which differ if the file is replaced.
    """

    name: str
    is_folder: bool
    size: int
    changed: float
    identity: tuple[int, int]


class ContainedFolder:
    """Reads files and folders below a folder.

    Attributes:
        path: the resolved path of the folder. The original path may contain symbolic links.
    """

    def __init__(self, path: Path) -> None:
        """Resolve the path. The folder need not exist yet.

        Raises:
            OSError: the path contains a loop of symbolic links.
        """
        self.path = path.resolve()

    def entries(self, parts: Parts) -> list[FolderEntry]:
        """Return the regular files and folders in a folder, sorted by name.

        Raises:
            OSError: the folder does not exist, or its path contains a symbolic link.
        """
        found: list[FolderEntry] = []
        with self._scanned(parts) as listing:
            for entry in listing:
                if len(found) >= _MOST_ENTRIES:
                    break
                try:
                    entry.name.encode()
                    status = entry.stat(follow_symlinks=False)
                except (OSError, UnicodeEncodeError):  # just deleted, or a name that a browser cannot request
                    continue
                if _is_plain(status):
                    found.append(_entry(entry.name, status))
        return sorted(found, key=lambda each: each.name)

    def folders(self, parts: Parts) -> list[FolderEntry]:
        """Like ``list``, but return only folders."""
        return [entry for entry in self.list(parts) if entry.is_folder]

    def list(self, parts: Parts) -> Sequence[FolderEntry]:
        """Like ``entries``, but return an empty list if the folder cannot be read."""
        try:
            return self.entries(parts)
        except OSError:
            return []

    def open(self, parts: Parts) -> BinaryIO:
        """Open a regular file.

        Raises:
            OSError: the file does not exist, or its path contains a symbolic link.
        """
        with self._parent(parts) as (parent, name):
            descriptor = os.open(name, _FILE, dir_fd=parent)
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise FileNotFoundError(f"{'/'.join(parts)} is not a regular file")
            return os.fdopen(descriptor, "rb")
        except BaseException:
            os.close(descriptor)
            raise

    def tail(self, parts: Parts, most: int) -> bytes | None:
        """Return the last ``most`` bytes of a file, or None if it cannot be read."""
        try:
            with self.open(parts) as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - most))
                return file.read(most)
        except OSError:
            return None

    def entry(self, parts: Parts) -> FolderEntry | None:
        """Return the entry of a regular file or folder, or None if it does not exist."""
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
        """Yield a descriptor of the parent folder and the name to open in it; on Windows, None and the full path."""
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
        """Open a folder one path component at a time, so that none can be swapped for a symbolic link in between."""
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
        """Check the path for symbolic links and return it, on systems that cannot open files relative to a folder."""
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
            raise FileNotFoundError(f"{part!r} is not a file name")


def _is_plain(status: os.stat_result) -> bool:
    is_link = getattr(status, "st_reparse_tag", 0) in _LINKS
    return not is_link and (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode))


def _entry(name: str, status: os.stat_result) -> FolderEntry:
    return FolderEntry(
        name, stat.S_ISDIR(status.st_mode), status.st_size, status.st_mtime, (status.st_dev, status.st_ino)
    )
