"""Any BaseEnv as workers: what it says arrives unchanged, in columns."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from mlagents_envs.base_env import (
    ActionSpec,
    ActionTuple,
    BaseEnv,
    BehaviorSpec,
    DecisionSteps,
    DimensionProperty,
    ObservationSpec,
    ObservationType,
    TerminalSteps,
)

from tests.envs.python.gymnasium_samples import action_batch
from trajtrainer.core.errors import InvalidDataError
from trajtrainer.core.spec import observation_kind
from trajtrainer.core.steps import WORKER_SHIFT, EnvironmentEvent
from trajtrainer.envs.python.base_env import BaseEnvEnvironment, BaseEnvWorker, TrainerChannels
from trajtrainer.settings.environment import ConstantSettings, EngineSettings

NONE, MOVES, UNSPECIFIED = (
    DimensionProperty.NONE,
    DimensionProperty.TRANSLATIONAL_EQUIVARIANCE,
    DimensionProperty.UNSPECIFIED,
)


def sensor(*shape: int, properties: tuple[DimensionProperty, ...] | None = None) -> ObservationSpec:
    return ObservationSpec(shape, properties or (NONE,) * len(shape), ObservationType.DEFAULT, f"sensor {shape}")


def deciding(
    ids: list[int], *obs: Any, reward: list[float], mask: Any = None, group: int = 0, group_reward: float = 0.0
) -> DecisionSteps:
    return DecisionSteps(
        [np.asarray(each, np.float32) for each in obs],
        np.array(reward, np.float32),
        np.array(ids, np.int32),
        mask,
        np.full(len(ids), group, np.int32),
        np.full(len(ids), group_reward, np.float32),
    )  # type: ignore[no-untyped-call]


def ended(ids: list[int], *obs: Any, reward: list[float], interrupted: list[bool]) -> TerminalSteps:
    return TerminalSteps(
        [np.asarray(each, np.float32) for each in obs],
        np.array(reward, np.float32),
        np.array(interrupted, np.bool_),
        np.array(ids, np.int32),
        np.zeros(len(ids), np.int32),
        np.zeros(len(ids), np.float32),
    )  # type: ignore[no-untyped-call]


Script = list[dict[str, tuple[DecisionSteps, TerminalSteps]]]


class Scripted(BaseEnv):
    """Says what its script says, step after step; behaviors are known from their first step on."""

    def __init__(self, specs: dict[str, BehaviorSpec], script: Script) -> None:
        self.specs = specs
        self.script = script
        self.known: dict[str, BehaviorSpec] = {}
        self.place = 0
        self.log: list[Any] = []

    @property
    def behavior_specs(self) -> Mapping[str, BehaviorSpec]:
        return self.known

    def reset(self) -> None:
        self.log.append("reset")
        self.place = 0
        self._look()

    def step(self) -> None:
        self.log.append("step")
        self.place += 1
        self._look()

    def close(self) -> None:
        self.log.append("close")

    def get_steps(self, behavior_name: str) -> tuple[DecisionSteps, TerminalSteps]:
        spec = self.specs[behavior_name]
        empty = DecisionSteps.empty(spec), TerminalSteps.empty(spec)
        return self.script[self.place].get(behavior_name, empty)

    def set_actions(self, behavior_name: str, action: ActionTuple) -> None:
        self.log.append((behavior_name, action.continuous.tolist(), action.discrete.tolist()))

    def set_action_for_agent(self, behavior_name: str, agent_id: int, action: ActionTuple) -> None:
        raise AssertionError("not used")

    def _look(self) -> None:
        self.known |= {name: self.specs[name] for name in self.script[self.place]}


RUNNER = BehaviorSpec([sensor(2)], ActionSpec(1, (2, 3)))
NO_END = ended([], np.zeros((0, 2)), reward=[], interrupted=[])
MASK = [np.array([[True, False], [False, False]]), np.array([[False, False, True], [False, True, False]])]


@pytest.mark.parametrize(
    ("part", "text", "what"),
    [("reward", np.array(["1"]), "reward"), ("obs", [np.array([["1", "2"]])], "observation 0")],
)
def test_text_is_no_number(part: str, text: Any, what: str) -> None:
    first = deciding([7], [[1, 2]], reward=[0])
    setattr(first, part, text)
    environment = BaseEnvEnvironment([BaseEnvWorker(Scripted({"Runner": RUNNER}, [{"Runner": (first, NO_END)}]))])
    environment.reset({})
    with pytest.raises(InvalidDataError, match=f"Behavior 'Runner': the environment's {what} is unusable: found '1'"):
        environment.wait()


def test_a_mask_that_forbids_everything_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    blocked = [MASK[0], np.array([[True, True, True], [False, True, False]])]
    steps: Script = [
        {"Runner": (deciding([7, 9], [[1, 2], [3, 4]], reward=[0, 0], mask=mask, group=3), NO_END)}
        for mask in (MASK, blocked, blocked)
    ]
    environment = BaseEnvEnvironment([BaseEnvWorker(Scripted({"Runner": RUNNER}, steps))])
    environment.reset({})
    for _ in steps:
        environment.wait()
        environment.send(0, {"Runner": action_batch(np.zeros((2, 1)), np.zeros((2, 2)))})
    (record,) = caplog.records
    assert "Behavior 'Runner': an action mask forbids all 3 choices of discrete branch 1" in record.getMessage()


@pytest.mark.parametrize("nothing", [[], [np.zeros((0, 2), np.float32)]], ids=["empty lists", "empty arrays"])
def test_steps_without_agents_may_be_empty_in_any_form(nothing: list[Any]) -> None:
    """ML-Agents' own environments give lists without arrays where no agent ended, or none decides."""
    none_ended = TerminalSteps(nothing, [], [], [], [], [])  # type: ignore[no-untyped-call]
    none_deciding = DecisionSteps(nothing, [], [], [], [], [])  # type: ignore[no-untyped-call]
    steps: Script = [
        {"Runner": (deciding([7, 9], [[1, 2], [3, 4]], reward=[0, 0.5], mask=MASK, group=3), none_ended)},
        {"Runner": (none_deciding, ended([9], [[5, 6]], reward=[2], interrupted=[True]))},
        {"Runner": (none_deciding, none_ended)},
    ]
    environment = BaseEnvEnvironment([BaseEnvWorker(Scripted({"Runner": RUNNER}, steps))])
    environment.reset({})
    (event,) = environment.wait()
    batch = event.steps["Runner"]
    assert (batch.agent.tolist(), batch.num_terminal, batch.interrupted.tolist()) == ([7, 9], 0, [])
    assert (batch.obs[0].tolist(), batch.reward.tolist()) == ([[1, 2], [3, 4]], [0, 0.5])
    assert (batch.group.tolist(), batch.group_reward.tolist()) == ([3, 3], [0, 0])
    assert batch.mask.tolist() == np.concatenate(MASK, axis=1).tolist()
    environment.send(0, {})
    (event,) = environment.wait()
    batch = event.steps["Runner"]
    assert (batch.agent.tolist(), batch.num_terminal, batch.interrupted.tolist()) == ([9], 1, [True])
    assert (batch.obs[0].tolist(), batch.reward.tolist()) == ([[5, 6]], [2])
    columns = (batch.agent, batch.group, batch.reward, batch.group_reward, batch.interrupted)
    assert [str(column.dtype) for column in columns] == ["int64", "int32", "float32", "float32", "bool"]
    environment.send(0, {})
    assert environment.wait()[0].steps == {}


def script() -> Script:
    return [
        {"Runner?team=1": (deciding([7, 9], [[1, 2], [3, 4]], reward=[0, 0]), NO_END)},
        {
            "Runner?team=1": (
                deciding([9, 7], [[5, 6], [7, 8]], reward=[1.5, 2.5], mask=MASK, group=3, group_reward=0.25),
                ended([7], [[9, 10]], reward=[-1], interrupted=[True]),
            )
        },
        {"Eye": (deciding([1], np.zeros((1, 2)), reward=[0]), NO_END)},
    ]


def environment(**changes: Any) -> tuple[BaseEnvEnvironment, Scripted]:
    env = Scripted({"Runner?team=1": RUNNER, "Eye": RUNNER}, script())
    return BaseEnvEnvironment([BaseEnvWorker(env, **changes)]), env


def begin(environment: BaseEnvEnvironment) -> EnvironmentEvent:
    environment.reset({})
    (event,) = environment.wait()
    return event


def test_the_columns_are_what_the_environment_said() -> None:
    adapter, env = environment()
    event = begin(adapter)
    assert event.is_reset
    assert event.new_specs == {"Runner?team=1": RUNNER}
    assert event.steps["Runner?team=1"].agent.tolist() == [7, 9]
    actions = action_batch([[0.5], [-0.5]], [[1, 2], [0, 1]])
    adapter.send(0, {"Runner?team=1": actions})
    (event,) = adapter.wait()
    batch = event.steps["Runner?team=1"]
    assert env.log == ["reset", ("Runner?team=1", [[0.5], [-0.5]], [[1, 2], [0, 1]]), "step"]
    assert not event.is_reset
    assert batch.num_terminal == 1
    assert batch.agent.tolist() == [7, 9, 7]
    assert batch.obs[0].tolist() == [[9, 10], [5, 6], [7, 8]]
    assert batch.reward.tolist() == [-1, 1.5, 2.5]
    assert batch.interrupted.tolist() == [True]
    assert batch.group.tolist() == [0, 3, 3]
    assert batch.group_reward.tolist() == [0, 0.25, 0.25]
    assert batch.mask.astype(int).tolist() == [[0] * 5, [1, 0, 0, 0, 1], [0, 0, 0, 1, 0]]


def test_behaviors_may_appear_later_and_be_silent() -> None:
    adapter, _ = environment()
    begin(adapter)
    for _ in range(2):
        adapter.send(0, {})
        (event,) = adapter.wait()
    assert list(event.steps) == ["Eye"]
    assert list(event.new_specs) == ["Eye"]


def test_several_environments_are_several_workers() -> None:
    envs = [Scripted({"Runner?team=1": RUNNER, "Eye": RUNNER}, script()) for _ in range(2)]
    adapter = BaseEnvEnvironment([BaseEnvWorker(env) for env in envs])
    assert adapter.num_workers == 2
    adapter.reset({})
    first, second = adapter.wait()
    assert (first.worker, second.worker) == (0, 1)
    assert list(first.new_specs) == list(second.new_specs)
    assert second.steps["Runner?team=1"].agent.tolist() == [1 << WORKER_SHIFT | 7, 1 << WORKER_SHIFT | 9]
    adapter.send(1, {"Runner?team=1": action_batch([[0], [0]], [[0, 0], [0, 0]])})
    (event,) = adapter.wait()
    assert event.worker == 1
    assert envs[0].log == ["reset"]
    adapter.close()
    assert [env.log[-1] for env in envs] == ["close", "close"]


@pytest.mark.parametrize("properties", [(MOVES, MOVES, NONE), (UNSPECIFIED,) * 3])
def test_pictures_with_channels_last_are_turned(properties: tuple[DimensionProperty, ...]) -> None:
    picture = np.arange(2 * 4 * 5 * 3, dtype=np.float32).reshape(2, 4, 5, 3)
    spec = BehaviorSpec([sensor(4, 5, 3, properties=properties)], ActionSpec(1, ()))
    steps = deciding([1, 2], picture, reward=[0, 0]), TerminalSteps.empty(spec)
    adapter = BaseEnvEnvironment([BaseEnvWorker(Scripted({"Eye": spec}, [{"Eye": steps}]))])
    event = begin(adapter)
    (seen,) = event.new_specs["Eye"].observation_specs
    assert seen.shape == (3, 4, 5)
    assert observation_kind(seen)
    np.testing.assert_array_equal(event.steps["Eye"].obs[0], picture.transpose(0, 3, 1, 2))


def test_pictures_with_channels_first_stay() -> None:
    spec = BehaviorSpec([sensor(3, 4, 5, properties=(NONE, MOVES, MOVES))], ActionSpec(1, ()))
    picture = np.arange(60, dtype=np.float32).reshape(1, 3, 4, 5)
    steps = deciding([1], picture, reward=[0]), TerminalSteps.empty(spec)
    event = begin(BaseEnvEnvironment([BaseEnvWorker(Scripted({"Eye": spec}, [{"Eye": steps}]))]))
    np.testing.assert_array_equal(event.steps["Eye"].obs[0], picture)


def test_columns_are_copies() -> None:
    adapter, env = environment()
    event = begin(adapter)
    env.script[0]["Runner?team=1"][0].obs[0][:] = -1
    assert event.steps["Runner?team=1"].obs[0].tolist() == [[1, 2], [3, 4]]


@pytest.mark.parametrize(
    ("obs", "reward", "message"),
    [
        ([[np.nan, 0]], 0.0, "nan as an observation: behavior 'Runner', agent 1"),
        ([[0, 0]], np.inf, "inf as a reward: behavior 'Runner', agent 1"),
        ([[0, 0, 0]], 0.0, r"sent the shape \(3,\), but announced \(2,\)"),
    ],
)
def test_what_cannot_be_learned_from_is_refused(obs: Any, reward: float, message: str) -> None:
    steps = deciding([1], obs, reward=[reward]), TerminalSteps.empty(RUNNER)
    adapter = BaseEnvEnvironment([BaseEnvWorker(Scripted({"Runner": RUNNER}, [{"Runner": steps}]))])
    with pytest.raises(InvalidDataError, match=message):
        begin(adapter)


def test_parameters_go_through_the_channels() -> None:
    channels = TrainerChannels(EngineSettings())
    adapter, _ = environment(channels=channels)
    adapter.reset({"size": ConstantSettings(value=2.5)})
    (message,) = channels.parameters.message_queue
    assert b"size" in bytes(message)
    assert len(channels.all()) == 3


def test_parameters_without_channels_are_dropped_with_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    adapter, _ = environment()
    with caplog.at_level(logging.WARNING):
        adapter.reset({"size": ConstantSettings(value=2.5)})
        adapter.set_parameters({"size": ConstantSettings(value=3.5)})
    (record,) = caplog.records
    assert "Scripted does not accept environment parameters (not sent: size" in record.getMessage()
