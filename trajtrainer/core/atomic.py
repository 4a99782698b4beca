"""Atomic file writes: a file has either its old or its new content, whatever happens during the write.

A temporary file in the same folder is written and synced to disk (fsync), then renamed over the target, and the folder
is synced as well. A missing folder is created, because a user may delete it while a run is writing to it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import sys
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path

_MARK = ".partial"
# Windows refuses to replace a file that another program has open, such as a virus scanner, a backup or an editor.
_PATIENCE_S = 5.0 if sys.platform == "win32" else 0.0
_PAUSE_S = 0.05
_SLOW_S = 1.0

logger = logging.getLogger(__name__)


def write_bytes(path: Path, data: bytes | memoryview, *, syncs_folder: bool = True) -> None:
    """Replace the content of ``path``. For ``syncs_folder``, see ``publish``.

    Raises:
        OSError: the write failed (full disk, no permission). The old content is unchanged.
    """

    def write(temporary: Path) -> None:
        with temporary.open("wb") as file:
            file.write(data)

    write_with(path, write, syncs_folder=syncs_folder)


def write_text(path: Path, text: str) -> None:
    """Like ``write_bytes``, but for text. It is encoded as UTF-8, and line endings are not changed."""
    write_bytes(path, text.encode("utf-8", "backslashreplace"))


def write_unsynced(path: Path, text: str) -> None:
    """Replace the content of ``path`` atomically but without fsync, so a power failure may lose it.

    This is for informational files that are written often: syncing them to a slow disk would delay the end of a run.
    The temporary file has a different suffix, so that programs that read all files of a kind in a folder ignore it.

    Raises:
        OSError: the write failed. The old content is unchanged.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}{_MARK}")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        temporary.write_bytes(text.encode("utf-8", "backslashreplace"))
        _patiently(lambda: os.replace(temporary, path))
    except BaseException:
        _discard(temporary)
        raise


def write_with(path: Path, writer: Callable[[Path], object], *, syncs_folder: bool = True) -> None:
    """Replace ``path`` with the file that ``writer`` creates at the path passed to it (same folder, same suffix).

    For ``syncs_folder``, see ``publish``.

    Raises:
        OSError: the file could not be synced. The old content is unchanged.
        Exception: ``writer`` raised it. The old content is unchanged.
    """
    publish(write_apart(path, writer), path, syncs_folder=syncs_folder)


def write_apart(path: Path, writer: Callable[[Path], object]) -> Path:
    """Do the first half of ``write_with``: create the temporary file, which ``publish`` then puts in place.

    Raises:
        OSError: the folder cannot be created.
        Exception: ``writer`` raised it. No file is left behind.
    """
    temporary = _temporary(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        writer(temporary)
    except BaseException:
        _discard(temporary)
        raise
    return temporary


def publish(temporary: Path, path: Path, *, syncs_folder: bool = True) -> None:
    """Do the second half of ``write_with``: sync the temporary file and rename it to ``path``.

    For a large file, this is the slow half. It may run in another thread.

    Args:
        temporary: the result of ``write_apart``.
        path: the target.
        syncs_folder: False if the caller calls ``sync_folder`` after writing several files. Until then, a power failure
            may undo the rename, but the file is complete either way.

    Raises:
        OSError: the file could not be synced. The old content is unchanged, and the temporary file is removed.
    """
    try:
        _patiently(lambda: _sync(temporary, path))
        _patiently(lambda: os.replace(temporary, path))
    except BaseException:
        _discard(temporary)
        raise
    if syncs_folder:
        sync_folder(path.parent)


def move(folder: Path, target: Path) -> None:
    """Rename a folder to ``target``, which must not exist, and make the rename durable.

    Raises:
        OSError: the rename failed. The folder keeps its old name.
    """
    _patiently(lambda: os.rename(folder, target))
    sync_folder(target.parent)


def remove_leftovers(folders: Iterable[Path]) -> list[Path]:
    """Remove the temporary files of processes that were killed while writing.

    Args:
        folders: folders to search, without their subfolders. Missing folders are skipped.

    Returns:
        The files that were removed.
    """
    removed = []
    for folder in folders:
        for path in sorted(folder.glob(f".*{_MARK}*")):
            with contextlib.suppress(OSError):
                path.unlink()
                removed.append(path)
    return removed


def try_writing(folder: Path, size: int) -> None:
    """Check that ``size`` bytes can be written to a folder, by writing and removing them.

    Raises:
        OSError: there is no space left, or no permission to write.
    """
    temporary = _temporary(folder / "probe")
    try:
        temporary.write_bytes(bytes(size))
        _sync(temporary, temporary)
    finally:
        temporary.unlink(missing_ok=True)


def _patiently(action: Callable[[], object]) -> None:
    """Run ``action``. On Windows, retry it for a few seconds while another program has the file open."""
    deadline_s = time.monotonic() + _PATIENCE_S
    while True:
        try:
            action()
        except PermissionError:
            if time.monotonic() >= deadline_s:
                raise
            time.sleep(_PAUSE_S)
        else:
            return


def _discard(temporary: Path) -> None:
    with contextlib.suppress(OSError):
        temporary.unlink()


def _temporary(path: Path) -> Path:
    return path.with_name(f".{path.stem}.{secrets.token_hex(4)}{_MARK}{path.suffix}")


def _sync(temporary: Path, path: Path) -> None:
    # Without this message, a slow fsync at the end of a run would look like a hang.
    slow = threading.Timer(_SLOW_S, logger.info, ("The disk is slow. Waiting for %s to be saved.", path))
    slow.daemon = True
    slow.start()
    descriptor = os.open(temporary, os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        slow.cancel()
        os.close(descriptor)


def sync_folder(folder: Path) -> None:
    """Make renames in a folder survive a power failure, if the system supports that."""
    if os.name == "nt":
        return  # Windows cannot sync a folder, and neither can some network file systems. This is not an error.
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
