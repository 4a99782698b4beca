"""Demonstrations and curiosity teach the toy task of ML-Agents' tests, with their settings and thresholds.

See docs/explanation/mlagents-behavior.md#built-in-tasks.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import trajtrainer
from tests.experience.recordings.making import write_demo
from tests.learning.algos.test_cloning import recorded
from tests.learning.nn.specs import behavior, camera, vector
from tests.run.runs import FinishedRun
from trajtrainer.core.spec import BehaviorSpec
from trajtrainer.experience.trajectory import PackedSteps

STEP_REWARD, FINAL_REWARD, STEP_SIZE = -0.01, 1.06, 0.2
LENGTH = 5  # of an episode that goes straight to the goal
CONSTANT = {"learning_rate": 5e-3, "learning_rate_schedule": "constant"}
PPO: dict[str, Any] = {
    "trainer_type": "ppo",
    "hyperparameters": {**CONSTANT, "batch_size": 16, "buffer_size": 64},
    "network_settings": {"hidden_units": 32, "num_layers": 1},
}
OFF_POLICY = {**CONSTANT, "batch_size": 8, "buffer_size": 5000, "buffer_init_steps": 100, "tau": 0.01}
SAC: dict[str, Any] = {
    "trainer_type": "sac",
    "hyperparameters": {**OFF_POLICY, "init_entcoef": 0.01},
    "network_settings": {"hidden_units": 16, "num_layers": 1},
}


class Toy(gymnasium.Env[Any, Any]):
    """Go to 1 or -1, whichever fills the observation; see ``sim:Toy``."""

    def __init__(self, *, continuous: bool, picture: bool = False, step_size: float = STEP_SIZE) -> None:
        self._continuous, self._picture, self._step_size = continuous, picture, step_size
        self.observation_space = spaces.Box(0, 255, (20, 20, 3), np.uint8) if picture else spaces.Box(-1.0, 1.0, (1,))
        self.action_space = spaces.Box(-1.0, 1.0, (1,)) if continuous else spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._place, self._goal = 0.0, float(self.np_random.choice([-1.0, 1.0]))
        return self._seen(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        wanted = float(action[0]) if self._continuous else 2.0 * action - 1.0
        self._place += np.clip(wanted, -self._step_size, self._step_size)
        if abs(self._place) < 1.0 - 1e-6:
            return self._seen(), STEP_REWARD, False, False, {}
        return self._seen(), FINAL_REWARD * np.sign(self._place) * self._goal, True, False, {}

    def _seen(self) -> Any:
        return (
            np.full((20, 20, 3), 255 * (self._goal > 0), np.uint8)
            if self._picture
            else np.full(1, self._goal, np.float32)
        )


def demonstrations(continuous: bool, picture: bool) -> tuple[PackedSteps, BehaviorSpec]:
    """Twenty episodes that go straight to the goal."""
    spec = behavior([camera(3, 20, 20) if picture else vector(1)], int(continuous), () if continuous else (2,))
    goal = np.repeat(np.where(np.arange(20) % 2, 1.0, -1.0), LENGTH).astype(np.float32)
    last = np.tile(np.arange(LENGTH) == LENGTH - 1, 20)
    action = {"continuous": goal[:, None]} if continuous else {"discrete": (goal[:, None] > 0).astype(np.int32)}
    nothing = np.zeros(len(goal), np.float32)
    seen = np.full((20, 20, 3, len(goal)), 255 * (goal > 0), np.uint8).T if picture else goal[:, None]
    packed = recorded(
        spec,
        [seen],
        (LENGTH,) * 20,
        **action,
        reward=np.where(last, FINAL_REWARD, STEP_REWARD).astype(np.float32),
        group_reward=nothing,
        group=nothing.astype(np.int32),
        done=last,
        interrupted=np.zeros(len(goal), np.bool_),
    )
    return packed, spec


def assert_learned(
    folder: Path,
    *,
    continuous: bool,
    max_steps: int,
    picture: bool = False,
    step_size: float = STEP_SIZE,
    **settings: Any,
) -> None:
    """At least 20 episodes in a row of a run in this process reach a mean reward of 0.9."""
    packed, spec = demonstrations(continuous, picture)
    (folder / "demos").mkdir()
    write_demo(folder / "demos" / "expert.demo", packed, spec, "Toy")
    trainer = {
        "max_steps": max_steps,
        "summary_freq": 100,
        "stop": {"reward": 0.9},
        **PPO,
        **settings,
    }
    result = trajtrainer.learn(
        {"behaviors": {"Toy": trainer}, "env_settings": {"seed": 7}, "torch_settings": {"device": "cpu"}},
        lambda: Toy(continuous=continuous, picture=picture, step_size=step_size),
        run_id="toy",
        results_dir=folder,
        verbose=False,
    )
    FinishedRun(0, "", result.run_folder).assert_reached("Toy")


def assert_imitated(folder: Path, *, gail: dict[str, Any], cloning: dict[str, Any], **settings: Any) -> None:
    """The same without the environment's reward."""
    recorded_in = {"demo_path": str(folder / "demos")}
    signals = {"gail": {**recorded_in, "encoding_size": 32, **gail}}
    assert_learned(folder, reward_signals=signals, behavioral_cloning={**recorded_in, **cloning}, **settings)


@pytest.mark.parametrize("continuous", [False, True], ids=["discrete", "continuous"])
def test_gail_and_cloning(continuous: bool, tmp_path: Path) -> None:
    """500 steps would not be enough of the environment's reward."""
    assert_imitated(tmp_path, continuous=continuous, max_steps=500, gail={}, cloning={"steps": 1000})


def test_gail_and_cloning_by_sac(tmp_path: Path) -> None:
    """With ML-Agents' 36 gradient steps of cloning per gradient step it takes ten times as long."""
    cloning = {"steps": 1000, "samples_per_update": 8}
    assert_imitated(tmp_path, continuous=True, max_steps=500, gail={}, cloning=cloning, **SAC)


def test_gail_and_cloning_of_pictures(tmp_path: Path) -> None:
    given: dict[str, Any] = {"picture": True, "step_size": 0.3, "max_steps": 1000}
    slower = {**PPO, "hyperparameters": {**PPO["hyperparameters"], "learning_rate": 1e-3}}
    assert_imitated(tmp_path, continuous=False, gail={"gamma": 0.8}, cloning={"steps": 1500}, **given, **slower)


def test_curiosity_does_not_hinder(tmp_path: Path) -> None:
    network = {"hidden_units": 32, "num_layers": 1}
    assert_learned(
        tmp_path,
        continuous=True,
        max_steps=2000,
        reward_signals={"extrinsic": {}, "curiosity": {"strength": 0.01, "network_settings": network}},
    )
