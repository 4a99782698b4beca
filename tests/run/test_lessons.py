"""What a change of lessons leads to."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest

from trajtrainer.core.steps import ActionBatch, EnvironmentEvent
from trajtrainer.envs.protocol import Parameters
from trajtrainer.learning.trainers.episodes import ArrivedEpisodes
from trajtrainer.policies.folder.status import TrainingStatus
from trajtrainer.run.behavior import Behavior
from trajtrainer.run.curriculum import Curriculum
from trajtrainer.run.lessons import LessonController
from trajtrainer.settings.environment import (
    CompletionCriteria,
    ConstantSettings,
    EnvironmentParameterSettings,
    Lesson,
    Measure,
)
from trajtrainer.settings.trainer import TrainerSettings


class Told:
    """An environment that remembers what it was told: (kind, parameter values)."""

    num_workers = 1

    def __init__(self) -> None:
        self.told: list[tuple[str, dict[str, float]]] = []

    def reset(self, parameters: Parameters) -> None:
        self.told.append(("reset", values(parameters)))

    def set_parameters(self, parameters: Parameters) -> None:
        self.told.append(("set", values(parameters)))

    def wait(self, timeout_s: float | None = None) -> list[EnvironmentEvent]:
        raise AssertionError

    def send(self, worker: int, actions: Mapping[str, ActionBatch]) -> None:
        raise AssertionError

    def close(self) -> None: ...

    def kill(self) -> None: ...


def values(parameters: Parameters) -> dict[str, float]:
    return {name: cast(ConstantSettings, sampler).value for name, sampler in parameters.items()}


class FakeTrainer:
    """What a lesson looks at, and clears."""

    def __init__(self, rewards: list[float], group_rewards: list[float] | None = None) -> None:
        self.step = 10
        self.context = SimpleNamespace(settings=TrainerSettings(max_steps=100))
        self.recorded = ArrivedEpisodes(100)
        self.recorded.rewards.extend(rewards)
        self.recorded.group_rewards.extend(group_rewards or [])


def parameter(*lessons: tuple[float, dict[str, Any] | None]) -> EnvironmentParameterSettings:
    return EnvironmentParameterSettings(
        [
            Lesson(
                f"lesson {value}", ConstantSettings(value=value), CompletionCriteria("Ball", **done) if done else None
            )
            for value, done in lessons
        ]
    )


class Rig:
    def __init__(
        self, lessons: dict[str, int] | None = None, *, require_reset: bool = False, measure: Measure = Measure.REWARD
    ) -> None:
        ends = {"threshold": 5.0, "require_reset": require_reset, "measure": measure}
        parameters = {
            "mass": parameter((1.0, ends), (2.0, None)),
            "size": parameter((7.0, None)),
        }
        self.environment, self.status = Told(), TrainingStatus(None)
        self.curriculum = Curriculum(parameters, 0)
        self.curriculum.restore({name: {"lesson_num": number} for name, number in (lessons or {}).items()})
        self.controller = LessonController(self.curriculum, self.environment, self.status)

    def update(self, **trainers: FakeTrainer) -> bool:
        return self.controller.update(
            {
                name: cast(
                    Behavior,
                    SimpleNamespace(trainer=trainer, learner=trainer, recorded_step=trainer.step, self_play=None),
                )
                for name, trainer in trainers.items()
            }
        )


@pytest.mark.parametrize("require_reset", [True, False])
def test_a_lesson_that_is_done(require_reset: bool) -> None:
    rig = Rig(require_reset=require_reset)
    assert rig.status.lesson("mass") == 0
    assert not rig.update(Ball=FakeTrainer([1.0]), Other=FakeTrainer([100.0]))
    assert rig.environment.told == []
    ball, other = FakeTrainer([20.0]), FakeTrainer([3.0])
    assert rig.update(Ball=ball, Other=other)
    assert rig.environment.told == [("reset" if require_reset else "set", {"mass": 2.0, "size": 7.0})]
    assert rig.status.lessons() == {"mass": {"lesson_num": 1}, "size": {"lesson_num": 0}}
    assert rig.controller.statistics() == {"Environment/Lesson Number/mass": 1.0, "Environment/Lesson Number/size": 0.0}
    assert (len(ball.recorded.rewards), len(other.recorded.rewards)) == (0, 0)


def test_a_lesson_that_is_done_by_what_groups_received() -> None:
    rig = Rig(measure=Measure.GROUP_REWARD)
    assert not rig.update(Ball=FakeTrainer([20.0], [1.0]))
    ball = FakeTrainer([0.0], [6.0])
    assert not rig.update(Ball=ball), "smoothed"
    assert rig.update(Ball=ball)
    assert rig.status.lesson("mass") == 1
    assert not ball.recorded.group_rewards


def test_group_rewards_of_agents_without_groups_are_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    rig, ball, grouped = Rig(measure=Measure.GROUP_REWARD), FakeTrainer([]), FakeTrainer([], [1.0])
    ball.recorded.num_episodes = 9
    rig.update(Ball=ball)
    grouped.recorded.num_episodes, grouped.recorded.has_groups = 100, True
    rig.update(Ball=grouped)
    assert not caplog.text
    ball.recorded.num_episodes = 10
    for _ in range(2):
        rig.update(Ball=ball, Other=ball)
    assert caplog.text.count("A lesson waits for group rewards of behavior 'Ball'") == 1
    assert len(caplog.records) == 1


def test_nothing_is_sent_or_cleared_in_the_last_lesson() -> None:
    rig = Rig({"mass": 1})
    ball = FakeTrainer([20.0])
    assert not rig.update(Ball=ball)
    assert rig.environment.told == []
    assert len(ball.recorded.rewards) == 1


def test_a_run_begins_with_the_lessons_that_were_saved() -> None:
    rig = Rig({"mass": 1})
    rig.controller.reset_environment()
    assert rig.environment.told == [("reset", {"mass": 2.0, "size": 7.0})]
    assert rig.status.lesson("mass") == 1
