"""One process at a time trains into a run's folder.

The lock is the operating system's, on an open file, so it ends with the process that holds it, however that ends. Only
the lock counts: a file that a killed process left is ignored. The file names the process, for messages to others.

Another program asks the run to end with a file next to the lock (``ask_to_stop``). A signal would not do: Windows has
none, and it could reach a new process that has the number of one that is gone.
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

# Some network file systems have no locks. That must not prevent training.
_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL}
# Windows does not let others read a locked byte, so it is one far beyond the text.
_LOCKED_BYTE = 1 << 20
_LONGEST_TEXT = 300
# ``find_holder`` in another process takes the lock for an instant.
_PATIENCE_S = 0.2
_PAUSE_S = 0.02


def lock_file(run: Path) -> Path:
    """The lock of a run is next to its folder, because that may be renamed or deleted while the lock is held."""
    return run.with_name(f".{run.name}.lock")


def stop_file(run: Path) -> Path:
    """This file asks the process that holds the lock to save everything and end."""
    return run.with_name(f".{run.name}.stop")


def ask_to_stop(run: Path) -> None:
    """Ask the process that trains into a folder to save everything and end. That process removes the file.

    Raises:
        OSError: the file cannot be made.
    """
    with contextlib.suppress(FileExistsError):  # it was asked before
        os.close(os.open(stop_file(run), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))


@dataclass(frozen=True, slots=True)
class Holder:
    """The process that holds a lock.

    Attributes:
        pid: None if the file does not say.
        machine: its name; empty if the file does not say.
    """

    pid: int | None
    machine: str

    @property
    def is_here(self) -> bool:
        """Whether it is a process of this machine."""
        return self.machine == platform.node() != ""

    def error_about(self, run: Path) -> RunFolderError:
        """The error of another process that wants to train into the folder."""
        is_known = self.pid is not None and self.machine
        return RunFolderError(
            f"{f'Process {self.pid} on {self.machine}' if is_known else 'Another process'} is training into {run} "
            "right now. Choose another --run-id, or end the other run first."
        )


def find_holder(path: Path) -> Holder | None:
    """The process that holds the lock of this file; None without one, or if that cannot be found out.

    This writes nothing and follows no links.
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
    """Check that no process trains into a folder, before anything else is said about what is there.

    Raises:
        RunFolderError: a process does.
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
    """Another process holds a lock.

    Attributes:
        holder: that process.
    """

    def __init__(self, path: Path, holder: Holder) -> None:
        super().__init__(errno.EAGAIN, "another process holds this lock", str(path))
        self.holder = holder


class FileLock:
    """A lock between processes. Its file exists while the lock is held.

    Attributes:
        problem: why the file system has no locks; empty if it has. Without locks, everyone gets this one.
    """

    def __init__(self, path: Path, patience_s: float) -> None:
        """Take nothing yet.

        Args:
            path: of the lock's file; its folder exists.
            patience_s: how long to wait for another process.
        """
        self.problem = ""
        self._path = path
        self._patience_s = patience_s
        self._file: int | None = None

    def acquire(self) -> None:
        """Take the lock.

        Raises:
            HeldError: another process, or another lock of this one, did not give it back in time.
            OSError: the file cannot be written, or it is a link (``errno.ELOOP``).
        """
        deadline_s = time.monotonic() + self._patience_s
        while self._file is None:
            file = self._open(deadline_s)
            try:
                self._wait(file, deadline_s)
                try:
                    # Its holder may have removed the file between our opening and our locking it.
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
        """Give the lock back and remove its file. May be called again."""
        file, self._file = self._file, None
        if file is None:
            return
        # Elsewhere, the file must be gone before another process can lock it. Windows removes no open file, so it
        # cannot remove one that another process has opened in between.
        if sys.platform == "win32":
            os.close(file)
        with contextlib.suppress(OSError):
            self._path.unlink()
        if sys.platform != "win32":
            os.close(file)

    def _open(self, deadline_s: float) -> int:
        # The file will be written, so it must not be a link that leads elsewhere.
        while not self._path.is_symlink():
            try:
                file = os.open(self._path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o666)
            except PermissionError:  # also Windows' answer while the file is being removed
                if sys.platform == "win32" and time.monotonic() <= deadline_s:
                    time.sleep(_PAUSE_S)
                    continue
                raise
            status = os.fstat(file)
            if stat.S_ISREG(status.st_mode) and status.st_nlink <= 1:
                return file
            os.close(file)
            break
        raise OSError(errno.ELOOP, "it is a link or not a plain file", str(self._path))

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
    """The lock of one folder.

    Args:
        path: of the lock's file; its folder exists.
        run: the folder that it protects, for messages.
    """

    def __init__(self, path: Path, run: Path) -> None:
        super().__init__(path, _PATIENCE_S)
        self._run = run

    def acquire(self) -> None:
        """Take the lock, without waiting.

        Raises:
            RunFolderError: another run holds it, of this or another process, or its file is a link.
            OSError: the file cannot be written.
        """
        try:
            super().acquire()
        except HeldError as error:
            raise error.holder.error_about(self._run) from None
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise
            raise RunFolderError(
                f"{self._path}, which keeps two runs from writing into {self._run} at once, is a link or not a plain "
                "file. Nothing was written to it. Remove it, or choose another --run-id."
            ) from None
        if self.problem:
            warning = "The file system of %s has no locks (%s): nothing prevents a second run with the same id."
            logger.warning(warning, self._run, self.problem)


def _write_holder(file: int) -> None:
    # All or nothing: half a number would be that of another process.
    text = f"{os.getpid()} {platform.node()}".encode()
    os.ftruncate(file, 0)
    written = 0
    try:
        while written < len(text):  # a disk that is nearly full takes a part, and refuses at the next try
            written += os.write(file, text[written:])
    except OSError:
        os.ftruncate(file, 0)
        raise


def _lock(file: int, *, shared: bool = False) -> None:
    """Raise ``OSError`` if another file descriptor has it. Windows has no shared locks."""
    if sys.platform == "win32":
        os.lseek(file, _LOCKED_BYTE, os.SEEK_SET)
        try:
            msvcrt.locking(file, msvcrt.LK_NBLCK, 1)
        finally:
            os.lseek(file, 0, os.SEEK_SET)
    else:
        # Not lockf: its locks belong to a process, which may have two runs.
        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
