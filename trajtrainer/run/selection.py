"""Decides when models are evaluated, which model is the best, and whether a ``stop`` condition ends training.

With self-play, models are ranked by rating. Otherwise, they are ranked by evaluations or, without evaluations, by the
returns in training (docs/measure/evaluation.md#the-best-model).
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from trajtrainer.core.numeric import count_in
from trajtrainer.learning.nn.actor import Actor, copy_of
from trajtrainer.learning.trainers.episodes import EpisodeRecord, MeanReturn
from trajtrainer.learning.trainers.trainer import BehaviorTrainer
from trajtrainer.policies.checkpoints.best import EVALUATION, MEASURES, RATING, TRAINING, BestModel, BestModels, State
from trajtrainer.policies.folder.status import TrainingStatus
from trajtrainer.settings.evaluation import Evaluations, StopSettings

logger = logging.getLogger(__name__)

# With fewer episodes, the mean return is not reliable enough to end training.
_FEWEST_EPISODES = 20


@dataclass(frozen=True, slots=True)
class Candidate:
    """A snapshot of a behavior's model, to be evaluated.

    Attributes:
        model: record of the model, without a measure.
        actor: the policy's network, on the CPU.
        state: content of a checkpoint.
    """

    model: BestModel
    actor: Actor
    state: State


@dataclass(slots=True, eq=False)
class ModelSelector:
    """Ranks the models of one behavior, and checks the ``stop`` conditions.

    An evaluation is due whenever training passes a multiple of the interval, and at the end of training. Copying the
    model does not affect training: it draws no random numbers, and bit-identical runs remain bit-identical.

    Attributes:
        trainer: trainer of the behavior.
        episodes: statistics of the agents' episodes.
        best_models: the best models, which are saved to disk. Its ``by`` is the source of the measure.
        status: status of the run.
        rating: returns the behavior's rating.
        copied_state: returns a copy of the current checkpoint content. The argument is the step, if it differs from the
            trainer's step.
        evaluations: settings of the evaluations; None without evaluations.
        measure: the value to compare with ``stop.reward``; None before the first measure. It is the newest measure or,
            if models are ranked by their returns in training, the mean over the newest summaries, enough to include at
            least 20 episodes.
        stopped_by: the condition in ``stop`` that has ended training; None if training has not been ended.
    """

    trainer: BehaviorTrainer
    episodes: EpisodeRecord
    best_models: BestModels
    status: TrainingStatus
    rating: Callable[[], float]
    copied_state: Callable[..., State]
    evaluations: Evaluations | None = None
    measure: float | None = field(default=None, init=False)
    stopped_by: str | None = field(default=None, init=False)
    _lesson: int = field(init=False)
    _summary: int = field(init=False)
    _best: float | None = field(default=None, init=False)
    _in_vain: int = field(default=0, init=False)  # number of measures without improvement
    _newest: list[MeanReturn] = field(default_factory=list, init=False)  # the summaries in ``measure``
    _candidate: Candidate | None = field(default=None, init=False)
    _copied: int = field(default=0, init=False)  # step of the last candidate
    _evaluated: int = field(default=0, init=False)  # step of the last candidate that was evaluated
    _had_last: bool = field(default=False, init=False)
    _begin_s: float = field(init=False)

    def __post_init__(self) -> None:
        self._lesson = self.episodes.lesson
        self._summary = self.trainer.last_summary
        self._begin_s = time.monotonic()

    @property
    def by(self) -> str:
        """The source of the measure: ``EVALUATION``, ``RATING`` or ``TRAINING``."""
        return self.best_models.by

    @property
    def waits_for_evaluations(self) -> bool:
        """True if training waits for the result of each evaluation.

        The result may end the run, and it must always end at the same step, no matter how long an evaluation takes.
        """
        settings = self.trainer.context.settings
        stop = settings.stop
        decides = stop is not None and (stop.reward is not None or stop.patience is not None)
        return decides and self.by == EVALUATION and not settings.threaded

    def observe(self) -> None:
        """Copy the current model if an evaluation is due, and update the measure if a summary was written.

        Called in the trainer's thread, after the trainer has advanced.
        """
        self._copy_if_due()
        if self._summary == self.trainer.last_summary:
            return
        self._summary = self.trainer.last_summary
        if self.by == RATING:
            self.measure = self.rating()
            self._compare(self.measure)
            self._offer_unevaluated()
        elif self.by == TRAINING:
            lesson = self.episodes.lesson
            if lesson != self._lesson:  # rewards in different lessons are not comparable
                self._lesson, self._best, self._in_vain, self._newest = lesson, None, 0, []
            summary = self.episodes.summary
            if summary is not None and summary.step == self._summary:
                # Keep the newest summaries that have enough episodes in total.
                self._newest.append(summary)
                while sum(each.episodes for each in self._newest[1:]) >= _FEWEST_EPISODES:
                    del self._newest[0]
                number = sum(each.episodes for each in self._newest)
                if number >= _FEWEST_EPISODES:
                    self.measure = sum(each.mean * each.episodes for each in self._newest) / number
                self._compare(summary.mean)
                self._offer_unevaluated()

    def _copy_if_due(self) -> None:
        step = self.trainer.reached
        if self.evaluations is None or self._had_last:
            return
        self._had_last = not self.trainer.should_still_train
        interval = self.evaluations.interval
        if step // interval != self._copied // interval or (self._had_last and step != self._copied):
            self._copied = step
            self._candidate = Candidate(self._unmeasured(step), copy_of(self.trainer.actor), self.copied_state(step))

    def _unmeasured(self, step: int) -> BestModel:
        newest = self.episodes.newest
        training, summary = (None, None) if newest is None else (newest.mean, newest.step)
        return BestModel(step, math.nan, self.by, self.episodes.lesson, training, summary)

    def pop_candidate(self) -> Candidate | None:
        """Return the newest candidate; None if there is no new one since the last call. Thread-safe."""
        newest, self._candidate = self._candidate, None
        return newest

    def add_evaluation(self, candidate: Candidate, reward: float) -> bool:
        """Add the result of an evaluation. Returns whether the model is the best so far."""
        self._evaluated = candidate.model.steps
        if self.by != EVALUATION:
            return False
        self.measure = reward
        self._compare(reward)
        measured = replace(candidate.model, reward=reward, evaluation=reward)
        return self.best_models.offer(measured, lambda: candidate.state)

    def add_last(self) -> None:
        """Consider the final model of the run as the best model.

        If it was not evaluated because the run was stopped or the evaluation failed, compare its return in training
        with that of the best model.
        """
        if self.by != EVALUATION or self._evaluated != self.trainer.step:
            self._offer_unevaluated()

    def _offer_unevaluated(self) -> None:
        model, best = self._unmeasured(self.trainer.step), self.best_models.best
        if self.by == RATING:
            model = replace(model, reward=self.rating())
        elif model.training is None:
            return
        else:
            model = replace(model, reward=model.training, by=TRAINING)
        if self.by == EVALUATION and best is not None and best.evaluation is not None:
            if best.training is None:
                return  # the models are not comparable
            model = replace(model, evaluation=best.evaluation)
        self.best_models.offer(model, self.copied_state)

    def _compare(self, measure: float) -> None:
        """Count the measures without improvement. A measure equal to the best one is not an improvement."""
        improves = self._best is None or measure > self._best
        self._best = measure if improves else self._best
        self._in_vain = 0 if improves else self._in_vain + 1

    def end_if_enough(self) -> None:
        """End training if a condition in ``stop`` is met, and log the condition."""
        stop, behavior = self.trainer.context.settings.stop, self.trainer.context.behavior
        if stop is None or self.stopped_by is not None:
            return
        for condition, reason in self._reached(stop):
            self.stopped_by = condition
            self.trainer.end()
            told = "Behavior %r stopped training at step %d: %s (stop.%s)."
            logger.info(told, behavior, self.trainer.reached, reason, condition)
            self.note_end(condition)
            return

    def note_end(self, condition: str) -> None:
        """If the settings have ``stop``, record the condition that ended training in the status."""
        if self.trainer.context.settings.stop is not None:
            entry = {"by": condition, "steps": self.trainer.reached}
            self.status.set_stopped(self.trainer.context.behavior, entry)

    def _reached(self, stop: StopSettings) -> Iterator[tuple[str, str]]:
        trainer = self.trainer
        if stop.reward is not None and self.measure is not None and self.measure >= stop.reward:
            yield "reward", f"the {MEASURES[self.by]} is {self.measure:.3f}, which reaches {stop.reward:g}"
        if stop.patience is not None and self._in_vain >= stop.patience:
            yield (
                "patience",
                f"the {MEASURES[self.by]} has not improved on {self._best:.3f} in {self._in_vain} measurements",
            )
        if stop.time is not None and self._seconds >= stop.time:
            yield "time", f"it has trained for {self._seconds:.0f} s"
        if stop.episodes is not None and self.episodes.num_total >= stop.episodes:
            yield "episodes", f"{self.episodes.num_total} episodes have ended"
        if stop.gradient_steps is not None and trainer.algorithm.gradient_steps >= stop.gradient_steps:
            yield "gradient_steps", f"{trainer.algorithm.gradient_steps} gradient steps were made"

    @property
    def _seconds(self) -> float:
        """Duration of the training so far, including earlier sessions of a resumed run."""
        return time.monotonic() - self._begin_s

    def state(self) -> dict[str, Any]:
        """Return the state as plain data for a checkpoint."""
        return {
            "by": self.by,
            "measure": self.measure,
            "best": self._best,
            "in_vain": self._in_vain,
            "lesson": self._lesson,
            "seconds": self._seconds,
            "evaluated": self._evaluated,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore a result of ``state``. Measures from a different source are discarded."""
        self._summary = self.trainer.last_summary
        self._begin_s -= float(state.get("seconds", 0.0))
        self._copied = self._evaluated = count_in(state.get("evaluated", 0))  # later models are evaluated again
        if state.get("by") == self.by:
            self.measure, self._best = state["measure"], state["best"]
            self._in_vain, self._lesson = count_in(state["in_vain"]), count_in(state["lesson"])
