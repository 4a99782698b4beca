"""Files that are there whole or not at all, whatever happens while they are written.

A temporary file in the same folder is written and brought to the disk (fsync), then renamed over the target, and
the folder is brought to the disk, too. A reader and a killed process therefore see the old content or the new one.
The folder is made where it is missing: somebody may have deleted it while a run is at work.
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
# Windows refuses to replace a file that another program has open: a virus scanner, a backup, an editor.
_PATIENCE_S = 5.0 if sys.platform == "win32" else 0.0
_PAUSE_S = 0.05
_SLOW_S = 1.0

logger = logging.getLogger(__name__)


def write_bytes(path: Path, data: bytes | memoryview, *, syncs_folder: bool = True) -> None:
    """Replace the content of ``path``. Arguments as ``publish``.

    Raises:
        OSError: it could not be written (full disk, missing rights). The old content is untouched.
    """

    def write(temporary: Path) -> None:
        with temporary.open("wb") as file:
            file.write(data)

    write_with(path, write, syncs_folder=syncs_folder)


def write_text(path: Path, text: str) -> None:
    """Write text like ``write_bytes``, as UTF-8 with the line ends as given."""
    write_bytes(path, text.encode("utf-8", "backslashreplace"))


def write_unsynced(path: Path, text: str) -> None:
    """Replace the content of ``path``, whole for every reader and killed process, but not after a power failure.

    For a file that only informs and is written often: bringing it to a slow disk would make the end of a run long.

    Raises:
        OSError: it could not be written. The old content is untouched.
    """
    temporary = write_apart(path, lambda apart: apart.write_bytes(text.encode("utf-8", "backslashreplace")))
    try:
        _patiently(lambda: os.replace(temporary, path))
    except BaseException:
        _discard(temporary)
        raise


def write_with(path: Path, writer: Callable[[Path], object], *, syncs_folder: bool = True) -> None:
    """Replace ``path`` with the file that ``writer`` makes at the path it is given (same folder, same suffix).

    ``syncs_folder`` as in ``publish``.

    Raises:
        OSError: the file could not be brought to the disk. The old content is untouched.
        Exception: whatever ``writer`` raises. The old content is untouched.
    """
    publish(write_apart(path, writer), path, syncs_folder=syncs_folder)


def write_apart(path: Path, writer: Callable[[Path], object]) -> Path:
    """Return the first half of ``write_with``: returns the temporary file, to be given to ``publish``.

    Raises:
        OSError: the folder cannot be made.
        Exception: whatever ``writer`` raises. Nothing is left then.
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
    """Bring the temporary file of ``write_with`` to the disk and put it in the place of ``path``: its second half.

    Of a large file this takes the longest, and it may be done in another thread.

    Args:
        temporary: what ``write_apart`` returned.
        path: its place.
        syncs_folder: False if the caller calls ``sync_folder`` after several files. Until then, a power failure may
            undo the rename, but the file is whole all the same.

    Raises:
        OSError: it could not be brought to the disk. The old content is untouched, the temporary file is gone.
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
    """Give a folder another name beside it, which is free.

    Raises:
        OSError: it could not be done; the folder is where it was.
    """
    _patiently(lambda: os.rename(folder, target))
    sync_folder(target.parent)


def remove_leftovers(folders: Iterable[Path]) -> list[Path]:
    """Remove the temporary files of processes that were killed while writing.

    Args:
        folders: searched without their subfolders. Missing ones are passed over.

    Returns:
        What was removed.
    """
    removed = []
    for folder in folders:
        for path in sorted(folder.glob(f".*{_MARK}*")):
            with contextlib.suppress(OSError):
                path.unlink()
                removed.append(path)
    return removed


def try_writing(folder: Path, size: int) -> None:
    """Write ``size`` bytes to the disk and remove them.

    Raises:
        OSError: there is no room for them, or no right to write.
    """
    temporary = _temporary(folder / "probe")
    try:
        temporary.write_bytes(bytes(size))
        _sync(temporary, temporary)
    finally:
        temporary.unlink(missing_ok=True)


def _patiently(action: Callable[[], object]) -> None:
    """Do it again for some seconds as long as the system refuses it, where another program may be the reason."""
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
    """Bring a file to the disk. If that takes long, say so meanwhile: otherwise the end of a run seems to hang."""
    slow = threading.Timer(_SLOW_S, logger.info, ("The disk is slow. Waiting until %s is saved.", path))
    slow.daemon = True
    slow.start()
    descriptor = os.open(temporary, os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        slow.cancel()
        os.close(descriptor)


def sync_folder(folder: Path) -> None:
    """Make the renames in a folder last.

    Windows has no such call; some network file systems refuse it, which is no failure.
    """
    if os.name == "nt":
        return
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
