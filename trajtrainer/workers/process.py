"""A child process as its parent holds it: a pipe for messages and a lifeline, from its start to its end."""

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

Task = TypeVar("Task")
Key = TypeVar("Key")

_JOIN_S = 5.0


class ChildDiedError(EnvironmentFaultError):
    """A child process ended, or stopped answering."""


class ChildProcess:
    """A process that runs ``target(task, pipe, lifeline)``; ``target`` and ``task`` must be picklable.

    Args:
        target, task, name: of the process.
        title: names it in the message about its end: ``process of actor 3``.
        log_as: prefix of its log records from level ``log_from`` on: ``Actor 3``.
        daemon: whether it ends with its parent; if so, it cannot have multiprocessing children itself.
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
        with without_main_module(), _interrupts_blocked():
            self._process.start()
        # If these stayed open here, the pipes would not end with the child.
        pipe_of_child.close()
        lifeline_of_child.close()

    @property
    def pid(self) -> int | None:
        """The process id; None once it is buried."""
        return None if self._process is None else self._process.pid

    def post(self, kind: bytes, *content: object) -> None:
        """Send a message. If the process is gone, reading its pipe will show it."""
        with contextlib.suppress(OSError):
            messages.post(self.pipe, kind, *content)

    def has_unread(self, timeout_s: float = 0.0) -> bool:
        """Wait until there is something to read: a message, or its end."""
        try:
            return self.pipe.poll(timeout_s)
        except OSError:
            return True

    def read(self) -> tuple[bytes, Any] | None:
        """Wait for the next message. A log record is logged here, and None is returned.

        Raises:
            EOFError, OSError: it has ended.
        """
        kind, content = messages.read(self.pipe)
        if kind == messages.LOG:
            messages.relay_log(content, self._log_as, self._log_from)
            return None
        return kind, content

    def death(self) -> ChildDiedError:
        """Bury it, and return the error for what it was doing."""
        return ChildDiedError(f"The {self._title} {self.bury()}.")

    def end(self, grace_s: float) -> None:
        """Let it shut down within ``grace_s`` seconds, then kill it."""
        if grace_s and self._process is not None:
            self.post(messages.END)
            self._process.join(grace_s)
        self.kill()
        self.bury()

    def kill(self) -> None:
        """End it and its children at once; do not wait. For signal handlers: quick, and takes no lock."""
        with contextlib.suppress(OSError):
            self._lifeline.close()

    def bury(self, timeout_s: float = _JOIN_S) -> str:
        """Wait for its end, kill it after ``timeout_s`` seconds, free its resources; return how it ended."""
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
        if code is not None and code < 0:
            with contextlib.suppress(ValueError):
                return f"was ended by the signal {signal.Signals(-code).name}"
        return f"ended with the exit code {code}"


def wait_for_any(pipes: Mapping[messages.Pipe, Key], timeout_s: float) -> list[Key]:
    """Wait until there is something to read from any of these pipes, or a process ends; return their keys."""
    if not pipes:
        time.sleep(timeout_s)  # until one is restarted
        return []
    try:
        return [pipes[pipe] for pipe in wait(list(pipes), timeout_s)]  # type: ignore[index]
    except InterruptedError:  # by a signal, on Windows; it has been handled
        return []


def begin_child(pipe: messages.LockedPipe, lifeline: messages.Pipe, log_level: int, kill: Callable[[], object]) -> None:
    """Set up a process that ``ChildProcess`` has started.

    Its log goes to its parent. When that is gone, or kills it, it calls ``kill`` and exits at once.
    """
    messages.forward_log(pipe.post, log_level)
    ignore_interrupts()

    def watch() -> None:
        with contextlib.suppress(EOFError, OSError):
            lifeline.recv_bytes()
        with contextlib.suppress(Exception):
            kill()
        # A player that is still starting is not known yet; its guard ends it.
        os._exit(1)

    threading.Thread(target=watch, name="lifeline", daemon=True).start()


def ignore_interrupts() -> None:
    """Ignore Ctrl-C, which reaches all processes of a terminal: only the parent decides what to do about it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform != "win32":
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


@contextlib.contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Keep Ctrl-C from ending a child that is still starting; it inherits the mask until ``ignore_interrupts``."""
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

    A child needs nothing from it; a script without ``if __name__ == "__main__"`` would start child after child, and one
    that imports torch would cost each of them its memory.
    """
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main
