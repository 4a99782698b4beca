"""Decides how acting and learning of one behavior wait for each other, based on the settings of the run."""

from __future__ import annotations

import enum
import threading
from collections.abc import Callable
from dataclasses import dataclass

from trajtrainer.core.timers import Timers
from trajtrainer.experience.source import ExperienceSource
from trajtrainer.learning.trainers.factory import is_automatic, is_paced, max_lead
from trajtrainer.learning.trainers.self_play import SelfPlay
from trajtrainer.learning.trainers.trainer import Trainer
from trajtrainer.run.actors.messages import UNLIMITED
from trajtrainer.run.actors.pacing import ByUpdates, InTurn, Pacing, Shared
from trajtrainer.run.user_calls import UserCalls
from trajtrainer.settings.trainer import TrainerSettings


class Waiting(enum.Enum):
    """The ways in which acting and learning wait for each other."""

    ONE_LOOP = enum.auto()  # one acting step, then the trainer learns if it is due
    THREAD = enum.auto()  # the loop keeps acting while the trainer's thread learns, until it is a number of rows ahead
    TURNS = enum.auto()  # an actor outside the loop collects exactly until the trainer has something to do
    ROWS = enum.auto()  # actors outside the loop may be up to a number of rows ahead of learning
    UPDATES = enum.auto()  # actors outside the loop may be up to a number of policy versions ahead of learning


@dataclass(frozen=True, slots=True)
class Coupling:
    """How acting and learning of one behavior are coupled."""

    settings: TrainerSettings
    waiting: Waiting
    max_policy_lag: int | None = None  # with ``UPDATES``: the maximum age of an acting policy, in versions

    @classmethod
    def of(cls, settings: TrainerSettings, *, elsewhere: tuple[int, int] | None, is_training: bool) -> Coupling:
        """Decide how a behavior is coupled.

        Args:
            settings: settings of its trainer.
            elsewhere: the number of actors outside the loop and their ``max_policy_lag``; None if the actor is in the
                loop.
            is_training: True if the run trains.
        """
        if elsewhere is None:
            return cls(settings, Waiting.THREAD if settings.threaded else Waiting.ONE_LOOP)
        if is_training and elsewhere == (1, 0) and not is_automatic(settings):
            return cls(settings, Waiting.TURNS)
        if is_training and not is_paced(settings):
            return cls(settings, Waiting.UPDATES, elsewhere[1])
        return cls(settings, Waiting.ROWS)

    def source(self) -> ExperienceSource:
        """Make an empty channel for the experience."""
        return ExperienceSource(
            is_concurrent=self.waiting in (Waiting.THREAD, Waiting.ROWS, Waiting.UPDATES),
            max_lag=self.max_policy_lag,
            reports_lag=self.waiting in (Waiting.TURNS, Waiting.ROWS, Waiting.UPDATES),
        )

    @property
    def lead(self) -> int:
        """Number of rows that actors outside the loop may be ahead of learning; 0 for an actor in the loop.

        Actors hand over a fraction of these rows at a time.
        """
        if self.waiting in (Waiting.ONE_LOOP, Waiting.THREAD):
            return 0
        if self.max_policy_lag is None:
            return max_lead(self.settings)
        return (1 + self.max_policy_lag) * (self.settings.buffer_size + 1)

    def pacing(self, trainer: Trainer, self_play: SelfPlay | None) -> Pacing:
        """Make the pacing for the behavior's actors, before any of them has started."""
        name, settings = trainer.context.behavior, self.settings

        def most_steps() -> int:  # in this session; a function, because a checkpoint may be loaded later
            if not trainer.context.training:
                return UNLIMITED
            # Collecting also ends once ``stop`` has ended the training.
            return settings.max_steps + 1 - trainer.first_step if trainer.should_still_train else 0

        match self.waiting:
            case Waiting.ONE_LOOP:
                return Pacing(name)
            case Waiting.TURNS:
                return InTurn(trainer, self_play)
            case Waiting.THREAD:
                return Shared(name, trainer.source, max_lead(settings))
            case Waiting.ROWS:
                return Shared(name, trainer.source, max_lead(settings), most_steps)
            case Waiting.UPDATES:
                assert self.max_policy_lag is not None
                return ByUpdates(trainer, self.max_policy_lag, most_steps)


class TrainerThread(threading.Thread):
    """Advances one trainer whenever its source has enough experience (``Trainer.is_due``).

    It also does so if acting waits at its limit (``request_drain``), and while the trainer ``learns_alone``. Closing
    the source ends the thread.

    Args:
        trainer: the trainer, which only this thread uses.
        timers: timers of the run.
        then: called after each ``advance``.
        calls: keeps track of the run's calls of user code.
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
        """Raise the exception that ended the thread, if any."""
        if self.failure is not None:
            raise self.failure

    def run(self) -> None:
        try:
            with self._calls.working():
                while True:
                    learns_alone = self.trainer.learns_alone and not self.trainer.source.is_closed
                    with self._timers("trajectory_wait"), self._calls.outside(None):
                        has_experience = self.trainer.source.wait(
                            0.0 if learns_alone else None, enough=self.trainer.is_due
                        )
                    if not (has_experience or learns_alone):
                        return
                    with self._timers("trainer_advance"):
                        self.trainer.advance()
                    self._then()
        except BaseException as failure:  # The main thread raises it and ends the run.
            self.failure = failure
