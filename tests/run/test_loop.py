"""When the loop lets trainers advance."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from trajtrainer.core.errors import CheckpointError, EnvironmentFaultError
from trajtrainer.core.timers import Timers
from trajtrainer.learning.trainers.episodes import ArrivedEpisodes
from trajtrainer.run.actors.statistics import ActorReport
from trajtrainer.run.behavior import Behavior
from trajtrainer.run.coupling import TrainerThread
from trajtrainer.run.curriculum import Curriculum
from trajtrainer.run.hooks import Hooks
from trajtrainer.run.loop import TrainingLoop
from trajtrainer.run.progress import ProgressView, RewardHistory
from trajtrainer.run.run import Run
from trajtrainer.run.signals import StopRequest
from trajtrainer.run.user_calls import UserCalls
from trajtrainer.settings.trainer import TrainerSettings


@dataclass
class Trainer:
    """Is due at every third message; is finished after seven."""

    context: SimpleNamespace = field(default_factory=lambda: SimpleNamespace(behavior="B", settings=TrainerSettings()))
    messages: int = 0
    advanced_at: list[int] = field(default_factory=list)
    step: int = 0
    first_step = 0
    should_still_train = True
    source: tuple[()] = ()
    learns_alone = False

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
    has_met_behaviors = True

    def collect(self, timeout_s: float) -> int:
        if self.trainer.messages == self.last:
            raise EnvironmentFaultError("The environment is gone.")
        self.trainer.messages += 1
        return 1

    def finish(self) -> None: ...


@dataclass
class Arrivals:
    """The learner of a behavior from which nothing has arrived."""

    recorded: ArrivedEpisodes = field(default_factory=ArrivedEpisodes)


class Lessons:
    def log_lessons(self) -> None: ...

    def reset_environment(self) -> None: ...

    def update(self, behaviors: object) -> None: ...


def loop(trainer: Any, collector: Any, stop: StopRequest) -> TrainingLoop:
    """A loop of one behavior that trains, without a folder to save to."""
    run = SimpleNamespace(
        is_training=True,
        stop=stop,
        timers=Timers(),
        folder=SimpleNamespace(writes=False),
        datasets={},
        curriculum=Curriculum(None, 0),
        actor_report=ActorReport(),
        rewards=RewardHistory(),
        hooks=Hooks(),
        calls=UserCalls(),
    )
    nothing = cast(Any, None)
    behavior = Behavior(
        cast(Run, run),
        learner=cast(Any, Arrivals()),
        trainer=trainer,
        episodes=nothing,
        checkpoints=nothing,
        replay=None,
    )
    if trainer.context.settings.threaded:
        behavior.thread = TrainerThread(trainer, run.timers, behavior.observe, run.calls)
    return TrainingLoop(behavior.run, {"B": behavior}, collector, cast(Any, Lessons()), ProgressView())


def train(made: TrainingLoop) -> None:
    with made.running():
        while made.step():
            pass


def run(trainer: Trainer, last: int = 100) -> None:
    train(loop(trainer, Messages(trainer, last), StopRequest()))


def test_a_trainer_advances_when_it_is_due_and_once_more_at_the_end() -> None:
    trainer = Trainer()
    run(trainer)
    assert trainer.advanced_at == [3, 6, 7]


def test_nothing_is_left_when_the_environment_fails() -> None:
    trainer = Trainer()
    with pytest.raises(EnvironmentFaultError):
        run(trainer, last=5)
    assert trainer.advanced_at == [3, 5]


def stepped(trainer: Trainer, passes: int, stop: StopRequest, failure: BaseException | None = None) -> TrainingLoop:
    """Return a loop that was left after some passes."""
    made = loop(trainer, Messages(trainer, 100), stop)
    with made.running():
        for _ in range(passes):
            assert made.step()
        if failure is not None:
            raise failure
    return made


def test_a_loop_that_is_left_early_stops_and_takes_in_the_rest() -> None:
    trainer, stop = Trainer(), StopRequest()
    made = stepped(trainer, 4, stop)
    assert trainer.advanced_at == [3, 4]
    assert stop.requested
    assert not made.step()
    assert trainer.messages == 4


@pytest.mark.parametrize("failure", [ZeroDivisionError(), KeyboardInterrupt(), SystemExit(3)])
def test_what_is_raised_between_two_passes_comes_out_behind_the_saving(
    monkeypatch: pytest.MonkeyPatch, failure: BaseException
) -> None:
    saved: list[int] = []
    trainer = Trainer()
    monkeypatch.setattr(TrainingLoop, "save", lambda _: saved.append(trainer.messages))
    with pytest.raises(type(failure)) as raised:
        stepped(trainer, 2, StopRequest(), failure)
    assert raised.value is failure
    assert saved == [2]


def test_weights_that_are_not_finite_are_not_saved_and_all_others_are(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Of four behaviors, one has such weights, and another cannot be written."""
    saved: list[str] = []

    def save_final(behavior: Behavior) -> None:
        if behavior.name == "full":
            raise CheckpointError("The disk is full.")
        saved.append(behavior.name)

    monkeypatch.setattr(Behavior, "save_final", save_final)
    weights, broken = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    torch.nn.init.constant_(broken.bias, float("inf"))
    made = loop(Trainer(), None, StopRequest())
    run = cast(Any, made.run)
    run.folder.writes, run.write_files = True, lambda: saved.append("files")
    made.behaviors.clear()
    for name, actor in (("first", weights), ("broken", broken), ("full", weights), ("last", weights)):
        (behavior,) = loop(Trainer(), None, StopRequest()).behaviors.values()
        trainer = cast(Any, behavior.trainer)
        trainer.actor, trainer.context.behavior = actor, name
        made.behaviors[name] = behavior
    with pytest.raises(CheckpointError, match="The disk is full"):
        made.save()
    assert saved == ["first", "last", "files"]
    assert made.is_saved
    assert "The weights of behavior 'broken' are not finite, so they are not saved." in caplog.text


def test_a_late_further_signal_leaves_without_saving(monkeypatch: pytest.MonkeyPatch) -> None:
    saved: list[int] = []
    monkeypatch.setattr(TrainingLoop, "save", lambda _: saved.append(1))
    stop = StopRequest()
    stop.is_aborted = True
    with pytest.raises(KeyboardInterrupt):
        stepped(Trainer(), 2, stop, KeyboardInterrupt())
    assert saved == []
