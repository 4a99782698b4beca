"""Keeps track of calls to user code, and saves the run if such a call hangs.

::

    a thread of the run   works | steps an environment | works | calls a statistics writer | works
    the saving thread             waits until no thread works, keeps all from working, saves

A thread that can change the content of a checkpoint counts as working, except while it calls user code or waits for
another thread. So while all threads are kept from working, the state is consistent: it is the state between two
gradient steps. If a call to user code returns in this time, its thread has to wait, so the state does not change.
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
# Maximum time to add per check, so that time in which the process or machine was suspended does not count.
_MOST_S = 4 * _LOOK_S
# How long the run may take to start saving after a stop request. It is shorter than the grace period.
_PATIENCE_S = GRACE_S - 1.0
# Calls that take longer than this are reported.
_REPORT_S = 60.0
# Maximum time to wait until no thread is working. It is longer than the time between two calls to ``rest``.
_HOLD_S = 1.0


class Caller(Protocol):
    """An object that calls user code, such as an environment."""

    @property
    def call(self) -> object:
        """The current call, a new object for each call; None between calls."""

    def describe(self) -> str:
        """Return a name for the current call, such as "The step of the environment pole"."""


@dataclass(frozen=True, slots=True, eq=False)
class OneCall:
    """A ``Caller`` with a single call, described by ``text``."""

    text: str

    @property
    def call(self) -> object:
        return self

    def describe(self) -> str:
        return self.text


class UserCalls:
    """Keeps track of the threads of a run that are working, and of those in user code."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._change = threading.Condition(self._lock)
        self._is_held = False
        self._working: set[int] = set()
        self._under_way: dict[int, Caller] = {}

    @contextmanager
    def working(self) -> Iterator[None]:
        """Mark the calling thread as working inside the ``with`` block."""
        thread = threading.get_ident()
        self._start(thread)
        try:
            yield
        finally:
            self._pause(thread)

    @contextmanager
    def outside(self, caller: Caller | None) -> Iterator[None]:
        """Mark the calling thread as in user code inside the ``with`` block, or as waiting if ``caller`` is None."""
        thread = threading.get_ident()
        if thread not in self._working:  # not a thread of the run, or already in user code
            yield
            return
        if caller is not None:
            self._under_way[thread] = caller
        self._pause(thread)
        try:
            yield
        finally:
            self._start(thread)
            self._under_way.pop(thread, None)

    def _start(self, thread: int) -> None:
        with self._lock:
            while self._is_held:
                self._change.wait()
            self._working.add(thread)

    def _pause(self, thread: int) -> None:
        with self._lock:
            self._working.discard(thread)
            if self._is_held:
                self._change.notify_all()

    def rest(self) -> None:
        """Let another thread save now, if necessary. Called repeatedly while waiting for another thread."""
        if self._is_held:
            with self.outside(None):
                pass

    def under_way(self) -> dict[int, Caller]:
        """Return the threads that are in user code, as thread identifier -> caller."""
        return self._under_way.copy()

    @contextmanager
    def held(self) -> Iterator[bool]:
        """Keep all threads from working inside the ``with`` block. Yields False if a thread does not stop working."""
        with self._lock:
            self._is_held = True
            is_quiet = self._change.wait_for(lambda: not self._working, _HOLD_S)
        try:
            yield is_quiet
        finally:
            with self._lock:
                self._is_held = False
                self._change.notify_all()


class InUserCode:
    """Wraps a Python environment. Marks the calling thread as being in user code during ``wait`` and ``close``."""

    def __init__(self, environment: InProcessEnvironment, calls: UserCalls) -> None:
        self.num_workers = environment.num_workers
        self.reset = environment.reset
        self.set_parameters = environment.set_parameters
        self.send = environment.send
        self.kill = environment.kill
        self._environment = environment
        self._calls = calls

    def wait(self, timeout_s: float | None = None) -> list[EnvironmentEvent]:
        with self._calls.outside(self._environment):
            return self._environment.wait(timeout_s)

    def close(self) -> None:
        with self._calls.outside(self._environment):
            self._environment.close()


@dataclass(slots=True)
class _Stuck:
    """A call that has not returned yet.

    Attributes:
        thread: identifier of the thread that made the call.
        caller: the object that calls user code.
        call: identifies the call.
        seconds: duration of the call so far.
        is_reported: True once it has been logged.
    """

    thread: int
    caller: Caller
    call: object
    seconds: float = 0.0
    is_reported: bool = False

    def __str__(self) -> str:
        place = place_of_thread(self.thread)
        return f"{self.caller.describe()} has not returned for {self.seconds:.0f} s{place and f' ({place})'}."


@dataclass
class Watch:
    """Watchdog for calls to user code that hang.

    Attributes:
        calls: keeps track of calls to user code.
        stop: the stop request of the run.
        limit_s: maximum duration of a call to an environment or a writer; None for no limit.
        is_saved: returns whether everything has been saved.
        save: saves everything; called while no thread is working. Returns whether this succeeded.
        end: logs the last lines of the run, and exits with the given code. Does not return.
        fault: the error if a call took longer than the limit, otherwise None.
    """

    calls: UserCalls
    stop: StopRequest
    limit_s: float | None
    is_saved: Callable[[], bool]
    save: Callable[[], bool]
    end: Callable[[int], object]
    fault: EnvironmentFaultError | None = None
    _main: int = field(default_factory=threading.get_ident)
    _stuck: dict[int, _Stuck] = field(default_factory=dict)
    _stopping_s: float = 0.0
    _is_done: bool = False

    @contextmanager
    def watching(self) -> Iterator[Watch]:
        """Run the watchdog in another thread inside the ``with`` block."""
        over = threading.Event()

        def look() -> None:
            checked_s = time.monotonic()
            while not over.wait(_LOOK_S):
                before_s, checked_s = checked_s, time.monotonic()
                try:
                    self._check(min(checked_s - before_s, _MOST_S))
                except Exception:
                    logger.exception("The watchdog for environments and writers failed.")

        thread = threading.Thread(target=look, name="watch user code", daemon=True)
        thread.start()
        try:
            yield self
        finally:
            over.set()
            thread.join()

    def _check(self, passed_s: float) -> None:
        stuck = {}
        for thread, caller in self.calls.under_way().items():
            call, known = caller.call, self._stuck.get(thread)
            if call is None:
                continue
            if known is None or known.call is not call:
                known = _Stuck(thread, caller, call)
            elif not is_debugged(thread):
                known.seconds += passed_s
            stuck[thread] = known
            if known.seconds >= _REPORT_S and not known.is_reported:
                known.is_reported = True
                limit = "" if self.limit_s is None else f" It will be abandoned after {self.limit_s:.0f} s."
                logger.warning("%s The run is waiting for it.%s", known, limit)
            if self.fault is None and self.limit_s is not None and known.seconds >= self.limit_s:
                self.fault = EnvironmentFaultError(
                    f"{known} It is abandoned after {self.limit_s:.0f} s (env_settings.python_timeout)."
                )
                self.stop.request()
        self._stuck = stuck
        if self.stop.requested:
            self._stopping_s += passed_s
        if not self._is_done and (self.fault is not None or self._is_overdue()):
            self._rescue()

    def _is_overdue(self) -> bool:
        """Return whether a stop was requested but the run cannot stop by itself."""
        if self._stopping_s < _PATIENCE_S:
            return False
        stuck = self._stuck.values()
        if self.is_saved():  # closing environments may be slow, unless the stop is urgent
            return self.stop.is_urgent and any(each.seconds >= _PATIENCE_S for each in stuck)
        # The main thread checks for a stop before each call, so if it is in user code, it has been there since the
        # request.
        return any(each.thread == self._main or each.seconds >= _PATIENCE_S for each in stuck)

    def _rescue(self) -> None:
        """Save everything if no thread is working, and end the process if this is allowed."""
        with self.calls.held() as is_quiet:
            if not is_quiet:
                return
            saving = "" if self.is_saved() else " Saving everything without waiting for it."
            if self.fault is not None:
                logger.error("%s%s", self.fault, saving)
            else:
                logger.warning("%s%s", " ".join(map(str, self._stuck.values())), saving)
            has_all = self.is_saved() or self.save()
            self._is_done = True
            if self.stop.ends_process:
                self.end(self.stop.exit_code if has_all and self.fault is None else 1)
        logger.warning(
            "Everything is saved, but the run ends only when the call returns. Send another signal to stop waiting; if "
            "the code does not react to signals, kill the program."
        )
