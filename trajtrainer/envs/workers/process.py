"""Child processes: how a parent starts, talks to and shuts down a child, and what the child does first.

Two pipes connect parent and child. One carries messages in both directions. The other, the lifeline, carries no data:
it closes when the parent closes it or dies, and the child then exits. If the child's interpreter cannot react, for
example because a C function does not return, a guard kills the child. So no child outlives its parent.
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import signal
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator, Mapping
from multiprocessing.connection import wait
from multiprocessing.context import SpawnProcess
from typing import Any, TypeVar

from trajtrainer.core.errors import EnvironmentFaultError
from trajtrainer.envs.workers import messages
from trajtrainer.envs.workers.guard import GRACE_S, Guard

Task = TypeVar("Task")
Key = TypeVar("Key")

_JOIN_S = 5.0


class ChildDiedError(EnvironmentFaultError):
    """A child process died or stopped responding."""


class ChildProcess:
    """A process that runs ``target(task, pipe, lifeline)``; ``target`` and ``task`` must be picklable.

    Args:
        target: function to run in the process.
        task: argument of ``target``.
        name: name of the process for multiprocessing.
        title: name of the process in the message about its end, such as ``process of actor 3``.
        log_as: prefix for its log records of level ``log_from`` or higher, such as ``Actor 3``.
        daemon: whether multiprocessing terminates it together with its parent. A daemon cannot have multiprocessing
            children itself.
        grace_s: seconds that it has to exit on its own when its parent is gone.
    """

    def __init__(
        self,
        target: Callable[[Task, messages.Pipe, messages.Pipe], None],
        task: Task,
        name: str,
        *,
        title: str,
        log_as: str,
        log_from: int = logging.WARNING,
        daemon: bool = False,
        grace_s: int = GRACE_S,
    ) -> None:
        self._title, self._log_as, self._log_from = title, log_as, log_from
        spawning = multiprocessing.get_context("spawn")
        self.pipe, pipe_of_child = spawning.Pipe()
        lifeline_of_child, self._lifeline = spawning.Pipe(duplex=False)
        self._process: SpawnProcess | None = spawning.Process(
            target=target, args=(task, pipe_of_child, lifeline_of_child), name=name, daemon=daemon
        )
        with without_main_module(), _interrupts_blocked():  # a child that is still starting must not see Ctrl-C
            self._process.start()
        assert self._process.pid is not None
        self._guard = Guard(self._process.pid, title, grace_s=grace_s)
        # Otherwise the parent's copies would keep the pipes open after the child's death.
        pipe_of_child.close()
        lifeline_of_child.close()

    @property
    def pid(self) -> int | None:
        """The process id; None after ``bury``."""
        return None if self._process is None else self._process.pid

    def post(self, kind: bytes, *content: object) -> None:
        """Send a message. Does nothing if the process is gone, because reading its pipe will show that."""
        with contextlib.suppress(OSError):
            messages.post(self.pipe, kind, *content)

    def has_unread(self, timeout_s: float = 0.0) -> bool:
        """Return whether a message or the end of the pipe can be read within ``timeout_s`` seconds."""
        try:
            return self.pipe.poll(timeout_s)
        except OSError:
            return True

    def read(self) -> tuple[bytes, Any] | None:
        """Wait for the next message. Return None for a log record, which is logged here.

        Raises:
            EOFError, OSError: the process has ended.
        """
        kind, content = messages.read(self.pipe)
        if kind == messages.LOG:
            messages.relay_log(content, self._log_as, self._log_from)
            return None
        return kind, content

    def death(self) -> ChildDiedError:
        """Bury the process, and return an error that says how it ended."""
        return ChildDiedError(f"The {self._title} {self.bury()}.")

    def end(self, grace_s: float) -> None:
        """Ask the process to shut down within ``grace_s`` seconds, then kill it."""
        if grace_s and self._process is not None:
            self.post(messages.END)
            self._process.join(grace_s)
        self.kill()
        self.bury()

    def kill(self) -> None:
        """Kill the process and its children without waiting. Fast and takes no lock, so signal handlers may call it."""
        with contextlib.suppress(OSError):
            self._lifeline.close()
        self._guard.end()

    def bury(self, timeout_s: float = _JOIN_S) -> str:
        """Wait for the process to end, kill it after ``timeout_s`` seconds, and free its resources.

        Returns:
            A description of how it ended, for the sentence "The process ...".
        """
        process, self._process = self._process, None
        if process is None:
            return "is gone"
        wait([process.sentinel], timeout_s)
        # Kill before ``join``, after which the id may belong to another process. This also kills the child's own
        # children.
        self._guard.kill()
        process.kill()
        process.join()
        self._guard.release()
        code = process.exitcode
        process.close()
        self._lifeline.close()
        self.pipe.close()
        if code is not None and code < 0:
            with contextlib.suppress(ValueError):
                return f"was killed by the signal {signal.Signals(-code).name}"
        return f"exited with code {code}"


def wait_for_any(pipes: Mapping[messages.Pipe, Key], timeout_s: float) -> list[Key]:
    """Wait until any of these pipes has a message or has been closed, and return the keys of those pipes."""
    if not pipes:
        time.sleep(timeout_s)  # no process is running, so wait for the next restart
        return []
    try:
        return [pipes[pipe] for pipe in wait(list(pipes), timeout_s)]  # type: ignore[index]
    except InterruptedError:  # raised on Windows after a signal handler has run
        return []


def begin_child(pipe: messages.LockedPipe, lifeline: messages.Pipe, log_level: int, kill: Callable[[], object]) -> None:
    """Set up a process that ``ChildProcess`` has started. The child calls this first.

    The log of the process goes to its parent. When the parent dies or closes the lifeline, ``kill`` is called and the
    process exits immediately.
    """
    messages.forward_log(pipe.post, log_level)
    lead_process_group()

    def watch() -> None:
        with contextlib.suppress(EOFError, OSError):
            lifeline.recv_bytes()
        with contextlib.suppress(Exception):
            kill()
        # ``kill`` does not know about a player that is still starting, but the player's guard kills it.
        os._exit(1)

    threading.Thread(target=watch, name="lifeline", daemon=True).start()


def lead_process_group() -> None:
    """Leave the parent's process group, so that only the parent decides how to handle a signal such as Ctrl-C.

    The child can then be killed together with everything it starts. On Windows, Ctrl-C still reaches the child, which
    ignores it.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform != "win32":
        # Do not create a new session: Linux may schedule each session as a whole, and low priorities then have no
        # effect.
        os.setpgid(0, 0)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


@contextlib.contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Block SIGINT around the start of a child, which inherits the mask until it calls ``lead_process_group``."""
    if sys.platform == "win32":
        yield
    else:
        former = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, former)


@contextlib.contextmanager
def without_main_module() -> Iterator[None]:
    """Keep multiprocessing from importing the user's script in a new process.

    Children do not need the script. Importing it would start children recursively if it lacks an
    ``if __name__ == "__main__"``, and would cost memory in every child if it imports torch.
    """
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main
