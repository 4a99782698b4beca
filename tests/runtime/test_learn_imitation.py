"""Demonstrations and curiosity teach the toy task of ML-Agents' tests, with their settings and thresholds.

See docs/mlagents-behavior.md#built-in-tasks.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import trajtrainer
from tests.algos.test_cloning import recorded
from tests.nn.specs import behavior, vector
from trajtrainer.data.trajectory import PackedSteps
from trajtrainer.demos.writer import write_demo
from trajtrainer.spec import BehaviorSpec

STEP_REWARD, FINAL_REWARD, STEP_SIZE = -0.01, 1.06, 0.2
LENGTH = 5  # of an episode that goes straight to the goal
PPO = {"batch_size": 16, "buffer_size": 64, "learning_rate": 5e-3, "learning_rate_schedule": "constant"}


class Toy(gymnasium.Env[Any, Any]):
    """Go to 1 or -1, whichever fills the observation; see ``sim:Toy``."""

    def __init__(self, *, continuous: bool) -> None:
        self._continuous = continuous
        self.observation_space = spaces.Box(-1.0, 1.0, (1,))
        self.action_space = spaces.Box(-1.0, 1.0, (1,)) if continuous else spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._place, self._goal = 0.0, float(self.np_random.choice([-1.0, 1.0]))
        return self._seen(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        wanted = float(action[0]) if self._continuous else 2.0 * action - 1.0
        self._place += np.clip(wanted, -STEP_SIZE, STEP_SIZE)
        if abs(self._place) < 1.0 - 1e-6:
            return self._seen(), STEP_REWARD, False, False, {}
        return self._seen(), FINAL_REWARD * np.sign(self._place) * self._goal, True, False, {}

    def _seen(self) -> Any:
        return np.full(1, self._goal, np.float32)


def demonstrations(continuous: bool) -> tuple[PackedSteps, BehaviorSpec]:
    """Twenty episodes that go straight to the goal."""
    spec = behavior([vector(1)], int(continuous), () if continuous else (2,))
    goal = np.repeat(np.where(np.arange(20) % 2, 1.0, -1.0), LENGTH).astype(np.float32)
    last = np.tile(np.arange(LENGTH) == LENGTH - 1, 20)
    action = {"continuous": goal[:, None]} if continuous else {"discrete": (goal[:, None] > 0).astype(np.int32)}
    nothing = np.zeros(len(goal), np.float32)
    packed = recorded(
        spec,
        [goal[:, None]],
        (LENGTH,) * 20,
        **action,
        reward=np.where(last, FINAL_REWARD, STEP_REWARD).astype(np.float32),
        group_reward=nothing,
        group=nothing.astype(np.int32),
        done=last,
        interrupted=np.zeros(len(goal), np.bool_),
    )
    return packed, spec


def mean_of_last_episodes(folder: Path, *, continuous: bool, max_steps: int, **settings: Any) -> float:
    """Mean reward of the last episodes of a run in this process."""
    packed, spec = demonstrations(continuous)
    (folder / "demos").mkdir()
    write_demo(folder / "demos" / "expert.demo", packed, spec, "Toy")
    trainer = {
        "trainer_type": "ppo",
        "hyperparameters": PPO,
        "network_settings": {"hidden_units": 32, "num_layers": 1},
        "max_steps": max_steps,
        "summary_freq": 100,
        **settings,
    }
    result = trajtrainer.learn(
        {"behaviors": {"Toy": trainer}, "env_settings": {"seed": 7}, "torch_settings": {"device": "cpu"}},
        lambda: Toy(continuous=continuous),
        run_id="toy",
        results_dir=folder,
        verbose=False,
    )
    (behavior,) = result.behaviors.values()
    assert behavior.mean_reward is not None
    return behavior.mean_reward


@pytest.mark.parametrize("continuous", [False, True], ids=["discrete", "continuous"])
def test_gail_and_cloning(continuous: bool, tmp_path: Path) -> None:
    """Without the environment's reward, of which 500 steps would not be enough."""
    demo_path = str(tmp_path / "demos")
    reward = mean_of_last_episodes(
        tmp_path,
        continuous=continuous,
        max_steps=500,
        reward_signals={"gail": {"demo_path": demo_path, "encoding_size": 32}},
        behavioral_cloning={"demo_path": demo_path, "steps": 1000},
    )
    assert reward > 0.9


def test_curiosity_does_not_hinder(tmp_path: Path) -> None:
    network = {"hidden_units": 32, "num_layers": 1}
    reward = mean_of_last_episodes(
        tmp_path,
        continuous=True,
        max_steps=2000,
        reward_signals={"extrinsic": {}, "curiosity": {"strength": 0.01, "network_settings": network}},
    )
    assert reward > 0.9
