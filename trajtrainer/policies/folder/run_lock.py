"""Makes sure that only one process at a time trains a run.

The operating system holds the lock on an open file, so it is released when the process exits for any reason. A lock
file without a lock, left over from a killed process, is ignored. The file contains the process id, for error messages
of other processes.

Other programs ask a run to stop with a file next to the lock (``ask_to_stop``). Signals are no alternative: Windows
does not have them, and they could reach a new process that reuses the pid of one that has exited.
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

# Errors of file systems without locks, such as some network file systems. They must not prevent training.
_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL}
# Windows does not let other processes read a locked byte, so this byte is far beyond the text.
_LOCKED_BYTE = 1 << 20
_LONGEST_TEXT = 300
# How long to wait for the lock, which ``find_holder`` in another process may hold for an instant.
_PATIENCE_S = 0.2
_PAUSE_S = 0.02


def lock_file(run: Path) -> Path:
    """Return the path of a run's lock: next to its folder, which may be renamed or deleted while the lock is held."""
    return run.with_name(f".{run.name}.lock")


def stop_file(run: Path) -> Path:
    """Return the path of the file that asks the process holding the lock to save everything and exit."""
    return run.with_name(f".{run.name}.stop")


def ask_to_stop(run: Path) -> None:
    """Ask the process that trains a run to save everything and exit, by creating a file that the process removes.

    Raises:
        OSError: the file cannot be created.
    """
    with contextlib.suppress(FileExistsError):  # the process was already asked
        os.close(os.open(stop_file(run), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))


@dataclass(frozen=True, slots=True)
class Holder:
    """The process that holds a lock.

    Attributes:
        pid: process id; None if the lock file does not contain it.
        machine: host name of the process's machine; empty if the lock file does not contain it.
    """

    pid: int | None
    machine: str

    @property
    def is_here(self) -> bool:
        """True if the process runs on this machine."""
        return self.machine == platform.node() != ""

    def error_about(self, run: Path) -> RunFolderError:
        """Return the error for another process that wants to train the same run."""
        is_known = self.pid is not None and self.machine
        return RunFolderError(
            f"{f'Process {self.pid} on {self.machine}' if is_known else 'Another process'} is training into {run} "
            "right now. Choose another --run-id, or stop the other run first."
        )


def find_holder(path: Path) -> Holder | None:
    """Return the process that holds the lock of this file, or None if the lock is free or cannot be checked.

    This does not write to the file and does not follow symbolic links.
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


def check_no_one_trains(run: Path) -> None:
    """Check that no process is training a run. Call this before all other checks of its folder.

    Raises:
        RunFolderError: a process is training the run.
    """
    deadline_s = time.monotonic() + _PATIENCE_S
    while (holder := find_holder(lock_file(run))) is not None:
        if time.monotonic() > deadline_s:
            raise holder.error_about(run)
        time.sleep(_PAUSE_S)


def _read_holder(file: int) -> Holder:
    pid, _, machine = os.read(file, _LONGEST_TEXT).decode(errors="replace").partition(" ")
    return Holder(int(pid) if pid.isdecimal() else None, machine)


class HeldError(OSError):
    """Raised if another process holds a lock.

    Attributes:
        holder: the other process.
    """

    def __init__(self, path: Path, holder: Holder) -> None:
        super().__init__(errno.EAGAIN, "another process holds this lock", str(path))
        self.holder = holder


class FileLock:
    """A lock between processes. The lock file exists while the lock is held.

    Attributes:
        problem: the error of a file system that does not support locks; otherwise empty. On such a file system, the
            lock can always be acquired.
    """

    def __init__(self, path: Path, patience_s: float) -> None:
        """Initialize the lock without acquiring it.

        Args:
            path: path of the lock file. Its folder must exist.
            patience_s: how long to wait for another process, in seconds.
        """
        self.problem = ""
        self._path = path
        self._patience_s = patience_s
        self._file: int | None = None

    def acquire(self) -> None:
        """Acquire the lock.

        Raises:
            HeldError: another process, or another lock object in this process, did not release the lock in time.
            OSError: the lock file cannot be written, or it is a link or not a regular file (``errno.ELOOP``).
        """
        deadline_s = time.monotonic() + self._patience_s
        while self._file is None:
            file = self._open(deadline_s)
            try:
                self._wait(file, deadline_s)
                try:
                    # The previous holder may have removed the file after we opened it and before we locked it.
                    is_current = os.path.samestat(os.fstat(file), os.stat(self._path))
                except FileNotFoundError:
                    is_current = False
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
        """Release the lock and remove its file. May be called more than once."""
        file, self._file = self._file, None
        if file is None:
            return
        # On POSIX, the file must be removed before another process can lock it. Windows cannot remove an open file, so
        # there the file is closed first. It is left if another process has opened it in between.
        if sys.platform == "win32":
            os.close(file)
        with contextlib.suppress(OSError):
            self._path.unlink()
        if sys.platform != "win32":
            os.close(file)

    def _open(self, deadline_s: float) -> int:
        # The file will be written to, so it must not be a link to another file.
        while not self._path.is_symlink():
            try:
                file = os.open(self._path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o666)
            except PermissionError:  # Windows also raises this while the file is being removed
                if sys.platform == "win32" and time.monotonic() <= deadline_s:
                    time.sleep(_PAUSE_S)
                    continue
                raise
            status = os.fstat(file)
            if stat.S_ISREG(status.st_mode) and status.st_nlink <= 1:
                return file
            os.close(file)
            break
        raise OSError(errno.ELOOP, "it is a link or not a regular file", str(self._path))

    def _wait(self, file: int, deadline_s: float) -> None:
        while True:
            try:
                return _lock(file)
            except OSError as error:
                if error.errno in _NO_LOCKS:
                    self.problem = error.strerror or str(error)
                    return None
                if time.monotonic() > deadline_s:
                    raise HeldError(self._path, _read_holder(file)) from None
            time.sleep(_PAUSE_S)


class RunLock(FileLock):
    """The lock of a run folder.

    Args:
        path: path of the lock file. Its folder must exist.
        run: the folder that the lock protects, for messages.
    """

    def __init__(self, path: Path, run: Path) -> None:
        super().__init__(path, _PATIENCE_S)
        self._run = run

    def acquire(self) -> None:
        """Acquire the lock, waiting only briefly.

        Raises:
            RunFolderError: another run in this or another process holds the lock, or the lock file is a link or not a
                regular file.
            OSError: the lock file cannot be written.
        """
        try:
            super().acquire()
        except HeldError as error:
            raise error.holder.error_about(self._run) from None
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise
            raise RunFolderError(
                f"{self._path}, which keeps two runs from writing into {self._run} at once, is a link or not a regular "
                "file. Nothing was written to it. Remove it, or choose another --run-id."
            ) from None
        if self.problem:
            warning = "The file system of %s has no locks (%s): nothing prevents a second run with the same id."
            logger.warning(warning, self._run, self.problem)


def _write_holder(file: int) -> None:
    # Write everything or nothing, because a truncated pid would refer to another process.
    text = f"{os.getpid()} {platform.node()}".encode()
    os.ftruncate(file, 0)
    written = 0
    try:
        while written < len(text):  # a nearly full disk accepts only a part
            written += os.write(file, text[written:])
    except OSError:
        os.ftruncate(file, 0)
        raise


def _lock(file: int, *, shared: bool = False) -> None:
    """Lock a file. Raise ``OSError`` if another descriptor holds the lock. On Windows, locks are never shared."""
    if sys.platform == "win32":
        os.lseek(file, _LOCKED_BYTE, os.SEEK_SET)
        try:
            msvcrt.locking(file, msvcrt.LK_NBLCK, 1)
        finally:
            os.lseek(file, 0, os.SEEK_SET)
    else:
        # Use flock, because locks of lockf belong to the process, and one process may have two runs.
        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
