"""Stable-Baselines3 learns from the agents of a scene."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from tests.envs.scenes.world import World
from trajtrainer.core.errors import UnsupportedError
from trajtrainer.gymnasium import UnityVectorEnv

pytest.importorskip("stable_baselines3", reason="stable-baselines3 is not installed")

from stable_baselines3 import PPO  # isort: skip
from stable_baselines3.common.vec_env import VecMonitor  # isort: skip


def test_ends_are_told_as_its_own_environments_tell_them() -> None:
    world = World(0, lockstep=True, alive=True)
    envs = UnityVectorEnv(world).as_stable_baselines3()
    observations = envs.reset()
    assert observations.shape == (3, 2)
    found: dict[float, bool] = {}
    for _ in range(40):
        _, _, dones, infos = envs.step(np.ones((3, 1), np.float32))
        assert [bool(info) for info in infos] == dones.tolist()
        found |= {float(info["terminal_observation"][1]): info["TimeLimit.truncated"] for info in infos if info}
    assert found == {episode.final: episode.interrupted for episode in world.episodes}
    assert envs.env_is_wrapped(object) == [False] * 3
    assert not envs.has_attr("action_masks")
    envs.close()


def test_masks_are_where_maskable_ppo_looks() -> None:
    envs = UnityVectorEnv(
        "sim:GridWorld", additional_args=["--agents", "2", "--camera", "20,20"]
    ).as_stable_baselines3()
    envs.reset()
    envs.step(np.zeros(2, np.int64))
    assert envs.has_attr("action_masks")
    masks = np.stack(envs.env_method("action_masks"))
    assert masks.dtype == np.bool_
    assert masks.shape == (2, 5)
    with pytest.raises(AttributeError, match="no method 'jump'"):
        envs.env_method("jump")
    envs.close()


def test_attributes_are_those_of_all_sub_environments() -> None:
    envs = UnityVectorEnv(World(0)).as_stable_baselines3()
    envs.set_attr("note", 7)
    assert envs.get_attr("note") == [7, 7, 7]
    assert envs.get_attr("note", indices=[0, 2]) == [7, 7]
    with pytest.raises(AttributeError):
        envs.get_attr("action_masks")
    envs.close()


@pytest.mark.parametrize("keywords", [{"autoreset_mode": AutoresetMode.NEXT_STEP}, {"observations": "tuple"}])
def test_what_it_does_not_know(keywords: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedError, match="Stable-Baselines3"):
        UnityVectorEnv(World(0), **keywords).as_stable_baselines3()


@pytest.mark.slow
def test_it_learns_3dball() -> None:
    """About 1 at random; this far it gets in a twelfth of the way to 58 after 74,000 steps."""
    envs = VecMonitor(UnityVectorEnv("sim:3DBall", seed=1).as_stable_baselines3())
    network = {"net_arch": [32, 32]}
    arguments: dict[str, Any] = {"n_steps": 128, "batch_size": 256, "n_epochs": 6, "learning_rate": 1e-3}
    model = PPO("MlpPolicy", envs, seed=1, device="cpu", policy_kwargs=network, **arguments)
    model.learn(12_288)
    assert np.mean([episode["r"] for episode in model.ep_info_buffer or ()]) > 3
    envs.close()
