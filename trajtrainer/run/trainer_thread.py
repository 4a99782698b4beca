"""A trainer in a thread of its own (``threaded: true``)."""

from __future__ import annotations

import threading
from collections.abc import Callable

from trajtrainer.core.timers import Timers
from trajtrainer.run.user_calls import UserCalls
from trajtrainer.trainers.trainer import Trainer


class TrainerThread(threading.Thread):
    """Advances one trainer whenever its source has something that is worth it (``Trainer.is_due``).

    It also does so when acting waits at its limit (``request_drain``). Closing the source ends the thread.

    Args:
        trainer: used by this thread alone.
        timers: of the run.
        then: called after each ``advance``.
        calls: of the user's code, by the run's threads.
    """

    def __init__(
        self,
        trainer: Trainer,
        timers: Timers,
        then: Callable[[], object] = lambda: None,
        calls: UserCalls | None = None,
    ) -> None:
        super().__init__(name=f"trainer {trainer.context.behavior}", daemon=True)
        self.trainer = trainer
        self.failure: BaseException | None = None
        self._timers = timers
        self._then = then
        self._calls = UserCalls() if calls is None else calls

    def raise_failure(self) -> None:
        """Raise what ``advance`` raised, if it did."""
        if self.failure is not None:
            raise self.failure

    def run(self) -> None:
        try:
            with self._calls.working():
                while self._wait():
                    with self._timers("trainer_advance"):
                        self.trainer.advance()
                    self._then()
        except BaseException as failure:  # raised in the main thread, which ends the run with it
            self.failure = failure

    def _wait(self) -> bool:
        with self._timers("trajectory_wait"), self._calls.outside(None):
            return self.trainer.source.wait(enough=self.trainer.is_due)
