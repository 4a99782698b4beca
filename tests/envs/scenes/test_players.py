"""Real players behind the environments of other libraries."""

from __future__ import annotations

import logging
import subprocess
import sys
import warnings
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.utils.env_checker import check_env

from trajtrainer.core.errors import EnvironmentFaultError, UnsupportedError
from trajtrainer.gymnasium import UnityEnv, UnityVectorEnv

NO_BOUNDS = "A Box observation space m"


@pytest.mark.parametrize(
    ("simulation", "arguments", "observations", "actions"),
    [
        ("3DBall", [], spaces.Box, spaces.Box),
        ("GridWorld", ["--camera", "20,20"], spaces.Dict, spaces.Discrete),
        ("Hybrid", [], spaces.Dict, spaces.Tuple),
    ],
)
def test_gymnasium_approves(simulation: str, arguments: list[str], observations: type, actions: type) -> None:
    env = UnityEnv(f"sim:{simulation}", additional_args=["--agents", "1", *arguments], uint8_visual=True)
    assert (type(env.observation_space), type(env.action_space)) == (observations, actions)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=f".*{NO_BOUNDS}")
        check_env(env, skip_close_check=simulation != "3DBall")
    env.close()


def test_stable_baselines3_approves() -> None:
    checker = pytest.importorskip("stable_baselines3.common.env_checker", reason="stable-baselines3 is not installed")
    for simulation, arguments in (("3DBall", []), ("GridWorld", ["--camera", "64,64"])):
        env = UnityEnv(f"sim:{simulation}", additional_args=["--agents", "1", *arguments], uint8_visual=True)
        checker.check_env(env)
        env.close()


def test_episodes_follow_one_another_without_resets() -> None:
    """An episode's first observation is that with which Unity has begun it; the player is reset only when asked to."""
    env = gymnasium.make("trajtrainer/Unity-v0", env="sim:Basic", seed=5)
    lengths: list[Any] = []
    for _ in range(3):
        observation, info = env.reset()
        assert info["action_mask"].tolist() == [1, 1, 1]
        assert observation.argmax() == 10
        done, length = False, 0
        while not done:
            observation, reward, done, truncated, info = env.step(2)
            length += 1
        lengths.append((length, reward, truncated))
    assert lengths == [(7, pytest.approx(0.99), False)] * 3
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.unwrapped.step(2)
    assert env.reset()[0].argmax() == 10
    env.step(2)
    assert env.reset(options={"parameters": {"any": 1.0}})[0].argmax() == 10
    env.close()


def test_several_agents_need_a_vector() -> None:
    with pytest.raises(
        UnsupportedError, match=r"12 agents of '3DBall', but UnityEnv supports only one. Use .*UnityVectorEnv"
    ):
        UnityEnv("sim:3DBall")


def test_teams_are_side_by_side() -> None:
    envs = UnityVectorEnv("sim:Duel", additional_args=["--areas", "3"])
    assert envs.num_envs == 6
    envs.reset(seed=1)
    scores = np.zeros(6)
    for _ in range(60):
        _, rewards, terminated, truncated, infos = envs.step(envs.action_space.sample())
        scores += rewards
        assert infos["deciding"].all()
        for area in range(3):  # ids go from area to area; what one team wins the other loses
            both = np.isin(infos["agent_id"], [2 * area, 2 * area + 1])
            assert np.ptp((terminated | truncated)[both].astype(int)) == 0
    assert scores.any()
    assert scores.sum() == pytest.approx(0.0, abs=1e-4)
    envs.close()


def test_groups_whose_members_die(caplog: pytest.LogCaptureFixture) -> None:
    envs = UnityVectorEnv("sim:DungeonEscape", additional_args=["--areas", "2"])
    _, infos = envs.reset()
    assert envs.num_envs == 6
    assert len(set(infos["group_id"].tolist())) == 2
    silent = 0
    for _ in range(300):
        *_, infos = envs.step(envs.action_space.sample())
        silent += int(np.count_nonzero(~infos["deciding"]))
        assert infos["action_mask"].shape == (6, 5)
    assert silent > 0
    assert "did not ask for a decision" in caplog.text
    envs.close()


def test_pictures_and_masks() -> None:
    envs = UnityVectorEnv("sim:GridWorld", additional_args=["--agents", "4", "--camera", "20,20"], uint8_visual=True)
    observations, infos = envs.reset()
    forbidden = False
    for _ in range(30):
        assert observations["GridCamera"].dtype == np.uint8
        assert observations["GridCamera"].any()
        masks = infos["action_mask"]
        forbidden |= not masks.all()
        space = envs.single_action_space
        actions = np.array([space.sample(mask=envs.spaces.sample_mask(mask)) for mask in masks])
        assert masks[np.arange(4), actions].all()
        observations, _, _, _, infos = envs.step(actions)
        assert envs.observation_space.contains(observations)
    assert forbidden
    envs.close()


@pytest.mark.parametrize("number", [{}, {"num_envs": 5}])
def test_make_vec_takes_the_number_of_the_scene(number: dict[str, Any]) -> None:
    envs = gymnasium.make_vec("trajtrainer/Unity-v0", env="sim:3DBall", additional_args=["--agents", "3"], **number)
    assert envs.num_envs == number.get("num_envs", 3)
    observations, _ = envs.reset()
    assert observations.shape[0] == envs.num_envs
    envs.close()


def test_environment_parameters_arrive(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    envs = gymnasium.make_vec("trajtrainer/Unity-v0", num_envs=2, env="sim:3DBall", additional_args=["--agents", "2"])
    ends = []
    for gravity in (0.0, 20.0):  # without gravity no ball rolls off
        envs.reset(seed=1, options={"parameters": {"gravity": gravity}})
        ends.append(any(envs.step(np.ones((2, 2), np.float32))[2].any() for _ in range(40)))
    assert ends == [False, True]
    assert caplog.text.count("A player is seeded when it starts") == 1
    envs.close()


def test_a_player_that_is_not_there() -> None:
    with pytest.raises(EnvironmentFaultError, match="Builds/Nowhere"):
        UnityEnv("Builds/Nowhere")


@pytest.mark.parametrize(
    ("code", "absent", "hint"),
    [
        ("import trajtrainer.gymnasium", "gymnasium", "pip install 'trajtrainer[gym]'"),
        ("import trajtrainer.envs.scenes.stable_baselines3", "stable_baselines3", "pip install stable-baselines3"),
    ],
)
def test_what_is_not_installed(code: str, absent: str, hint: str) -> None:
    program = f"import sys; sys.modules[{absent!r}] = None\n{code}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode != 0
    assert f"Install it with: {hint}" in done.stderr.replace("\n", " ")


def test_the_real_gymnasium_is_not_hidden() -> None:
    module: Any = sys.modules["gymnasium"]
    assert module is not sys.modules["trajtrainer.gymnasium"]
    assert hasattr(module, "make")
