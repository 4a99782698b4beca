"""Selects the best model of a behavior while it trains, and ends its training early if ``stop`` asks for that.

Models are measured by evaluations if there are any, with self-play by the rating, and otherwise by the returns in
training (docs/guides/evaluation.md#the-best-model).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from trajtrainer.core.numeric import count_in
from trajtrainer.learning.trainers.episodes import EpisodeRecord, MeanReturn
from trajtrainer.learning.trainers.trainer import BehaviorTrainer
from trajtrainer.policies.checkpoints.best import EVALUATION, MEASURES, RATING, TRAINING, BestModel, BestModels, State
from trajtrainer.policies.folder.status import TrainingStatus
from trajtrainer.run.evaluation_schedule import Candidate, EvaluationSchedule
from trajtrainer.settings.evaluation import StopSettings

logger = logging.getLogger(__name__)

# The mean return of fewer episodes says too little about a model to end its training.
_FEWEST_EPISODES = 20


class ModelSelector:
    """Measures the models of one behavior.

    Attributes:
        by: the source of the measure: ``EVALUATION``, ``RATING`` or ``TRAINING``.
        schedule: of its evaluations; None without any.
        best_models: the models that are kept.
        measure: compared with ``stop.reward``: the newest measure, or with ``TRAINING`` the mean of the newest
            summaries that have 20 episodes together; None before there is one.
        stopped_by: the condition below ``stop`` that has ended the training; None until one has.
    """

    def __init__(
        self,
        trainer: BehaviorTrainer,
        episodes: EpisodeRecord,
        best_models: BestModels,
        status: TrainingStatus,
        *,
        by: str,
        rating: Callable[[], float],
        state: Callable[[], State],
        schedule: EvaluationSchedule | None = None,
    ) -> None:
        """Start without any measure.

        Args:
            trainer: of the behavior.
            episodes: of its agents.
            best_models: of the behavior.
            status: of the run.
            by: see above.
            rating: returns the behavior's rating.
            state: returns the content of a checkpoint of the model as it is now, which will not change any more.
            schedule: see above.
        """
        self.by = by
        self.schedule = schedule
        self.best_models = best_models
        self.measure: float | None = None
        self.stopped_by: str | None = None
        self._trainer = trainer
        self._episodes = episodes
        self._status = status
        self._settings = trainer.context.settings.stop or StopSettings()
        self._rating = rating
        self._state = state
        self._lesson = episodes.lesson
        self._best: float | None = None
        self._in_vain = 0  # measures since the best one
        self._newest: list[MeanReturn] = []  # the summaries that ``measure`` is the mean of
        self._summary = trainer.last_summary
        self._seconds_before = 0.0
        self._begin_s = time.monotonic()

    @property
    def waits_for_evaluations(self) -> bool:
        """Whether training waits for the result of each evaluation.

        The result may end the run, and the step at which it ends must not depend on how long an evaluation takes.
        """
        stop = self._settings
        decides = self.by == EVALUATION and (stop.reward is not None or stop.patience is not None)
        return decides and not self._trainer.context.settings.threaded

    def observe(self) -> None:
        """Measure the model as it is now, if a summary was written.

        Called between two steps of the trainer, in its thread.
        """
        if self.schedule is not None:
            self.schedule.observe()
        if self._summary == self._trainer.last_summary:
            return
        self._summary = self._trainer.last_summary
        if self.by == RATING:
            self.measure = self._rating()
            self._compare(self.measure)
            self._offer_unevaluated()
        elif self.by == TRAINING:
            lesson = self._episodes.lesson
            if lesson != self._lesson:  # Another task has other rewards, so earlier measures do not count any more.
                self._lesson, self._best, self._in_vain, self._newest = lesson, None, 0, []
            summary = self._episodes.summary
            if summary is not None and summary.step == self._summary:
                # ``measure`` is of the newest summaries that have enough episodes together.
                self._newest.append(summary)
                while sum(each.episodes for each in self._newest[1:]) >= _FEWEST_EPISODES:
                    del self._newest[0]
                number = sum(each.episodes for each in self._newest)
                if number >= _FEWEST_EPISODES:
                    self.measure = sum(each.mean * each.episodes for each in self._newest) / number
                self._compare(summary.mean)
                self._offer_unevaluated()

    def add_evaluation(self, candidate: Candidate, reward: float) -> bool:
        """Add the mean return of an evaluation. Returns whether the model is the best so far."""
        model = BestModel(
            candidate.step, reward, EVALUATION, candidate.lesson, *_in_training(candidate.training), evaluation=reward
        )
        if self.by == EVALUATION:
            self.measure = reward
            self._compare(reward)
            return self.best_models.offer(model, lambda: candidate.state)
        return False

    def add_last(self) -> None:
        """Add the model with which the run ends.

        If it was not evaluated, because the run was stopped or the evaluation failed, its return in training is
        compared with that of the best model.
        """
        if self.schedule is None or self.by != EVALUATION or self.schedule.evaluated != self._trainer.step:
            self._offer_unevaluated()

    def _offer_unevaluated(self) -> None:
        mean_return, lesson = self._episodes.newest, self._episodes.lesson
        training, best = _in_training(mean_return), self.best_models.best
        step, reward, by = self._trainer.step, training[0], TRAINING
        if self.by == RATING:
            reward, by = self._rating(), RATING
        evaluation = best.evaluation if self.by == EVALUATION and best is not None else None
        if reward is None or (evaluation is not None and best is not None and best.training is None):
            return  # There is nothing to compare it with.
        self.best_models.offer(BestModel(step, reward, by, lesson, *training, evaluation=evaluation), self._state)

    def _compare(self, measure: float) -> None:
        """Count the measures since the best one. A measure that equals the best is not an improvement."""
        improves = self._best is None or measure > self._best
        self._best = measure if improves else self._best
        self._in_vain = 0 if improves else self._in_vain + 1

    def end_if_enough(self) -> None:
        """End the training if a condition of ``stop`` holds, and log which."""
        if self.stopped_by is not None:
            return
        for condition, reason in self._reached():
            self.stopped_by = condition
            self._trainer.end()
            logger.info(
                "Behavior %r stopped training at step %d: %s (stop.%s).",
                self._trainer.context.behavior,
                self._trainer.reached,
                reason,
                condition,
            )
            self.note_end(condition)
            return

    def note_end(self, condition: str) -> None:
        """Record in the status what has ended the training, if the settings have ``stop``."""
        if self._trainer.context.settings.stop is not None:
            entry = {"by": condition, "steps": self._trainer.reached}
            self._status.set_stopped(self._trainer.context.behavior, entry)

    def _reached(self) -> Iterator[tuple[str, str]]:
        stop, trainer = self._settings, self._trainer
        if stop.reward is not None and self.measure is not None and self.measure >= stop.reward:
            yield "reward", f"the {MEASURES[self.by]} is {self.measure:.3f}, which reaches {stop.reward:g}"
        if stop.patience is not None and self._in_vain >= stop.patience:
            yield "patience", f"the {MEASURES[self.by]} has not improved on {self._best:.3f} {self._in_vain} times"
        if stop.time is not None and self.seconds >= stop.time:
            yield "time", f"it has trained for {self.seconds:.0f} s"
        if stop.episodes is not None and self._episodes.num_total >= stop.episodes:
            yield "episodes", f"{self._episodes.num_total} episodes have ended"
        if stop.gradient_steps is not None and trainer.algorithm.gradient_steps >= stop.gradient_steps:
            yield "gradient_steps", f"{trainer.algorithm.gradient_steps} gradient steps were made"

    @property
    def seconds(self) -> float:
        """How long it has trained, including the earlier runs that it resumes."""
        return self._seconds_before + time.monotonic() - self._begin_s

    def state(self) -> dict[str, Any]:
        """Plain data for a checkpoint."""
        return {
            "by": self.by,
            "measure": self.measure,
            "best": self._best,
            "in_vain": self._in_vain,
            "lesson": self._lesson,
            "seconds": self.seconds,
            "evaluated": 0 if self.schedule is None else self.schedule.evaluated,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore what ``state`` returned. Measures from another source are dropped."""
        self._summary = self._trainer.last_summary
        self._seconds_before = float(state.get("seconds", 0.0))
        if self.schedule is not None:
            self.schedule.restore(count_in(state.get("evaluated", 0)))
        if state.get("by") == self.by:
            self.measure, self._best = state["measure"], state["best"]
            self._in_vain, self._lesson = count_in(state["in_vain"]), count_in(state["lesson"])


def _in_training(mean_return: MeanReturn | None) -> tuple[float | None, int | None]:
    """The mean, and the step of its summary."""
    return (None, None) if mean_return is None else (mean_return.mean, mean_return.step)
