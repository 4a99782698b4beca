"""The user's code that the threads of a run call, and a state that stays as it is meanwhile.

::

    a thread of the run   works | steps an environment | works | calls a statistics writer | works
    its lock              held  | free                 | held  | free                      | held
    whoever saves                 takes all locks, writes, gives them back

A thread that changes what a checkpoint holds has a lock of its own. It holds the lock while it works, and gives it up
for each call of the user's code and while it waits for another thread. So whoever has all locks sees a state between
two gradient steps. That state stays as it is, whether the calls return or not: a thread that comes back waits.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from trajtrainer.core.steps import EnvironmentEvent
from trajtrainer.envs.in_process import InProcessEnvironment

# Longer than the pauses between two calls of ``rest``.
_HOLD_S = 1.0


class Caller(Protocol):
    """What calls the user's code, such as an environment."""

    @property
    def call(self) -> object:
        """The call that is under way, as a new object for each call; None between calls."""

    def describe(self) -> str:
        """Name the call that is under way, such as "The step of the environment pole"."""


@dataclass(frozen=True, slots=True, eq=False)
class OneCall:
    """A ``Caller`` of a single call, which ``text`` names."""

    text: str

    @property
    def call(self) -> object:
        """See ``Caller``."""
        return self

    def describe(self) -> str:
        """See ``Caller``."""
        return self.text


@dataclass(slots=True)
class _Thread:
    """A thread that works for the run.

    Attributes:
        lock: held while it works.
        depth: calls of the user's code within one another that are under way.
        caller: of the outermost of them.
    """

    lock: threading.Lock = field(default_factory=threading.Lock)
    depth: int = 0
    caller: Caller | None = None


class UserCalls:
    """Knows which threads of a run are in the user's code; see the module."""

    def __init__(self) -> None:
        self._threads: dict[int, _Thread] = {}
        self._is_wanted = threading.Event()
        self._is_free = threading.Event()

    @contextmanager
    def working(self) -> Iterator[None]:
        """Let the calling thread work for the run while this lasts."""
        thread = _Thread()
        thread.lock.acquire()
        self._threads[threading.get_ident()] = thread
        try:
            yield
        finally:
            del self._threads[threading.get_ident()]
            thread.lock.release()

    def leave(self, caller: Caller | None) -> None:
        """Begin a call of the user's code, or with None a wait. ``back`` must follow."""
        thread = self._threads.get(threading.get_ident())
        if thread is not None:
            thread.depth += 1
            if thread.depth == 1:
                thread.caller = caller
                thread.lock.release()

    def back(self) -> None:
        """End what ``leave`` began. Waits while somebody saves."""
        thread = self._threads.get(threading.get_ident())
        if thread is not None:
            if thread.depth == 1:
                thread.lock.acquire()
                thread.caller = None
            thread.depth -= 1

    @contextmanager
    def outside(self, caller: Caller | None) -> Iterator[None]:
        """Let the calling thread be in the user's code, or wait, while this lasts."""
        self.leave(caller)
        try:
            yield
        finally:
            self.back()

    def rest(self) -> None:
        """Let whoever wants to save do so now. Called again and again by a thread that waits for another one."""
        if self._is_wanted.is_set():
            with self.outside(None):
                self._is_free.wait()

    def under_way(self) -> list[tuple[int, Caller]]:
        """Return the identifiers of the threads that are in the user's code, and what called it."""
        found = ((number, thread.caller) for number, thread in list(self._threads.items()))
        return [(number, caller) for number, caller in found if caller is not None]

    @contextmanager
    def held(self) -> Iterator[bool]:
        """Keep every thread from working while this lasts. Yields False if one of them is at work."""
        taken: list[threading.Lock] = []
        self._is_free.clear()
        self._is_wanted.set()
        try:
            threads = list(self._threads.values())
            for thread in threads:
                if not thread.lock.acquire(timeout=_HOLD_S):
                    break
                taken.append(thread.lock)
            yield len(taken) == len(threads)
        finally:
            self._is_wanted.clear()
            self._is_free.set()
            for lock in taken:
                lock.release()


class InUserCode:
    """A Python environment that works within ``wait`` and ``close``, during which its thread is in the user's code."""

    def __init__(self, environment: InProcessEnvironment, calls: UserCalls) -> None:
        self.num_workers = environment.num_workers
        self.reset = environment.reset
        self.set_parameters = environment.set_parameters
        self.send = environment.send
        self.kill = environment.kill
        self._environment = environment
        self._calls = calls

    def wait(self, timeout_s: float | None = None) -> list[EnvironmentEvent]:
        """See ``Environment``."""
        self._calls.leave(self._environment)
        try:
            return self._environment.wait(timeout_s)
        finally:
            self._calls.back()

    def close(self) -> None:
        """See ``Environment``."""
        with self._calls.outside(self._environment):
            self._environment.close()
