"""Environments of others in the form in which the field compares algorithms."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest

import trajtrainer.gymnasium  # noqa: F401  # registers the ids
from trajtrainer.envs.protocol import LogFolder
from trajtrainer.envs.select import make_environment
from trajtrainer.settings.environment import EnvironmentSettings
from trajtrainer.settings.run import RunSettings


@pytest.mark.parametrize(
    ("variant", "original", "hidden"),
    [("CartPoleNoVel-v1", "CartPole-v1", [1, 3]), ("PendulumNoVel-v1", "Pendulum-v1", [2])],
)
def test_velocities_are_hidden_and_nothing_else(variant: str, original: str, hidden: list[int]) -> None:
    ours, theirs = gymnasium.make(variant), gymnasium.make(original)
    seen, full = ours.reset(seed=3)[0], theirs.reset(seed=3)[0]
    for _ in range(5):
        assert not seen[hidden].any()
        assert full[hidden].all()
        np.testing.assert_array_equal(np.delete(seen, hidden), np.delete(full, hidden))
        action = theirs.action_space.sample()
        (seen, reward, *ends), (full, other, *others) = ours.step(action)[:4], theirs.step(action)[:4]
        assert (reward, ends) == (other, others)


def test_a_grid_is_a_vector() -> None:
    pytest.importorskip("minigrid")
    env = gymnasium.make("MiniGrid-DoorKey-5x5-Flat-v0")

    assert env.reset(seed=1)[0].shape == env.observation_space.shape == (2835,)


@pytest.mark.parametrize("module", ["trajtrainer.gymnasium", "trajtrainer.envs.gymnasium_environment"])
def test_configurations_name_a_public_module_and_those_of_0_1_0_its_former_one(module: str) -> None:
    settings = RunSettings(env_settings=EnvironmentSettings(env_path=f"gym:{module}:CartPoleNoVel-v1", seed=0))
    environment = make_environment(settings, LogFolder(None))
    environment.reset({})
    (event,) = environment.wait()
    environment.close()
    assert list(event.steps) == ["CartPoleNoVel-v1"]
