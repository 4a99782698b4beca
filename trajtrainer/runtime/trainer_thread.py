"""A trainer in a thread of its own (``threaded: true``)."""

from __future__ import annotations

import threading

from trajtrainer.timers import Timers
from trajtrainer.trainers.rl_trainer import RLTrainer


class TrainerThread(threading.Thread):
    """Advances one trainer whenever its trajectory queue has something that is worth it (``RLTrainer.is_due``), or that
    the collector cannot do without any longer.

    Waits on the queue's condition; ``close`` of the queue ends the thread. What ``advance`` raises is kept in
    ``failure`` for the controller to raise.
    """

    def __init__(self, trainer: RLTrainer, timers: Timers) -> None:
        super().__init__(name=f"trainer {trainer.behavior}", daemon=True)
        self.trainer = trainer
        self._timers = timers
        self.failure: BaseException | None = None

    def raise_failure(self) -> None:
        """Raises what ``advance`` raised, if it did."""
        if self.failure is not None:
            raise self.failure

    def run(self) -> None:
        try:
            while self._wait():
                with self._timers("trainer_advance"):
                    self.trainer.advance()
        except BaseException as failure:  # handed to the main thread, which ends the run with it
            self.failure = failure
            self.trainer.pool.close()

    def _wait(self) -> bool:
        with self._timers("trajectory_wait"):
            return self.trainer.trajectories.wait(enough=self.trainer.is_due)
