"""Judges one behaviour while it trains: which of its models is the best, and whether it has trained enough.

Models are measured by evaluation where there is one, with self-play by the rating, else by what training brings
(docs/evaluation.md#the-best-model).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from trajtrainer.run.snapshots import Snapshots
from trajtrainer.rundir.best_models import BestModel, BestModels, State
from trajtrainer.rundir.status import TrainingStatus
from trajtrainer.settings.evaluation import StopSettings
from trajtrainer.trainers.trainer import Trainer

logger = logging.getLogger(__name__)

EVALUATION, RATING, TRAINING = "evaluation", "elo", "training"
# The mean return of fewer episodes says little of a model.
_FEWEST_EPISODES = 20


class Judge:
    """Takes the measures of one behaviour; see the module.

    Attributes:
        by: what models are measured by: ``EVALUATION``, ``RATING`` or ``TRAINING``.
        snapshots: for its evaluations; None without any.
        best_models: those that are kept.
        measure: the newest; None before the first.
        stopped_by: the condition that has ended the training, as it is called below ``stop``; None while none has.
    """

    def __init__(
        self,
        trainer: Trainer,
        best_models: BestModels,
        status: TrainingStatus,
        *,
        by: str,
        rating: Callable[[], float],
        lesson: Callable[[], int],
        state: Callable[[], State],
        snapshots: Snapshots | None = None,
    ) -> None:
        """Begin without measures.

        Args:
            trainer: of the behaviour.
            best_models: its own.
            status: of the run.
            by: see above.
            rating: gives the behaviour's, by which models are measured with ``RATING``.
            lesson: gives how many lessons the environment's parameters have gone on.
            state: gives the content of a checkpoint that nobody changes any more, of the model as it is now.
            snapshots: see above.
        """
        self.by = by
        self.snapshots = snapshots
        self.best_models = best_models
        self.measure: float | None = None
        self.stopped_by: str | None = None
        self._trainer = trainer
        self._status = status
        self._settings = trainer.context.settings.stop or StopSettings()
        self._rating = rating
        self._lesson_now = lesson
        self._state = state
        self._lesson = lesson()
        self._best: float | None = None
        self._in_vain = 0  # measures since the best
        self._summary = trainer.clock.last_summary
        self._seconds_before = 0.0
        self._begin_s = time.monotonic()

    @property
    def waits_for_evaluations(self) -> bool:
        """Whether training waits for each result.

        It may be the last one, and where a run ends shall not depend on how long an evaluation takes.
        """
        stop = self._settings
        decides = self.by == EVALUATION and (stop.reward is not None or stop.patience is not None)
        return decides and not self._trainer.context.settings.threaded

    def look(self) -> None:
        """Look at the model as it is now. Called between two steps of the trainer, in its thread."""
        if self.snapshots is not None:
            self.snapshots.look()
        self._measure()

    def _measure(self) -> None:
        """Measure the model if a summary was written."""
        if self._summary == self._trainer.clock.last_summary:
            return
        self._summary = self._trainer.clock.last_summary
        if self.by == RATING:
            self.take(self._trainer.step, self._rating(), self._state)
        elif self.by == TRAINING:
            self._begin_lesson()
            returns = self._trainer.episodes.returns
            if len(returns) >= _FEWEST_EPISODES:
                self.take(self._trainer.step, float(np.mean(returns)), self._state)

    def take(self, step: int, measure: float, state: Callable[[], State]) -> bool:
        """Take a measure of the model as it was at a step.

        Args:
            step: of the trainer.
            measure: the higher, the better.
            state: gives its checkpoint's content, if it is to be kept.

        Returns:
            Whether it is the best so far.
        """
        self.measure = measure
        improves = self._best is None or measure > self._best
        self._best = measure if improves else self._best
        self._in_vain = 0 if improves else self._in_vain + 1
        return self.best_models.offer(BestModel(step, measure, self.by, self._lesson), state)

    def _begin_lesson(self) -> None:
        """Forget measures of an earlier lesson: another task has other rewards."""
        lesson = self._lesson_now()
        if lesson != self._lesson:
            self._lesson, self._best, self._in_vain = lesson, None, 0

    def end_if_enough(self) -> None:
        """End the training if a condition of ``stop`` holds, and tell which."""
        if self.stopped_by is not None:
            return
        for condition, reason in self._reached():
            self.stopped_by = condition
            self._trainer.clock.end()
            logger.info(
                "Behavior %r has trained enough at step %d: %s (stop.%s).",
                self._trainer.context.behavior,
                self._trainer.step,
                reason,
                condition,
            )
            self.note_end(condition)
            return

    def note_end(self, condition: str | None) -> None:
        """Put what has ended the training into the status, where ``stop`` asks for anything."""
        if self._trainer.context.settings.stop is not None:
            entry = None if condition is None else {"by": condition, "steps": self._trainer.step}
            self._status.set_stopped(self._trainer.context.behavior, entry)

    def _reached(self) -> Iterator[tuple[str, str]]:
        stop, trainer = self._settings, self._trainer
        if stop.reward is not None and self.measure is not None and self.measure >= stop.reward:
            yield "reward", f"{_MEASURES[self.by]} is {self.measure:.3f}, of {stop.reward:g} wanted"
        if stop.patience is not None and self._in_vain >= stop.patience:
            yield "patience", f"{_MEASURES[self.by]} has not improved on {self._best:.3f} {self._in_vain} times"
        if stop.time is not None and self.seconds >= stop.time:
            yield "time", f"it has trained for {self.seconds:.0f} s"
        if stop.episodes is not None and trainer.episodes.num_total >= stop.episodes:
            yield "episodes", f"{trainer.episodes.num_total} episodes have ended"
        if stop.gradient_steps is not None and trainer.algorithm.gradient_steps >= stop.gradient_steps:
            yield "gradient_steps", f"{trainer.algorithm.gradient_steps} gradient steps were made"

    @property
    def seconds(self) -> float:
        """How long it has trained, earlier runs that it resumes included."""
        return self._seconds_before + time.monotonic() - self._begin_s

    def state(self) -> dict[str, Any]:
        """Return plain data for a checkpoint."""
        return {
            "by": self.by,
            "measure": self.measure,
            "best": self._best,
            "in_vain": self._in_vain,
            "lesson": self._lesson,
            "seconds": self.seconds,
            "evaluated": 0 if self.snapshots is None else self.snapshots.evaluated,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take what ``state`` gave; measures of another kind count no more."""
        self._summary = self._trainer.clock.last_summary
        self._seconds_before = float(state.get("seconds", 0.0))
        if self.snapshots is not None:
            self.snapshots.restore(int(state.get("evaluated", 0)))
        if state.get("by") == self.by:
            self.measure, self._best = state["measure"], state["best"]
            self._in_vain, self._lesson = int(state["in_vain"]), int(state["lesson"])


_MEASURES = {
    EVALUATION: "the mean reward of the evaluation",
    RATING: "the rating",
    TRAINING: "the mean reward of the last episodes",
}
