"""``config/sac`` trains the Gymnasium tasks it is made for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import yaml

import trajtrainer
from trajtrainer.experience.npz import read_columns
from trajtrainer.settings.yaml.convert import load

CONFIG = Path(__file__).resolve().parents[2] / "config" / "sac"
FILES = [path for path in sorted(CONFIG.glob("*.yaml")) if "env_path: gym:" in path.read_text()]


class Watched(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Ends an episode where the pendulum swings fast, and keeps what was taken and given."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        self.steps: dict[str, list[Any]] = {name: [] for name in ("seen", "did", "paid", "fell", "cut", "then")}

    def reset(self, **options: Any) -> Any:
        self.seen, info = self.env.reset(**options)
        return self.seen, info

    def step(self, action: Any) -> Any:
        then, paid, _, cut, info = self.env.step(action)
        fell = bool(abs(then[2]) > 4.0)
        row = (self.seen, np.array(action), paid, fell, cut and not fell, then)
        for values, value in zip(self.steps.values(), row, strict=True):
            values.append(value)
        self.seen = then
        return then, paid, fell, cut, info


def test_a_run_keeps_every_step_as_the_environment_took_and_gave_it(tmp_path: Path) -> None:
    """By policies that change meanwhile, over whole and cut episodes, in the environment's order."""
    settings = yaml.safe_load((CONFIG / "Pendulum-baselines.yaml").read_text())
    (behavior,) = settings["behaviors"].values()
    behavior["hyperparameters"] = {"batch_size": 8, "learning_starts": 100, "save_replay_buffer": True}
    behavior |= {"max_steps": 600, "network_settings": {"hidden_units": 8}}
    watched = Watched(gymnasium.make("Pendulum-v1", max_episode_steps=40))
    result = trajtrainer.learn(settings, lambda: watched, results_dir=tmp_path, run_id="run", seed=3, verbose=False)
    (file,) = result.run_folder.glob("*/last_replay_buffer.npz")
    names = ["start", "obs.0", "continuous", "reward", "terminated", "interrupted"]
    kept = read_columns(file, names)
    at = kept["start"]
    assert len(at) >= 600 - 16
    env = {name: np.array(values[: len(at)], np.float32) for name, values in watched.steps.items()}
    assert env["fell"].any()
    assert env["cut"].any()
    np.testing.assert_array_equal(kept["obs.0"][at], env["seen"])
    np.testing.assert_array_equal(kept["obs.0"][at + 1], env["then"])
    np.testing.assert_array_equal(kept["continuous"][at], env["did"] / 2.0)  # the largest torque
    np.testing.assert_array_equal(kept["reward"][at], env["paid"])
    np.testing.assert_array_equal(kept["terminated"][at], env["fell"])
    np.testing.assert_array_equal(kept["interrupted"][at], env["cut"])


@pytest.mark.slow
def test_pendulum_is_swung_up(tmp_path: Path) -> None:
    """-200 within 20,000 steps is wanted; less than half of them are enough. Doing nothing scores about -1200."""
    settings = yaml.safe_load((CONFIG / "Pendulum.yaml").read_text())
    settings["behaviors"]["Pendulum-v1"]["max_steps"] = 8000
    settings["torch_settings"] = {"device": "cpu"}
    returns: list[float] = []
    with trajtrainer.Training(settings, results_dir=tmp_path, run_id="run", seed=1, verbose=False) as training:
        for epoch in training.epochs(steps=200):
            if epoch.behavior.episodes.number:
                returns.append(epoch.behavior.episodes.returns.mean)
            if np.mean(returns[-5:]) > -200:
                break
    assert len(returns) > 5
    assert np.mean(returns[-5:]) > -200, returns


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_configurations_are_whole(path: Path) -> None:
    given = load(path.read_text(), path.name)
    (name,) = given.behaviors
    assert given.env_settings.env_path == f"gym:{name}"
    assert name in gymnasium.registry
