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

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Protocol

from trajtrainer.core.errors import EnvironmentFaultError
from trajtrainer.core.steps import EnvironmentEvent
from trajtrainer.envs.in_process import InProcessEnvironment
from trajtrainer.envs.user_code import is_debugged, place_of_thread
from trajtrainer.run.signals import GRACE_S, StopRequest

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


logger = logging.getLogger(__name__)

_LOOK_S = 0.25
# The most that one look counts, so that a suspended process or machine does not make a call look long.
_MOST_S = 4 * _LOOK_S
# So long the run may take to begin to save by itself. Less than the grace, after which another signal ends at once.
_PATIENCE_S = GRACE_S - 1.0
# When a call that does not return is told.
_TELL_S = 60.0


@dataclass(slots=True)
class _Stuck:
    """A call that has not returned yet.

    Attributes:
        thread: identifier of the thread that makes it.
        caller: what makes it.
        call: which one it is.
        seconds: how long it has been seen.
        is_told: whether it was reported.
    """

    thread: int
    caller: Caller
    call: object
    seconds: float = 0.0
    is_told: bool = False

    def __str__(self) -> str:
        place = place_of_thread(self.thread)
        return f"{self.caller.describe()} has not returned for {self.seconds:.0f} s{place and f' ({place})'}."


class Watch:
    """A context manager during which a thread watches.

    Args:
        calls: of the run.
        stop: asks for the end.
        limit_s: how long a call of an environment or a writer may take; None without limit.
        is_saved: whether there is nothing left to save.
        save: writes everything, while no thread works. Returns whether all could be written.
        end: ends the process with this exit code, after saying what a run says in the end. Does not return.

    Attributes:
        fault: a call that took longer than the limit.
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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        looked_s = time.monotonic()
        while not self._over.wait(_LOOK_S):
            before_s, looked_s = looked_s, time.monotonic()
            try:
                self._look(min(looked_s - before_s, _MOST_S))
            except Exception:
                logger.exception("The watch of environments and writers failed.")

    def _look(self, passed_s: float) -> None:
        self._count(passed_s)
        if self._stop.requested:
            self._stopping_s += passed_s
        if self.fault is None and self._limit_s is not None:
            for stuck in self._stuck.values():
                if stuck.seconds >= self._limit_s:
                    self.fault = EnvironmentFaultError(
                        f"{stuck} It is given up after {self._limit_s:.0f} s (env_settings.python_timeout)."
                    )
                    self._stop.request()
                    break
        if not self._is_done and (self.fault is not None or self._is_overdue()):
            self._rescue()

    def _count(self, passed_s: float) -> None:
        """Count how long each call has been under way, and report those that take long."""
        stuck = {}
        for thread, caller in self._calls.under_way():
            call, known = caller.call, self._stuck.get(thread)
            if call is None:
                continue
            if known is None or known.call is not call:
                known = _Stuck(thread, caller, call)
            elif not is_debugged(thread):
                known.seconds += passed_s
            stuck[thread] = known
            if known.seconds >= _TELL_S and not known.is_told:
                known.is_told = True
                limit = "" if self._limit_s is None else f" It is given up after {self._limit_s:.0f} s."
                logger.warning("%s The run waits for it.%s", known, limit)
        self._stuck = stuck

    def _is_overdue(self) -> bool:
        """Return whether the run shall end and does not get there by itself."""
        if self._stopping_s < _PATIENCE_S:
            return False
        stuck = self._stuck.values()
        if self._is_saved():  # the environment may close in peace, unless somebody waits for the end
            return self._stop.is_urgent and any(each.seconds >= _PATIENCE_S for each in stuck)
        # The loop's thread looks for a stop before each call, so that the present one began before that.
        return any(each.thread == self._main or each.seconds >= _PATIENCE_S for each in stuck)

    def _rescue(self) -> None:
        """Save what there is, if no thread is at work, and end the process if it is ours."""
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
            "Everything is saved, but the run ends only when the call returns. Another signal breaks off the wait; if "
            "the code does not react to signals, end the program."
        )
