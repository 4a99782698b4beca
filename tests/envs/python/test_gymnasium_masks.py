"""Masks in all the forms that environments have them in; what looks like a mask and is not used is said."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv

from tests.envs.python.gymnasium_samples import action_batch
from tests.envs.python.pettingzoo_samples import Arena
from trajtrainer.core.steps import BoolArray, StepBatch
from trajtrainer.envs.in_process import InProcessEnvironment
from trajtrainer.envs.python.gymnasium_agents import AgentSpaces
from trajtrainer.envs.python.gymnasium_environment import GymnasiumEnvironment
from trajtrainer.envs.python.gymnasium_masks import AgentMasks
from trajtrainer.envs.python.gymnasium_vector import VectorEnvironment
from trajtrainer.envs.python.pettingzoo_environment import PettingZooEnvironment

EYES, CHOICES = spaces.Box(0, 1, (2,)), spaces.Discrete(3)
BITS, WIDE = spaces.MultiBinary(3), spaces.MultiBinary(5)
MASK = np.array([1, 0, 1], np.int8)
FORBIDDEN = [False, True, False]


class Masked(gymnasium.Env[Any, Any]):
    """Step t allows only choice t % 3. Episodes have ``length`` steps, and nothing is allowed after the last one."""

    def __init__(self, length: int = 4, *, nothing: bool = False) -> None:
        self.observation_space, self.action_space = EYES, CHOICES
        self.length, self.nothing, self.steps = length, nothing, 0

    def action_masks(self) -> Any:
        is_over = self.nothing or self.steps == self.length
        return np.zeros(3, np.bool_) if is_over else np.arange(3) == self.steps % 3

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        return np.zeros(2, np.float32), 0.0, self.steps == self.length, False, {}


def forbidden(environment: InProcessEnvironment, steps: int) -> list[BoolArray]:
    """The masks of the agents that decide, from a reset on."""
    environment.reset({})
    masks = []
    for _ in range(steps + 1):
        (event,) = environment.wait()
        batches: dict[str, StepBatch] = event.steps
        masks.append(np.concatenate([batch.mask[batch.num_terminal :] for batch in batches.values()]))
        actions = {
            name: action_batch(np.zeros((batch.num_decisions, 0)), np.zeros((batch.num_decisions, 1)))
            for name, batch in batches.items()
        }
        environment.send(0, actions)
    return masks


@pytest.mark.parametrize(
    ("space", "observation", "sensors"),
    [
        ({"observation": EYES, "action_mask": BITS}, {"action_mask": MASK}, ["observation"]),
        ({"observations": EYES, "action_mask": BITS}, {"action_mask": MASK}, ["action_mask", "observations"]),
        ({"real_obs": EYES, "action_mask": spaces.Box(0, 1, (3,))}, {"action_mask": MASK}, ["action_mask", "real_obs"]),
        (
            {"observation": EYES, "goal": EYES, "action_mask": spaces.MultiDiscrete([2, 2, 2])},
            {"action_mask": MASK},
            ["action_mask", "goal", "observation"],
        ),
        (
            {"seen": spaces.Dict({"board": EYES, "action_mask": BITS})},
            {"seen": {"board": np.zeros(2), "action_mask": MASK}},
            ["seen.action_mask", "seen.board"],
        ),
    ],
)
def test_a_mask_in_the_observation_is_obeyed_beside_any_keys(
    space: dict[str, Any], observation: dict[str, Any], sensors: list[str]
) -> None:
    """It stays the sensor that it was before it was obeyed, so that earlier runs and policies fit."""
    seen = {**{key: np.zeros(2) for key in space}, **observation}
    agent = AgentSpaces(spaces.Dict(space), CHOICES, "Env")
    assert sorted(spec.name for spec in agent.spec.observation_specs) == sensors
    assert len(agent.columns([seen])) == len(sensors)
    assert agent.masks.rows([seen, seen], [{}, {}]).tolist() == [FORBIDDEN, FORBIDDEN]
    batch = {key: np.stack([value, value]) for key, value in seen.items()} if "seen" not in seen else None
    if batch is not None:
        assert agent.masks.batch(batch, {}, 2).tolist() == [FORBIDDEN, FORBIDDEN]


def test_a_mask_may_be_one_for_each_part_of_an_action() -> None:
    tools = spaces.Dict({"aim": spaces.Box(-1, 1, (2,)), "go": spaces.Discrete(2), "use": spaces.MultiDiscrete([2, 3])})
    agent = AgentSpaces(EYES, tools, "Env")
    info = {"action_mask": {"use": (np.array([1, 0]), np.array([0, 1, 1])), "go": np.array([0, 1]), "aim": None}}
    expected = [True, False, False, True, True, False, False]
    assert agent.masks.rows([0], [info]).tolist() == [expected]
    pair = AgentSpaces(EYES, spaces.Tuple([tools["aim"], tools["go"]]), "Env")
    assert pair.masks.rows([0], [{"action_mask": (None, [0, 1])}]).tolist() == [[True, False]]
    batch = {"action_mask": {"go": np.array([[0, 1], [1, 1]])}, "_action_mask": np.array([True, True])}
    only = AgentSpaces(EYES, spaces.Dict({"go": spaces.Discrete(2)}), "Env")
    assert only.masks.batch(None, batch, 2).tolist() == [[True, False], [False, False]]


def test_the_method_of_an_environment_is_asked_through_wrappers_after_each_reset_and_step() -> None:
    envs = [gymnasium.wrappers.ClipReward(Masked(length), 0, 1) for length in (2, 3)]
    environment = GymnasiumEnvironment(envs, seed=1, name="Masked")
    allowed = [(~mask).argmax(axis=1).tolist() for mask in forbidden(environment, 3)]
    assert allowed == [[0, 0], [1, 1], [0, 2], [1, 0]]


def test_a_mask_in_the_info_is_used_instead_of_the_method() -> None:
    class Both(Masked):
        def step(self, action: Any) -> Any:
            return *super().step(action)[:4], {"action_mask": MASK}

    masks = forbidden(GymnasiumEnvironment([Both()], seed=1), 1)
    assert [mask.tolist() for mask in masks] == [[[False, True, True]], [FORBIDDEN]]


@pytest.mark.parametrize("kind", [SyncVectorEnv, AsyncVectorEnv])
@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_the_method_of_the_copies_of_a_vectorized_environment(
    kind: Callable[..., VectorEnv[Any, Any, Any]], mode: AutoresetMode, caplog: pytest.LogCaptureFixture
) -> None:
    """A copy whose episode is over allows nothing, and is not asked."""
    environment = VectorEnvironment(kind([lambda: Masked(2), lambda: Masked(3)], autoreset_mode=mode), seed=1, name="M")
    try:
        allowed = [(~mask).argmax(axis=1).tolist() for mask in forbidden(environment, 3)]
    finally:
        environment.close()
    assert allowed == (
        [[0, 0], [1, 1], [2], [0]] if mode is AutoresetMode.NEXT_STEP else [[0, 0], [1, 1], [0, 2], [1, 0]]
    )
    assert not caplog.records


def examined(masks: AgentMasks, *infos: dict[str, Any]) -> None:
    for info in infos:
        masks.rows([{}], [info])


@pytest.mark.parametrize(
    ("space", "action", "infos", "told"),
    [
        (
            {"eyes": EYES, "action_mask": WIDE},
            CHOICES,
            [{}, {}],
            "observation 'action_mask' with 5 numbers. A mask has 3",
        ),
        ({"eyes": EYES, "legal_moves": BITS}, CHOICES, [{}, {}], "the observation 'legal_moves' with 3 numbers"),
        ({"eyes": EYES, "mask": BITS}, CHOICES, [{}, {}], "the observation 'mask' with 3 numbers"),
        ({"eyes": EYES, "action_mask": BITS}, spaces.Box(-1, 1, (3,)), [{}], "Only discrete actions can be masked"),
        ({"eyes": EYES}, CHOICES, [{}, {"legal_actions": [0, 2]}, {}], r"info\['legal_actions'\]"),
        ({"eyes": EYES}, CHOICES, [{"action_masks": MASK}], r"info\['action_masks'\]"),
        ({"eyes": EYES}, spaces.Box(-1, 1, (3,)), [{"action_mask": MASK}], r"info\['action_mask'\]. Only discrete"),
        ({"eyes": EYES, "attention_mask": WIDE}, CHOICES, [{"mask": np.ones(9)}, {}], None),
        ({"eyes": EYES, "legal_moves": BITS}, CHOICES, [{"action_mask": MASK}, {}], None),
    ],
)
def test_what_looks_like_a_mask_and_is_not_used_is_said_once_at_the_start(
    space: dict[str, Any], action: Any, infos: Any, told: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    agent = AgentSpaces(spaces.Dict(space), action, "Env")
    examined(agent.masks, *infos, *infos)
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == (told is not None)
    if told is not None:
        assert messages[0].startswith("Env: the following cannot be used as an action mask: ")
        assert re.search(told, messages[0])


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("valid_action_mask", lambda: MASK, "valid_action_mask of the environment"),
        ("action_masks", lambda state: MASK, "action_masks of the environment"),
        ("action_masks", MASK, "action_masks of the environment"),
    ],
)
def test_similar_methods_of_an_environment_are_said_once_for_all_copies(
    name: str, value: Any, told: str, caplog: pytest.LogCaptureFixture
) -> None:
    class Silent(Masked):
        action_masks: Any = property()

    kind: Any = type("Odd", (Silent,), {name: property(lambda self: value)})
    envs = [kind(), kind()]
    assert not np.concatenate(forbidden(GymnasiumEnvironment(envs, seed=1), 3)).any()
    (message,) = [record.getMessage() for record in caplog.records]
    assert f"the following cannot be used as an action mask: {told}. A mask has 3 numbers" in message


class ArenaOfMasks(Arena):
    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        observations, infos = super().reset(seed, options)
        return observations, {agent: {"action_mask": np.zeros(3)} for agent in infos}


@pytest.mark.parametrize(
    "environment",
    [
        lambda: GymnasiumEnvironment([Masked(nothing=True), Masked(nothing=True)], seed=1, name="fighter"),
        lambda: VectorEnvironment(SyncVectorEnv([lambda: Masked(nothing=True)] * 2), seed=1, name="fighter"),
        lambda: PettingZooEnvironment([ArenaOfMasks({"fighter_0": 1, "fighter_1": 9})], seed=1),
    ],
)
def test_a_mask_that_forbids_everything_is_reported_once(
    environment: Callable[[], InProcessEnvironment], caplog: pytest.LogCaptureFixture
) -> None:
    forbidden(environment(), 3)
    (message,) = [record.getMessage() for record in caplog.records if "no reset" not in record.getMessage()]
    assert "fighter" in message
    assert "an action mask forbids all 3 choices of discrete branch 0" in message
