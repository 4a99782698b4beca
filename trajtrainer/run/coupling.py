"""Decides from the settings of a run how acting and learning of a behavior wait for each other."""

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
    """How acting and learning wait for each other."""

    ONE_LOOP = enum.auto()  # acting and learning alternate in one loop
    THREAD = enum.auto()  # the loop acts while a trainer thread learns, up to a number of rows ahead
    TURNS = enum.auto()  # an actor outside the loop collects exactly what the trainer needs next
    ROWS = enum.auto()  # actors outside the loop collect up to a number of rows ahead
    UPDATES = enum.auto()  # actors outside the loop collect up to a number of policy versions ahead


@dataclass(frozen=True, slots=True)
class Coupling:
    """How acting and learning of one behavior are coupled."""

    settings: TrainerSettings
    waiting: Waiting
    max_policy_lag: int | None = None  # only for ``UPDATES``: maximum age of an acting policy, in versions

    @classmethod
    def of(cls, settings: TrainerSettings, *, elsewhere: tuple[int, int] | None, is_training: bool) -> Coupling:
        """Choose the coupling of a behavior.

        Args:
            settings: settings of its trainer.
            elsewhere: the number of actors outside the loop and their ``max_policy_lag``; None if acting happens in the
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
        """Create an empty channel for experience."""
        return ExperienceSource(
            is_concurrent=self.waiting in (Waiting.THREAD, Waiting.ROWS, Waiting.UPDATES),
            max_lag=self.max_policy_lag,
            reports_lag=self.waiting in (Waiting.TURNS, Waiting.ROWS, Waiting.UPDATES),
        )

    @property
    def lead(self) -> int:
        """Number of rows that actors outside the loop may collect ahead of learning; 0 if acting happens in the loop.

        Actors hand over a fraction of these rows at a time.
        """
        if self.waiting in (Waiting.ONE_LOOP, Waiting.THREAD):
            return 0
        if self.max_policy_lag is None:
            return max_lead(self.settings)
        return (1 + self.max_policy_lag) * (self.settings.buffer_size + 1)

    def pacing(self, trainer: Trainer, self_play: SelfPlay | None) -> Pacing:
        """Create the pacing for the behavior's actors. Must be called before any of them starts."""
        name, settings = trainer.context.behavior, self.settings

        def most_steps() -> int:  # steps in this session; called late, because loading a checkpoint changes first_step
            if not trainer.context.training:
                return UNLIMITED
            # ``stop`` may have ended the training.
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
    """A thread that advances one trainer whenever its source has enough experience (``Trainer.is_due``).

    It also advances the trainer if actors are waiting at a limit (``request_drain``), and continuously while
    ``learns_alone`` is True. Closing the source ends the thread.

    Args:
        trainer: the trainer, which only this thread uses.
        timers: timers of the run.
        then: called after each ``advance``.
        calls: keeps track of calls to user code.
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
        except BaseException as failure:  # reraised in the main thread
            self.failure = failure
