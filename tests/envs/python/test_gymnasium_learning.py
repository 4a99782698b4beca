"""The configurations in ``config/gym`` train what they say they train."""

from __future__ import annotations

import importlib
import shlex
from pathlib import Path
from typing import Any

import gymnasium
import pytest
import yaml
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import trajtrainer
from trajtrainer.settings.schemes import ENVIRONMENTS
from trajtrainer.settings.yaml.convert import load

CONFIG = Path(__file__).resolve().parents[3] / "config" / "gym"


def rewards_of(result: trajtrainer.LearnResult, behavior: str) -> list[float]:
    """Mean reward of each summary."""
    events = EventAccumulator(str(result.run_folder / behavior), size_guidance={"scalars": 0})
    events.Reload()
    return [event.value for event in events.Scalars("Environment/Cumulative Reward")]


def short(name: str, behavior: str, **changes: Any) -> dict[str, Any]:
    given: dict[str, Any] = yaml.safe_load((CONFIG / f"{name}.yaml").read_text())
    given["behaviors"][behavior] |= changes
    given["torch_settings"] = {"device": "cpu"}
    return given


@pytest.mark.slow
def test_cartpole_is_solved(tmp_path: Path) -> None:
    """475 is what counts as solved, with the actions of training: as the mean of twenty episodes or more."""
    given = short("CartPole", "CartPole-v1", stop={"reward": 475})
    result = trajtrainer.learn(given, results_dir=tmp_path, seed=1, verbose=False).behaviors["CartPole-v1"]
    assert result.steps < 100_000
    assert result.mean_reward is not None
    assert result.mean_reward >= 450, "the last of the summaries that were enough together"


@pytest.mark.slow
def test_pendulum_learns(tmp_path: Path) -> None:
    """It begins to swing up: doing nothing gives about -1200. It is solved after 70,000 steps."""
    result = trajtrainer.learn(
        short("Pendulum", "Pendulum-v1", max_steps=30000), results_dir=tmp_path, seed=1, verbose=False
    )
    rewards = rewards_of(result, "Pendulum-v1")
    assert rewards[0] < -1150
    assert rewards[-1] > -1000


@pytest.mark.parametrize("path", sorted(CONFIG.glob("*.yaml")), ids=lambda path: path.stem)
def test_configurations_are_whole(path: Path) -> None:
    given = load(path.read_text(), path.name)
    (name,) = given.behaviors
    scheme, *modules, env_id = (given.env_settings.env_path or "").split(":")
    assert scheme in ENVIRONMENTS
    assert env_id == name
    for each in modules:
        importlib.import_module(each) if each.startswith("trajtrainer") else pytest.importorskip(each)
    assert scheme != "gym" or name in gymnasium.registry
    for wrapper in given.env_settings.wrappers or ():
        module, _, attribute = shlex.split(wrapper)[0].partition(":")
        assert hasattr(importlib.import_module(module), attribute)
