"""Copies of an environment in this process as workers of their own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.envs.python.gymnasium_samples import CountingEnv
from tests.envs.python.pettingzoo_samples import Arena
from trajtrainer.core.steps import WORKER_SHIFT
from trajtrainer.envs.in_process import SideBySide
from trajtrainer.envs.protocol import Environment
from trajtrainer.envs.python.gymnasium_environment import GymnasiumEnvironment
from trajtrainer.envs.python.pettingzoo_environment import PettingZooEnvironment
from trajtrainer.envs.select import make_separate_environments
from trajtrainer.settings.environment import ConstantSettings, EnvironmentSettings
from trajtrainer.settings.run import RunSettings
from trajtrainer.testing import EnvironmentContract


class TestSideBySide(EnvironmentContract):
    def make(self) -> Environment:
        return SideBySide("two", [GymnasiumEnvironment([CountingEnv()], seed=seed) for seed in range(2)])


def test_each_copy_is_a_worker_with_agents_and_a_seed_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    arenas = [Arena({"red_0": 2, "red_1": 3}) for _ in range(3)]
    copies = iter(arenas)
    monkeypatch.setattr("tests.envs.python.pettingzoo_samples.parallel_env", lambda: next(copies))
    path = "pettingzoo:tests.envs.python.pettingzoo_samples"
    settings = RunSettings(env_settings=EnvironmentSettings(env_path=path, num_envs=3, seed=7))

    environment = make_separate_environments(settings, NoLogs())
    environment.reset({"gravity": ConstantSettings(value=2.0)})
    events = environment.wait()
    assert [event.worker for event in events] == [0, 1, 2]
    agents = [event.steps["red"].agent.tolist() for event in events]
    assert agents == [[worker << WORKER_SHIFT, (worker << WORKER_SHIFT) + 1] for worker in range(3)]
    assert [arena.seeds for arena in arenas] == [[7], [8], [9]]
    assert [arena.options for arena in arenas] == [[{"gravity": 2.0}]] * 3
    environment.close()
    assert all(arena.closed for arena in arenas)


def test_one_copy_is_left_as_it_is() -> None:
    path = "pettingzoo:tests.envs.python.pettingzoo_samples"
    settings = RunSettings(env_settings=EnvironmentSettings(env_path=path, seed=7, env_args=['lives={"red_0": 2}']))
    environment = make_separate_environments(settings, NoLogs())

    assert isinstance(environment, PettingZooEnvironment)
    environment.reset({})
    np.testing.assert_array_equal(environment.wait()[0].steps["red"].agent, [0])


class NoLogs:
    def player_log(self, worker: int) -> Path | None:
        return None
