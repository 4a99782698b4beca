"""How acting and learning of a behavior wait for each other. Decided once, from the settings of the run."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from trajtrainer.actors.messages import UNLIMITED
from trajtrainer.actors.pacing import ByUpdates, InTurn, Pacing, Shared
from trajtrainer.data.source import ExperienceSource
from trajtrainer.settings.trainer import TrainerSettings
from trajtrainer.trainers.factory import is_paced, max_lead
from trajtrainer.trainers.self_play import SelfPlay
from trajtrainer.trainers.trainer import Trainer


class Waiting(enum.Enum):
    """Who waits for whom."""

    ONE_LOOP = enum.auto()  # acting makes a step, then the trainer looks
    THREAD = enum.auto()  # acting goes on in the loop while a trainer's thread learns, up to some rows
    TURNS = enum.auto()  # acting elsewhere goes on exactly until the trainer has something to do
    ROWS = enum.auto()  # acting elsewhere goes on up to some rows that were not learned from
    UPDATES = enum.auto()  # acting elsewhere goes on up to some policy versions


@dataclass(frozen=True, slots=True)
class Coupling:
    """The coupling of one behavior.

    Attributes:
        settings: of its trainer.
        waiting: who waits for whom.
        max_policy_lag: with ``UPDATES``, how many versions old a policy may be; None otherwise.
    """

    settings: TrainerSettings
    waiting: Waiting
    max_policy_lag: int | None = None

    @classmethod
    def of(
        cls, settings: TrainerSettings, *, elsewhere: tuple[int, int] | None, is_training: bool, learns: bool
    ) -> Coupling:
        """Return the coupling of a behavior.

        Args:
            settings: of its trainer.
            elsewhere: number of actors outside the loop and their ``max_policy_lag``; None where acting is in the loop.
            is_training: whether the run trains.
            learns: whether it learns from experience, and not from a data set.
        """
        if elsewhere is None or not learns:
            threaded = settings.threaded and learns
            return cls(settings, Waiting.THREAD if threaded else Waiting.ONE_LOOP)
        if is_training and elsewhere == (1, 0):
            return cls(settings, Waiting.TURNS)
        if is_training and not is_paced(settings):
            return cls(settings, Waiting.UPDATES, elsewhere[1])
        return cls(settings, Waiting.ROWS)

    def source(self) -> ExperienceSource:
        """Return the channel of the experience, without any yet."""
        return ExperienceSource(
            is_concurrent=self.waiting in (Waiting.THREAD, Waiting.ROWS, Waiting.UPDATES),
            max_lag=self.max_policy_lag,
            reports_lag=self.waiting in (Waiting.TURNS, Waiting.ROWS, Waiting.UPDATES),
        )

    @property
    def lead(self) -> int:
        """Rows that acting may be ahead, of which actors elsewhere hand over a part at a time; 0 in the loop."""
        if self.waiting in (Waiting.ONE_LOOP, Waiting.THREAD):
            return 0
        if self.max_policy_lag is None:
            return max_lead(self.settings)
        return (1 + self.max_policy_lag) * (self.settings.hyperparameters.buffer_size + 1)

    def pacing(self, trainer: Trainer, source: ExperienceSource, self_play: SelfPlay | None) -> Pacing:
        """Return the pacing of the behavior's actors, none of them started."""
        name, settings = trainer.context.behavior, self.settings

        def steps_left() -> int:
            """Return the steps of this process that end the training; not before a checkpoint was read."""
            return settings.max_steps + 1 - trainer.clock.collected(0) if trainer.context.training else UNLIMITED

        match self.waiting:
            case Waiting.ONE_LOOP:
                return Pacing(name)
            case Waiting.TURNS:
                return InTurn(name, trainer.left, None if self_play is None else self_play.left)
            case Waiting.THREAD:
                return Shared(name, source, max_lead(settings))
            case Waiting.ROWS:
                return Shared(name, source, max_lead(settings), steps_left)
            case Waiting.UPDATES:
                assert self.max_policy_lag is not None
                return ByUpdates(
                    name,
                    source,
                    buffer_size=settings.hyperparameters.buffer_size,
                    max_lag=self.max_policy_lag,
                    most_steps=steps_left,
                    version=lambda: trainer.publisher.version,
                    is_due=trainer.is_due,
                )
