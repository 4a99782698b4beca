"""One process at a time trains into a run's folder.

The lock is the system's own on an open file, so it goes with the process that holds it, however that ends. Only it
counts: a file that a killed process left behind is in nobody's way. Who holds it stands in it, for the message to
others.

Another program asks the run to end by a file beside the lock (``ask_to_stop``). It needs no signal, which Windows has
not, and which could reach a process that has got the number of one that is gone.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import platform
import stat
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from trajtrainer.core.errors import RunFolderError

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

logger = logging.getLogger(__name__)

# Some network file systems have no locks. That is no reason not to train.
_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL}
# Windows refuses to read what is locked, so the locked byte lies far behind the text.
_LOCKED_BYTE = 1 << 20
_LONGEST_TEXT = 300
# Whoever only looks whether it is held, has it for an instant.
_PATIENCE_S = 0.2
_PAUSE_S = 0.02


def lock_file(run: Path) -> Path:
    """Return where the lock of a run is: beside its folder, which may be renamed or deleted while it is held."""
    return run.with_name(f".{run.name}.lock")


def stop_file(run: Path) -> Path:
    """Return the file that asks the process that holds the lock to end the run in good order."""
    return run.with_name(f".{run.name}.stop")


def ask_to_stop(run: Path) -> None:
    """Ask the process that trains into a folder to save everything and end. It takes the file away.

    Raises:
        OSError: the file cannot be made.
    """
    with contextlib.suppress(FileExistsError):  # it was asked before
        os.close(os.open(stop_file(run), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))


@dataclass(frozen=True, slots=True)
class Holder:
    """The process that holds a lock.

    Attributes:
        pid: its number; None if the file does not tell.
        is_here: it is one of this machine.
    """

    pid: int | None
    is_here: bool


def find_holder(path: Path) -> Holder | None:
    """Return who holds the lock of this file at this moment; None if nobody does, or nobody can tell.

    Nothing is written, and links are not followed.
    """
    if path.is_symlink():
        return None
    try:
        file = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
    except OSError:
        return None
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            return None
        try:
            _lock(file, shared=True)
        except OSError as error:
            return None if error.errno in _NO_LOCKS else _read_holder(file)
        return None
    finally:
        os.close(file)


def _read_holder(file: int) -> Holder:
    pid, _, machine = os.read(file, _LONGEST_TEXT).decode(errors="replace").partition(" ")
    return Holder(int(pid) if pid.isdecimal() else None, machine == platform.node() != "")


class RunLock:
    """The lock of one folder.

    Args:
        path: of the lock's file; its folder exists.
        run: whose it is, for messages.
    """

    def __init__(self, path: Path, run: Path) -> None:
        self._path = path
        self._run = run
        self._file: int | None = None

    def acquire(self) -> None:
        """Take the lock, without waiting.

        Raises:
            RunFolderError: another run holds it, of this or another process, or its file is another one under a
                second name.
            OSError: the file cannot be written.
        """
        while self._file is None:
            file = self._open()
            try:
                self._lock(file)
                is_current = self._is_current(file)
                if is_current:
                    _write_holder(file)
            except BaseException:
                os.close(file)
                raise
            if is_current:
                self._file = file
            else:
                os.close(file)

    def release(self) -> None:
        """Give the lock back and remove its file. May be called again."""
        file, self._file = self._file, None
        if file is None:
            return
        if sys.platform == "win32":  # which removes no open files, so nobody else's either
            os.close(file)
        with contextlib.suppress(OSError):
            self._path.unlink()
        if sys.platform != "win32":
            os.close(file)

    def _open(self) -> int:
        """Open the file, or make it. It is going to be written, so a link must not lead elsewhere."""
        if not self._path.is_symlink():
            file = os.open(self._path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o666)
            status = os.fstat(file)
            if stat.S_ISREG(status.st_mode) and status.st_nlink <= 1:
                return file
            os.close(file)
        raise RunFolderError(
            f"{self._path}, which keeps two runs from writing into {self._run} at once, is a link or no plain "
            "file. Nothing was written to it. Remove it, or choose another --run-id."
        )

    def _lock(self, file: int) -> None:
        try:
            _patiently_lock(file)
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise RunFolderError(
                    f"{_holder(file)} is training into {self._run} at this moment. Choose another --run-id, or end the "
                    "other run first."
                ) from None
            logger.warning(
                "The file system of %s has no locks (%s): nothing prevents a second run of the same id.",
                self._run,
                error.strerror,
            )

    def _is_current(self, file: int) -> bool:
        """Return whether the file was not removed, by a run that ended, between its opening and its locking."""
        try:
            return os.path.samestat(os.fstat(file), os.stat(self._path))
        except FileNotFoundError:
            return False


def _write_holder(file: int) -> None:
    """Write who holds the lock. Half a number would be that of another process."""
    text = f"{os.getpid()} {platform.node()}".encode()
    os.ftruncate(file, 0)
    written = 0
    try:
        while written < len(text):  # a disk that is nearly full takes a part, and refuses at the next try
            written += os.write(file, text[written:])
    except OSError:
        os.ftruncate(file, 0)
        raise


def _holder(file: int) -> str:
    pid, _, machine = os.read(file, _LONGEST_TEXT).decode(errors="replace").partition(" ")
    return f"Process {pid} on {machine}" if pid.isdigit() and machine else "Another process"


def _patiently_lock(file: int) -> None:
    deadline_s = time.monotonic() + _PATIENCE_S
    while True:
        try:
            return _lock(file)
        except OSError as error:
            if error.errno in _NO_LOCKS or time.monotonic() > deadline_s:
                raise
        time.sleep(_PAUSE_S)


def _lock(file: int, *, shared: bool = False) -> None:
    """Raise ``OSError`` if somebody else has it. Several may share it; Windows knows no such thing."""
    if sys.platform == "win32":
        os.lseek(file, _LOCKED_BYTE, os.SEEK_SET)
        try:
            msvcrt.locking(file, msvcrt.LK_NBLCK, 1)
        finally:
            os.lseek(file, 0, os.SEEK_SET)
    else:
        # Not lockf: that knows no difference between two runs of one process.
        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
