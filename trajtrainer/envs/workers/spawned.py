"""A process of ours with a pipe to it and a lifeline, from its start to its end."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
import types
from collections.abc import Callable, Iterator
from multiprocessing.context import SpawnProcess
from typing import TypeVar

from trajtrainer.envs.workers import messages

Task = TypeVar("Task")

_JOIN_S = 5.0


class SpawnedProcess:
    """A process that runs ``target(task, pipe, lifeline)``, both of which must be picklable.

    Args:
        target, task, name: of the process.
        daemon: whether it ends with this one by itself; then it may not have processes of multiprocessing of its own.

    Attributes:
        pipe: to the process.
    """

    def __init__(
        self,
        target: Callable[[Task, messages.Pipe, messages.Pipe], None],
        task: Task,
        name: str,
        *,
        daemon: bool = False,
    ) -> None:
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
        """Whether it was not buried yet."""
        return self._process is not None

    def post(self, kind: bytes, *content: object) -> None:
        """Send a message. That the process is gone shows when its pipe is read."""
        with contextlib.suppress(OSError):
            messages.post(self.pipe, kind, *content)

    def join(self, timeout_s: float) -> None:
        """Wait for its end, but no longer than this."""
        if self._process is not None:
            self._process.join(timeout_s)

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


def begin_child(lifeline: messages.Pipe, kill: Callable[[], object]) -> None:
    """Leave signals to the parent, and end this process at once when that is gone or says so, after ``kill``."""
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
