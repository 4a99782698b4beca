"""Watches the user's code that a run calls: says what does not return, and saves the run without it.

The thread that is stuck is often the main thread, where no signal handler of Python can run before the call returns.
So another thread looks, and if need be saves everything and ends the process. Code that never lets go of Python's
global lock (a loop of a C extension) stops this thread, too.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType

from trajtrainer.core.errors import EnvironmentFaultError
from trajtrainer.envs.user_code import is_debugged, place_of_thread
from trajtrainer.run.signals import GRACE_S, StopRequest
from trajtrainer.run.user_calls import Caller, UserCalls

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
