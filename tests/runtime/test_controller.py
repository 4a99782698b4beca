"""When the loop lets trainers advance."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import cast

import pytest

from trajtrainer.errors import EnvironmentFaultError
from trajtrainer.runtime.collector import Collector
from trajtrainer.runtime.controller import Controller
from trajtrainer.runtime.lessons import LessonKeeper
from trajtrainer.runtime.signals import StopRequest
from trajtrainer.settings.trainer import TrainerSettings
from trajtrainer.timers import Timers
from trajtrainer.trainers.trainer import Trainer as RealTrainer


@dataclass
class Trainer:
    """Is due at every third message; is finished after seven."""

    context: SimpleNamespace = field(default_factory=lambda: SimpleNamespace(settings=TrainerSettings()))
    messages: int = 0
    advanced_at: list[int] = field(default_factory=list)

    @property
    def has_enough(self) -> bool:
        return self.messages == 7

    def is_due(self) -> bool:
        return self.messages % 3 == 0

    def advance(self) -> bool:
        self.advanced_at.append(self.messages)
        return True


@dataclass
class Messages:
    """A collector; fails after ``last`` messages."""

    trainer: Trainer
    last: int

    def collect(self, timeout_s: float) -> int:
        if self.trainer.messages == self.last:
            raise EnvironmentFaultError("The environment is gone.")
        self.trainer.messages += 1
        return 1


class Lessons:
    def log_lessons(self) -> None: ...

    def reset_environment(self) -> None: ...

    def update(self, trainers: object) -> None: ...


def run(trainer: Trainer, last: int = 100) -> None:
    Controller(
        cast(Collector, Messages(trainer, last)),
        {"B": cast(RealTrainer, trainer)},
        cast(LessonKeeper, Lessons()),
        StopRequest(),
        Timers(),
        training=True,
        on_step=lambda: None,
    ).run()


def test_a_trainer_advances_when_it_is_due_and_once_more_at_the_end() -> None:
    trainer = Trainer()
    run(trainer)
    assert trainer.advanced_at == [3, 6, 7]


def test_nothing_is_left_when_the_environment_fails() -> None:
    trainer = Trainer()
    with pytest.raises(EnvironmentFaultError):
        run(trainer, last=5)
    assert trainer.advanced_at == [3, 5]
