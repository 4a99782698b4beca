"""Decides when a model is evaluated while it trains."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from trajtrainer.learning.nn.actor import Actor, copy_of
from trajtrainer.learning.trainers.episodes import EpisodeRecord, MeanReturn
from trajtrainer.learning.trainers.trainer import BehaviorTrainer
from trajtrainer.policies.checkpoints.best import State
from trajtrainer.settings.evaluation import Evaluations


@dataclass(frozen=True, slots=True)
class Candidate:
    """A behavior's model as it was at some step, to be evaluated. It never changes.

    Attributes:
        step: of the trainer.
        actor: on the CPU.
        state: the content of a checkpoint.
        training: the newest mean return in training by then; None before the first.
        lesson: how many lessons the environment's parameters had completed by then.
    """

    step: int
    actor: Actor
    state: State
    training: MeanReturn | None
    lesson: int


class EvaluationSchedule:
    """Decides when an evaluation is due: when training passes a multiple of ``interval``, and when it has ended.

    It draws no random number, and where runs repeat bit for bit, it does not change when the trainer drains.

    Attributes:
        settings: of the evaluations.
        evaluated: the step of the last evaluation whose result is known. A resumed run repeats those after it.
    """

    def __init__(
        self,
        settings: Evaluations,
        trainer: BehaviorTrainer,
        episodes: EpisodeRecord,
        state: Callable[[int], State],
    ) -> None:
        """Start at the trainer's step.

        Args:
            settings: of the evaluations.
            trainer: of the behavior.
            episodes: of its agents.
            state: returns the content of a checkpoint of this step, which will not change any more.
        """
        self.settings = settings
        self.evaluated = 0
        self._trainer = trainer
        self._episodes = episodes
        self._state = state
        self._taken = 0
        self._is_over = False
        self._newest: Candidate | None = None

    def observe(self) -> None:
        """Copy the model if an evaluation is due.

        Called between two steps of the trainer, in its thread or at each pass.
        """
        step, interval = self._trainer.reached, self.settings.interval
        if self._is_over:
            return
        self._is_over = not self._trainer.should_still_train
        if step // interval != self._taken // interval or (self._is_over and step != self._taken):
            self._taken = step
            actor = copy_of(self._trainer.actor)
            self._newest = Candidate(step, actor, self._state(step), self._episodes.newest, self._episodes.lesson)

    def pop(self) -> Candidate | None:
        """Remove and return the newest candidate; None if there is none since the last call. Safe in any thread."""
        newest, self._newest = self._newest, None
        return newest

    def restore(self, evaluated: int) -> None:
        """Continue after the evaluation at this step."""
        self.evaluated = self._taken = evaluated
