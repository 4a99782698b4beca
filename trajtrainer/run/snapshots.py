"""Snapshots of a behaviour for its evaluations, at the steps where they are due."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from trajtrainer.checkpoints.best import State
from trajtrainer.nn.actor import Actor, copy_of
from trajtrainer.settings.evaluation import Evaluations
from trajtrainer.trainers.episodes import EpisodeRecord, MeanReturn
from trajtrainer.trainers.trainer import BehaviorTrainer


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A behaviour as it was at a step. Nobody changes it.

    Attributes:
        step: of the trainer.
        actor: on the CPU.
        state: the content of a checkpoint.
        training: the newest mean return of the training by then; None before the first.
        lesson: how many lessons the environment's parameters had gone on by then.
    """

    step: int
    actor: Actor
    state: State
    training: MeanReturn | None
    lesson: int


class Snapshots:
    """Takes a snapshot whenever the trainer has passed a multiple of ``interval``, and when it has ended.

    Nothing of the training depends on it: no drain is divided for its sake, and no random number drawn.

    Attributes:
        settings: of the evaluations.
        evaluated: step of the last one whose result is known. A resumed run redoes what came after.
    """

    def __init__(
        self,
        settings: Evaluations,
        trainer: BehaviorTrainer,
        episodes: EpisodeRecord,
        state: Callable[[], State],
        lesson: Callable[[], int],
    ) -> None:
        """Begin at the trainer's step.

        Args:
            settings: of the evaluations.
            trainer: of the behaviour.
            episodes: of its agents.
            state: gives the content of a checkpoint that nobody changes any more.
            lesson: gives how many lessons the environment's parameters have gone on.
        """
        self.settings = settings
        self.evaluated = 0
        self._trainer = trainer
        self._episodes = episodes
        self._state = state
        self._lesson = lesson
        self._taken = 0
        self._is_over = False
        self._newest: Snapshot | None = None

    def look(self) -> None:
        """Take a snapshot if one is due. Called between two steps of the trainer, in its thread."""
        step, interval = self._trainer.step, self.settings.interval
        if self._is_over:
            return
        self._is_over = not self._trainer.should_still_train
        if step // interval != self._taken // interval or (self._is_over and step != self._taken):
            self._taken = step
            actor = copy_of(self._trainer.actor)
            self._newest = Snapshot(step, actor, self._state(), self._episodes.newest, self._lesson())

    def take(self) -> Snapshot | None:
        """Take the newest snapshot; None if there is none since the last call. May be called from any thread."""
        newest, self._newest = self._newest, None
        return newest

    def restore(self, evaluated: int) -> None:
        """Go on behind the evaluation at this step."""
        self.evaluated = self._taken = evaluated
