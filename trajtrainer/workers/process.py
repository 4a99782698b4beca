"""A process of ours as its parent holds it: a pipe to it and a lifeline, from its start to its end."""

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
from trajtrainer.workers import messages
from trajtrainer.workers.log_relay import forward_log, relay_log

Task = TypeVar("Task")
Key = TypeVar("Key")

_JOIN_S = 5.0


class ChildDiedError(EnvironmentFaultError):
    """A child process ended, or stopped answering."""


class ChildProcess:
    """A process that runs ``target(task, pipe, lifeline)``, both of which must be picklable.

    Args:
        target, task, name: of the process.
        title: it in the message about its end: ``process of actor 3``.
        log_as: begins the records of its log of level ``log_from`` and more: ``Actor 3``.
        daemon: whether it ends with this one on its own; then it may not have processes of multiprocessing of its own.

    Attributes:
        pipe: to the process.
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
    ) -> None:
        self._title, self._log_as, self._log_from = title, log_as, log_from
        spawning = multiprocessing.get_context("spawn")
        self.pipe, pipe_of_child = spawning.Pipe()
        lifeline_of_child, self._lifeline = spawning.Pipe(duplex=False)
        self._process: SpawnProcess | None = spawning.Process(
            target=target, args=(task, pipe_of_child, lifeline_of_child), name=name, daemon=daemon
        )
        with without_main_module():
            self._process.start()
        # Copies of the other ends here would hide its death.
        pipe_of_child.close()
        lifeline_of_child.close()

    @property
    def pid(self) -> int | None:
        """The process id; None after its end."""
        return None if self._process is None else self._process.pid

    @property
    def is_alive(self) -> bool:
        """Whether its end has not been seen yet."""
        return self._process is not None

    def post(self, kind: bytes, *content: object) -> None:
        """Send a message. That the process is gone shows when its pipe is read."""
        with contextlib.suppress(OSError):
            messages.post(self.pipe, kind, *content)

    def has_unread(self, timeout_s: float = 0.0) -> bool:
        """Wait until there is something to read: a message, or that it has ended."""
        try:
            return self.pipe.poll(timeout_s)
        except OSError:
            return True

    def read(self) -> tuple[bytes, Any] | None:
        """Wait for the next message. A record of its log is logged here, and None is returned.

        Raises:
            EOFError, OSError: it has ended.
        """
        kind, content = messages.read(self.pipe)
        if kind == messages.LOG:
            relay_log(content, self._log_as, self._log_from)
            return None
        return kind, content

    def death(self) -> ChildDiedError:
        """Bury it, and return the fault for what it was to do."""
        return ChildDiedError(f"The {self._title} {self.bury()}.")

    def end(self, grace_s: float) -> None:
        """Let it end in order within ``grace_s`` seconds, else at once."""
        if grace_s and self._process is not None:
            self.post(messages.END)
            self._process.join(grace_s)
        self.kill()
        self.bury()

    def kill(self) -> None:
        """End it, and what it started, at once and do not wait. For signal handlers: quick, and takes no lock."""
        with contextlib.suppress(OSError):
            self._lifeline.close()

    def bury(self, timeout_s: float = _JOIN_S) -> str:
        """Wait for its end, end it after ``timeout_s`` seconds, free what belongs to it; return how it ended."""
        process, self._process = self._process, None
        if process is None:
            return "is gone"
        process.join(timeout_s)
        if process.exitcode is None:
            process.kill()
            process.join()
        code = process.exitcode
        process.close()
        self.kill()
        self.pipe.close()
        return how_it_ended(code)


def wait_for_any(pipes: Mapping[messages.Pipe, Key], timeout_s: float) -> list[Key]:
    """Wait until there is something to read from any of these pipes; return the keys of those.

    The end of a process is the end of its pipe, as no other process holds the pipe's other end.
    """
    if not pipes:
        time.sleep(timeout_s)  # until one is started again; there is nothing to wait on
        return []
    try:
        return [pipes[pipe] for pipe in wait(list(pipes), timeout_s)]  # type: ignore[index]
    except InterruptedError:  # by a signal, on Windows; it has been handled
        return []


def begin_child(pipe: messages.LockedPipe, lifeline: messages.Pipe, log_level: int, kill: Callable[[], object]) -> None:
    """Set up a process that ``ChildProcess`` has started.

    Its log goes to the parent, and signals are the parent's. When that is gone or says so, this process ends at once,
    after ``kill``.
    """
    forward_log(pipe.post, log_level)
    # Ctrl-C reaches all processes of a terminal. The parent alone decides what follows from it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def watch() -> None:
        with contextlib.suppress(EOFError, OSError):
            lifeline.recv_bytes()
        with contextlib.suppress(Exception):
            kill()
        # A player that is just starting is not known yet; it has a guard for that.
        os._exit(1)

    threading.Thread(target=watch, name="lifeline", daemon=True).start()


@contextlib.contextmanager
def without_main_module() -> Iterator[None]:
    """Keep a new process from running the user's script (again), which multiprocessing does for functions in it.

    A child needs nothing from there; a script without ``if __name__ == "__main__"`` would start child after child,
    and one that imports torch would cost each of them its memory.
    """
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def how_it_ended(code: int | None) -> str:
    """Return the end of a process in words that complete "The process ..."."""
    if code is not None and code < 0:
        with contextlib.suppress(ValueError):
            return f"was ended by the signal {signal.Signals(-code).name}"
    return f"ended with the exit code {code}"
