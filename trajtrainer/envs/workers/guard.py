"""Kills processes and removes folders when this process ends, even by SIGKILL and even if the processes are stuck.

On POSIX systems, a guard is a shell that waits for a pipe, held open by this process, to close. No matter how this
process dies, the pipe closes and the shell does its work. (The kernel can also signal children when their parent
dies, with PR_SET_PDEATHSIG. But it does so when the thread that started the child ends, and it needs code between fork
and exec, which is unsafe while gRPC's threads run.) On Windows, a job object kills the processes.
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
"""How long, in seconds, a process may take to shut down its own children before it is killed."""

# Arguments: the process group, the signal that asks it to exit (0 for none), and its grace period in seconds. A line
# written to the pipe replaces the grace period. The leader is also killed by its own id, because it may not have
# created its group yet.
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
# Players may write to the folder until their own guards have killed them, so it is removed twice.
_REMOVE_FOLDER = """
read -r word
rm -rf -- "$1"
sleep 6
rm -rf -- "$1"
"""


class Guard:
    """Kills a process, and everything it has started in its process group, when this process ends.

    Args:
        pid: id of a process that leads its own process group, or is about to. Call ``release`` soon after the process
            has been waited for, because its id may then be reused.
        title: name of the process, for the log.
        asks: whether to send SIGTERM first, for a process that cannot detect the end of this process itself.
        grace_s: seconds that the process has to exit on its own after this process ends. There is no grace period on
            Windows.
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
        """Let the guard kill the processes in ``GRACE_S`` seconds. Takes no lock, so signal handlers may call it."""
        if sys.platform == "win32":
            self.kill()
        elif self._shell is not None:
            self._shell.write(f"{GRACE_S}\n".encode())

    def kill(self) -> None:
        """Kill the processes immediately, without waiting. Takes no lock, so signal handlers may call it."""
        if sys.platform != "win32":
            with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS: PermissionError for zombies
                os.killpg(self._pid, signal.SIGKILL)
        elif self._job is not None:
            self._job.kill()

    def release(self) -> None:
        """Dismiss the guard after the process has ended."""
        if sys.platform == "win32":
            if self._job is not None:
                self._job.release()
        elif self._shell is not None:
            self._shell.dismiss()


@contextlib.contextmanager
def guarded_folder(path: Path) -> Iterator[None]:
    """Remove a folder if this process is killed before the end of the block. On Windows, the folder is left behind."""
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
        with contextlib.suppress(OSError, ValueError):  # the shell may have been killed or dismissed
            self._pipe.write(line)

    def dismiss(self) -> None:
        self._process.kill()
        self._process.wait()
        self._pipe.close()
