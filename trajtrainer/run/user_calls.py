"""Calls of the user's code by the threads of a run, and a watch that saves the run if such a call does not return.

::

    a thread of the run   works | steps an environment | works | calls a statistics writer | works
    its lock              held  | free                 | held  | free                      | held
    a thread that saves           takes all locks, writes, releases them

A thread that changes what a checkpoint holds has a lock of its own. It holds the lock while it works, and releases it
for each call of the user's code and while it waits for another thread. So a thread that has all locks sees a state
between two gradient steps, which stays the same whether the calls return or not: a thread that returns has to wait.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from trajtrainer.core.errors import EnvironmentFaultError
from trajtrainer.core.steps import EnvironmentEvent
from trajtrainer.envs.in_process import InProcessEnvironment
from trajtrainer.envs.user_code import is_debugged, place_of_thread
from trajtrainer.run.signals import GRACE_S, StopRequest

logger = logging.getLogger(__name__)

_LOOK_S = 0.25
# The most that one check counts, so that a call does not look long after the process or machine was suspended.
_MOST_S = 4 * _LOOK_S
# How long the run may take to start saving on its own: less than the grace, after which another signal exits at once.
_PATIENCE_S = GRACE_S - 1.0
# After this long, a call that has not returned is reported.
_REPORT_S = 60.0
# How long to wait for a thread's lock: longer than the pauses between two calls of ``rest``.
_HOLD_S = 1.0


class Caller(Protocol):
    """Something that calls the user's code, such as an environment."""

    @property
    def call(self) -> object:
        """The call that is under way, a new object for each call; None between calls."""

    def describe(self) -> str:
        """A name for the call that is under way, such as "The step of the environment pole"."""


@dataclass(frozen=True, slots=True, eq=False)
class OneCall:
    """A ``Caller`` with a single call, named ``text``."""

    text: str

    @property
    def call(self) -> object:
        return self

    def describe(self) -> str:
        return self.text


@dataclass(slots=True)
class _Thread:
    """A thread that works for the run.

    Attributes:
        lock: held while it works.
        depth: of the calls of the user's code that are under way, one inside another.
        caller: of the outermost call.
    """

    lock: threading.Lock = field(default_factory=threading.Lock)
    depth: int = 0
    caller: Caller | None = None


class UserCalls:
    """Knows which threads of a run are in the user's code."""

    def __init__(self) -> None:
        self._threads: dict[int, _Thread] = {}
        self._is_wanted = threading.Event()
        self._is_free = threading.Event()

    @contextmanager
    def working(self) -> Iterator[None]:
        """The calling thread works for the run in the meantime."""
        thread = _Thread()
        thread.lock.acquire()
        self._threads[threading.get_ident()] = thread
        try:
            yield
        finally:
            del self._threads[threading.get_ident()]
            thread.lock.release()

    def leave(self, caller: Caller | None) -> None:
        """Start a call of the user's code, or with None a wait. ``back`` must follow."""
        thread = self._threads.get(threading.get_ident())
        if thread is not None:
            thread.depth += 1
            if thread.depth == 1:
                thread.caller = caller
                thread.lock.release()

    def back(self) -> None:
        """End what ``leave`` has started. Waits while another thread saves."""
        thread = self._threads.get(threading.get_ident())
        if thread is not None:
            if thread.depth == 1:
                thread.lock.acquire()
                thread.caller = None
            thread.depth -= 1

    @contextmanager
    def outside(self, caller: Caller | None) -> Iterator[None]:
        """The calling thread is in the user's code, or with None waits, in the meantime."""
        self.leave(caller)
        try:
            yield
        finally:
            self.back()

    def rest(self) -> None:
        """Let a thread that wants to save do so now. A thread that waits for another one calls this repeatedly."""
        if self._is_wanted.is_set():
            with self.outside(None):
                self._is_free.wait()

    def under_way(self) -> list[tuple[int, Caller]]:
        """The identifiers of the threads that are in the user's code, and what called it."""
        found = ((number, thread.caller) for number, thread in list(self._threads.items()))
        return [(number, caller) for number, caller in found if caller is not None]

    @contextmanager
    def held(self) -> Iterator[bool]:
        """Keep all threads from working in the meantime. Yields False if one of them does not stop working."""
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
    """A Python environment, whose thread is in the user's code during ``wait`` and ``close``."""

    def __init__(self, environment: InProcessEnvironment, calls: UserCalls) -> None:
        self.num_workers = environment.num_workers
        self.reset = environment.reset
        self.set_parameters = environment.set_parameters
        self.send = environment.send
        self.kill = environment.kill
        self._environment = environment
        self._calls = calls

    def wait(self, timeout_s: float | None = None) -> list[EnvironmentEvent]:
        self._calls.leave(self._environment)
        try:
            return self._environment.wait(timeout_s)
        finally:
            self._calls.back()

    def close(self) -> None:
        with self._calls.outside(self._environment):
            self._environment.close()


@dataclass(slots=True)
class _Stuck:
    """A call that has not returned yet.

    Attributes:
        thread: the identifier of the thread that makes it.
        caller: of the user's code.
        call: identifies the call.
        seconds: how long it has been under way.
        is_reported: it has been logged.
    """

    thread: int
    caller: Caller
    call: object
    seconds: float = 0.0
    is_reported: bool = False

    def __str__(self) -> str:
        place = place_of_thread(self.thread)
        return f"{self.caller.describe()} has not returned for {self.seconds:.0f} s{place and f' ({place})'}."


class Watch:
    """A context manager, with a thread that watches for calls which do not return.

    Args:
        calls: of the run.
        stop: requests its end.
        limit_s: how long a call of an environment or a writer may take; None for no limit.
        is_saved: returns whether there is nothing left to save.
        save: writes everything while no thread works. Returns whether everything could be written.
        end: logs what a run logs at its end, then exits with this code. Does not return.

    Attributes:
        fault: a call that took longer than the limit; None without one.
    """

    def __init__(
        self,
        calls: UserCalls,
        stop: StopRequest,
        limit_s: float | None,
        *,
        is_saved: Callable[[], bool],
        save: Callable[[], bool],
        end: Callable[[int], object],
    ) -> None:
        self.fault: EnvironmentFaultError | None = None
        self._calls = calls
        self._stop = stop
        self._limit_s = limit_s
        self._is_saved = is_saved
        self._save = save
        self._end = end
        self._stuck: dict[int, _Stuck] = {}
        self._stopping_s = 0.0
        self._is_done = False
        self._over = threading.Event()
        self._main = threading.get_ident()
        self._thread = threading.Thread(target=self._watch, name="watch of user code", daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        checked_s = time.monotonic()
        while not self._over.wait(_LOOK_S):
            before_s, checked_s = checked_s, time.monotonic()
            try:
                self._check(min(checked_s - before_s, _MOST_S))
            except Exception:
                logger.exception("The watch of environments and writers failed.")

    def _check(self, passed_s: float) -> None:
        under_way = {}
        for thread, caller in self._calls.under_way():
            call, known = caller.call, self._stuck.get(thread)
            if call is None:
                continue
            if known is None or known.call is not call:
                known = _Stuck(thread, caller, call)
            elif not is_debugged(thread):
                known.seconds += passed_s
            under_way[thread] = known
            if known.seconds >= _REPORT_S and not known.is_reported:
                known.is_reported = True
                limit = "" if self._limit_s is None else f" It will be abandoned after {self._limit_s:.0f} s."
                logger.warning("%s The run waits for it.%s", known, limit)
        self._stuck = under_way
        if self._stop.requested:
            self._stopping_s += passed_s
        if self.fault is None and self._limit_s is not None:
            for stuck in self._stuck.values():
                if stuck.seconds >= self._limit_s:
                    self.fault = EnvironmentFaultError(
                        f"{stuck} It is abandoned after {self._limit_s:.0f} s (env_settings.python_timeout)."
                    )
                    self._stop.request()
                    break
        if not self._is_done and (self.fault is not None or self._is_overdue()):
            self._rescue()

    def _is_overdue(self) -> bool:
        """Whether the run is to stop, but does not manage to on its own."""
        if self._stopping_s < _PATIENCE_S:
            return False
        stuck = self._stuck.values()
        if self._is_saved():  # The environment may take its time to close, unless someone waits for the end.
            return self._stop.is_urgent and any(each.seconds >= _PATIENCE_S for each in stuck)
        # The loop's thread checks for a stop before each call, so its current call began before the request.
        return any(each.thread == self._main or each.seconds >= _PATIENCE_S for each in stuck)

    def _rescue(self) -> None:
        """Save everything if no thread is working, and end the process if we may."""
        with self._calls.held() as held:
            if not held:
                return
            saving = "" if self._is_saved() else " Saving everything without waiting for it."
            if self.fault is not None:
                logger.error("%s%s", self.fault, saving)
            else:
                logger.warning("%s%s", " ".join(map(str, self._stuck.values())), saving)
            code = self._stop.exit_code if self.fault is None else 1
            if not self._is_saved() and not self._save():
                code = 1
            self._is_done = True
            if self._stop.ends_process:
                self._end(code)
        logger.warning(
            "Everything is saved, but the run ends only when the call returns. Send another signal to stop waiting; if "
            "the code does not react to signals, kill the program."
        )
