"""Ends processes, and removes folders, when this process ends: even by SIGKILL, and even if their code is stuck.

On POSIX systems a guard is a shell that waits for the end of a pipe that this process holds open. Whatever kills this
process closes the pipe, and the shell then acts. (The kernel's own signal on a parent's death, PR_SET_PDEATHSIG, is
already sent when the thread that started the child ends, and needs code between fork and exec, which is unsafe next to
gRPC's threads.) On Windows a job object does the same for processes.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

if sys.platform == "win32":
    from trajtrainer.envs.workers.windows_job import Job

_LOGGER = logging.getLogger(__name__)

GRACE_S = 1
"""How long a process that is killed may take to end what it has started."""

# Arguments: the process group, the signal that asks it to end (0 for none), and the seconds it then has.
# A line on the pipe has other seconds. The leader may not have made its group yet.
_END_GROUP = """
read -r seconds || seconds=$3
kill -s "$2" -- "-$1"
while [ "$seconds" -gt 0 ] && { kill -s 0 -- "-$1" || kill -s 0 "$1"; }; do
  sleep 1
  seconds=$((seconds - 1))
done
kill -s KILL -- "-$1"
kill -s KILL "$1"
"""
# Players write to the folder until their own guards have ended them.
_REMOVE_FOLDER = """
read -r word
rm -rf -- "$1"
sleep 6
rm -rf -- "$1"
"""


class Guard:
    """Ends a process, and all that it has started in its process group, when this process ends.

    Args:
        pid: of a process that leads a process group of its own, or is about to. Wait for the process's end only before
            ``release``, so that the number is not reused.
        title: of the process, for the log.
        asks: ask the process to end by SIGTERM, for one that does not notice by itself that this process is gone.
        grace_s: how long it may take to end by itself after the end of this process. On Windows it has no time.
    """

    def __init__(self, pid: int, title: str, *, asks: bool = False, grace_s: int = GRACE_S) -> None:
        self._pid = pid
        try:
            if sys.platform == "win32":
                self._job: Job | None = None
                self._job = Job(pid)
            else:
                self._shell: _Shell | None = None
                self._shell = _Shell(_END_GROUP, "process-guard", str(pid), "TERM" if asks else "0", str(grace_s))
        except OSError as error:
            _LOGGER.warning(
                "The %s (process %d) has no guard and may survive if this process is killed: %s.", title, pid, error
            )

    def end(self) -> None:
        """Kill them in ``GRACE_S`` seconds, without waiting. Takes no lock, so signal handlers may call it."""
        if sys.platform == "win32":
            self.kill()
        elif self._shell is not None:
            self._shell.write(f"{GRACE_S}\n".encode())

    def kill(self) -> None:
        """Kill them at once, without waiting. Takes no lock, so signal handlers may call it."""
        if sys.platform != "win32":
            with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS refuses if only zombies are left
                os.killpg(self._pid, signal.SIGKILL)
        elif self._job is not None:
            self._job.kill()

    def release(self) -> None:
        """Dismiss the guard, because the process has ended."""
        if sys.platform == "win32":
            if self._job is not None:
                self._job.release()
        elif self._shell is not None:
            self._shell.dismiss()


@contextlib.contextmanager
def guarded_folder(path: Path) -> Iterator[None]:
    """Remove a folder if this process is killed before the end of the block. Windows leaves it."""
    with contextlib.ExitStack() as stack:
        if sys.platform != "win32":
            with contextlib.suppress(OSError):
                stack.callback(_Shell(_REMOVE_FOLDER, "folder-guard", str(path)).dismiss)
        yield


class _Shell:
    """A shell with a pipe from this process.

    Raises:
        OSError: there is no shell, or the system refuses to start it.
    """

    def __init__(self, script: str, name: str, *arguments: str) -> None:
        self._process = subprocess.Popen(  # noqa: S603
            [shutil.which("sh") or "/bin/sh", "-c", script, name, *arguments],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        assert self._process.stdin is not None
        self._pipe = self._process.stdin

    def write(self, line: bytes) -> None:
        with contextlib.suppress(OSError, ValueError):  # something else may have killed the shell; it was dismissed
            self._pipe.write(line)

    def dismiss(self) -> None:
        self._process.kill()
        self._process.wait()
        self._pipe.close()
