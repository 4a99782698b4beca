"""Recordings in the batches of SAC show a reward that chance does not find, and bad ones do no harm."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from numpy.typing import NDArray

import trajtrainer

SAC: dict[str, Any] = {
    "batch_size": 32,
    "buffer_init_steps": 100,
    "learning_rate": 3e-3,
    "tau": 0.05,
    "steps_per_update": 2,
    "init_entcoef": 0.002,
    "value_network": False,
    "layer_norm": True,
}
LEFT, RIGHT = 0, 1


class Corridor(gymnasium.Env[Any, Any]):
    """A reward of 1 at the right end; the agent starts at the left one. Observes its cell as one-hot."""

    def __init__(self, cells: int) -> None:
        self._cells = cells
        self.observation_space = spaces.Box(0.0, 1.0, (cells,))
        self.action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._place, self._steps = 0, 0
        return self._seen(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._place = max(0, self._place + (1 if action == RIGHT else -1))
        self._steps += 1
        arrived = self._place == self._cells - 1
        return self._seen(), float(arrived), arrived, self._steps == 2 * self._cells, {}

    def _seen(self) -> NDArray[np.float32]:
        seen = np.zeros(self._cells, np.float32)
        seen[self._place] = 1.0
        return seen


def record(path: Path, cells: int, chance_of_right: float, episodes: int) -> Path:
    """Episodes of a policy that goes right with this probability."""
    env, rng = Corridor(cells), np.random.default_rng(3)
    seen: list[Any] = []
    actions, rewards, done, interrupted, after, offset = [], [], [], [], [], [0]
    for _ in range(episodes):
        obs, terminated, truncated = env.reset()[0], False, False
        while not (terminated or truncated):
            seen.append(obs)
            actions.append([RIGHT if rng.random() < chance_of_right else LEFT])
            obs, reward, terminated, truncated, _ = env.step(actions[-1][0])
            rewards.append(reward)
            done.append(terminated or truncated)
            interrupted.append(truncated and not terminated)
        after.append(obs)
        offset.append(len(seen))
    columns: dict[str, Any] = {"obs.0": np.array(seen), "after.0": np.array(after)}
    columns |= {"continuous": np.zeros((len(seen), 0), np.float32), "branches": np.array([2])}
    columns |= {"discrete": np.array(actions, np.int32), "reward": np.array(rewards, np.float32)}
    columns |= {"done": np.array(done), "interrupted": np.array(interrupted), "offset": np.array(offset)}
    np.savez(path, **columns)
    return path


class Trained(NamedTuple):
    """The mean return of the last summary, and the steps of the whole run."""

    reward: float
    steps: int


def trained(folder: Path, cells: int, recording: Path | None = None, given: dict[str, Any] | None = None) -> Trained:
    recorded = {} if recording is None else {"demonstrations": {"demo_path": str(recording)}}
    trainer: dict[str, Any] = {
        "trainer_type": "sac",
        "hyperparameters": SAC,
        "network_settings": {"hidden_units": 32, "num_layers": 1},
        "reward_signals": {"extrinsic": {"gamma": 0.95}},
        "max_steps": 1000,
        "summary_freq": 100,
        **(given or {}),
    }
    trainer["hyperparameters"] = {**trainer["hyperparameters"], **recorded}
    result = trajtrainer.learn(
        {"behaviors": {"Corridor": trainer}, "env_settings": {"seed": 5}, "torch_settings": {"device": "cpu"}},
        lambda: Corridor(cells),
        run_id="run" if recording is None else recording.stem,
        results_dir=folder,
        verbose=False,
    )
    (behavior,) = result.behaviors.values()
    assert behavior.mean_reward is not None
    return Trained(behavior.mean_reward, behavior.steps)


def test_two_episodes_show_where_a_rare_reward_is(tmp_path: Path) -> None:
    expert = record(tmp_path / "expert.npz", cells=20, chance_of_right=1.0, episodes=2)
    assert trained(tmp_path, 20, expert).reward > 0.95
    assert trained(tmp_path, 20, None).reward < 0.3


@pytest.mark.parametrize("chance_of_right", [0.5, 0.0], ids=["random", "opposite"])
def test_bad_episodes_do_no_harm(tmp_path: Path, chance_of_right: float) -> None:
    """The reward without a recording is 1."""
    bad = record(tmp_path / "bad.npz", cells=6, chance_of_right=chance_of_right, episodes=5)
    assert trained(tmp_path, cells=6, recording=bad, given={"stop": {"reward": 0.95}}).reward >= 0.95
