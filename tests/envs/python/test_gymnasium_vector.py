"""Vectorized environments: learned from is what the environment gave, whatever its autoreset mode."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from attrs import evolve
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import trajtrainer
from tests.envs.python.gymnasium_samples import action_batch
from tests.envs.python.vector_samples import CountingVector
from tests.envs.test_select import NoLogs, make, settings
from tests.run.runs import ppo
from trajtrainer.core.errors import InvalidDataError, SettingsError, UnsupportedError
from trajtrainer.core.steps import StepBatch
from trajtrainer.envs import select
from trajtrainer.envs.python.gymnasium_vector import VectorEnvironment
from trajtrainer.experience.agent_processor import AgentProcessor
from trajtrainer.experience.rows import RowPool
from trajtrainer.experience.trajectory import release
from trajtrainer.settings.environment import ConstantSettings

MODES = list(AutoresetMode)
Row = tuple[int, list[float], float]


def begin(environment: VectorEnvironment) -> StepBatch:
    environment.reset({})
    (event,) = environment.wait()
    assert event.is_reset
    return event.steps[environment.name]


def act(environment: VectorEnvironment, *choices: int) -> StepBatch:
    environment.send(0, {environment.name: action_batch(np.zeros((len(choices), 0)), [[choice] for choice in choices])})
    (event,) = environment.wait()
    return event.steps[environment.name]


def rows(batch: StepBatch) -> tuple[list[Row], list[Row]]:
    """The ends and the decisions: the copy, what it sees, what it has earned."""
    told = [
        (int(agent), seen.tolist(), float(reward))
        for agent, seen, reward in zip(batch.agent, batch.obs[0], batch.reward, strict=True)
    ]
    return told[: batch.num_terminal], told[batch.num_terminal :]


def test_next_step_does_not_ask_a_copy_that_ended() -> None:
    env = CountingVector((2, 3, 3))
    environment = VectorEnvironment(env, seed=7, name="counting")
    assert rows(begin(environment)) == ([], [(copy, [copy, 1, 0], 0) for copy in range(3)])
    act(environment, 0, 1, 2)
    ends, decisions = rows(act(environment, 1, 2, 3))
    assert ends == [(0, [0, 1, 2], 12)]
    assert decisions == [(1, [1, 1, 2], 112), (2, [2, 1, 2], 212)]
    batch = act(environment, 3, 0)
    assert rows(batch) == ([(1, [1, 1, 3], 113), (2, [2, 1, 3], 213)], [(0, [0, 2, 0], 0)])
    assert batch.interrupted.tolist() == [True, False]
    assert rows(act(environment, 2)) == ([], [(0, [0, 2, 1], 21), (1, [1, 2, 0], 0), (2, [2, 2, 0], 0)])
    assert env.actions == [[10, 11, 12], [11, 12, 13], [None, 13, 10], [12, None, None]]
    assert env.seeds == [7]


def test_next_step_goes_on_at_once_if_all_ended() -> None:
    env = CountingVector((1, 1))
    environment = VectorEnvironment(env, seed=7, name="counting")
    begin(environment)
    ends, decisions = rows(act(environment, 1, 2))
    assert ends == [(0, [0, 1, 1], 11), (1, [1, 1, 1], 111)]
    assert decisions == [(0, [0, 2, 0], 0), (1, [1, 2, 0], 0)]
    assert env.actions == [[11, 12], [None, None]]


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.DISABLED])
def test_other_modes_end_and_begin_in_one_event(mode: AutoresetMode) -> None:
    env = CountingVector((2, 3, 3), mode)
    environment = VectorEnvironment(env, seed=7, name="counting")
    begin(environment)
    act(environment, 0, 1, 2)
    ends, decisions = rows(act(environment, 1, 2, 3))
    assert ends == [(0, [0, 1, 2], 12)]
    assert decisions == [(0, [0, 2, 0], 0), (1, [1, 1, 2], 112), (2, [2, 1, 2], 212)]
    batch = act(environment, 3, 0, 1)
    assert rows(batch) == (
        [(1, [1, 1, 3], 113), (2, [2, 1, 3], 213)],
        [(0, [0, 2, 1], 21), (1, [1, 2, 0], 0), (2, [2, 2, 0], 0)],
    )
    assert batch.interrupted.tolist() == [True, False]
    assert env.actions == [[10, 11, 12], [11, 12, 13], [13, 10, 11]]


@pytest.mark.parametrize("mode", MODES)
def test_steps_of_an_agent_are_those_of_its_episodes_without_gaps(mode: AutoresetMode) -> None:
    lengths = (1, 2, 3, 5, 4)
    environment = VectorEnvironment(CountingVector(lengths, mode), seed=7, name="counting")
    places = {copy: [1, 0] for copy in range(len(lengths))}
    batch = begin(environment)
    for _ in range(60):
        ends, decisions = rows(batch)
        for copy, seen, reward in ends:
            assert seen == [copy, places[copy][0], lengths[copy]]
            assert reward == 100 * copy + 10 * seen[1] + seen[2]
            places[copy] = [places[copy][0] + 1, 0]
        for copy, seen, reward in decisions:
            assert seen[1:] == places[copy]
            assert reward == (100 * copy + 10 * seen[1] + seen[2] if seen[2] else 0)
            places[copy][1] += 1
        batch = act(environment, *[0] * len(decisions))
    assert all(episode > 10 for episode, _ in places.values())


@pytest.mark.parametrize("mode", MODES)
def test_trajectories_never_reach_into_another_episode(mode: AutoresetMode) -> None:
    """What a trainer learns from: each step with its own action and reward, cut where the episode ended."""
    lengths = (1, 2, 3, 7, 5)
    environment = VectorEnvironment(CountingVector(lengths, mode), seed=7, name="counting")
    pool = RowPool(environment._spaces.spec, [np.dtype(np.float32)], poison=True)
    processor = AgentProcessor(pool, 4)
    batch, learned, ends = begin(environment), [], []
    for number in range(60):
        recorded = processor.record(batch)
        if recorded.trajectories is not None:
            found = recorded.trajectories
            for index, (start, stop) in enumerate(zip(found.offset, found.offset[1:], strict=False)):
                rows_of_one = found.rows[start:stop]
                seen = pool.obs[0][rows_of_one].tolist()
                copy, episode, first = map(int, seen[0])
                assert seen == [[copy, episode, first + step] for step in range(len(seen))]
                assert pool["reward"][rows_of_one].tolist() == [
                    100 * copy + 10 * episode + first + step + 1 for step in range(len(seen))
                ]
                last = first + len(seen)
                assert pool.obs[0][found.bootstrap[index]].tolist() == [copy, episode, last]
                over = last == lengths[copy]
                assert found.terminated[index] == (over and copy % 2 == 0)
                assert found.ended[index] == over
                learned += [(copy, episode, first + step) for step in range(len(seen))]
                ends += [(copy, episode)] if over else []
            release(pool, [found])
        choices = [(number + copy) % 4 for copy in range(batch.num_decisions)]
        actions = action_batch(np.zeros((len(choices), 0)), [[choice] for choice in choices])
        processor.acted(recorded.rows[batch.num_terminal :], actions)
        batch = act(environment, *choices)
    assert len(set(learned)) == len(learned)
    whole = {(copy, episode, step) for copy, episode in ends for step in range(lengths[copy])}
    assert whole <= set(learned), "no step of a whole episode is left out"
    assert len(ends) > 60


@pytest.mark.parametrize("mode", MODES)
def test_a_run(mode: AutoresetMode, tmp_path: Path) -> None:
    lengths = (4, 4)
    made: list[CountingVector] = []

    def factory() -> CountingVector:
        made.append(CountingVector(lengths, mode))
        return made[-1]

    given = {"behaviors": {"CountingVector": ppo(400, network_settings={"hidden_units": 8})}}
    result = trajtrainer.learn(given, factory, results_dir=tmp_path, run_id="vector", torch_device="cpu", verbose=False)
    (env,) = made
    assert env.closed_times == 1
    steps = sum(action is not None for actions in env.actions for action in actions)
    trained = result.behaviors["CountingVector"]
    assert trained.steps <= steps <= trained.steps + 2 * 64
    assert trained.mean_reward is not None
    episodes = trained.mean_reward / 4 - 50 - 2.5  # 10 * episode, of the last 100 episodes
    assert episodes > 20


class Arm(gymnasium.Env[Any, Any]):
    """A Dict of everything, with masks: number ``step % 3`` is forbidden."""

    observation_space = spaces.Dict(
        {
            "observation": spaces.Dict({"light": spaces.Discrete(5), "place": spaces.Box(-9, 9, (2,), np.float32)}),
            "action_mask": spaces.MultiBinary(3),
        }
    )
    action_space = spaces.Discrete(3)

    def __init__(self, number: int) -> None:
        self.number = number

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        return self._seen(), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        return self._seen(), 1.0, self.steps == 4, False, {}

    def _seen(self) -> Any:
        mask = np.ones(3, np.int8)
        mask[self.steps % 3] = 0
        place = np.array([self.number, self.steps], np.float32)
        return {"observation": {"light": self.steps, "place": place}, "action_mask": mask}


@pytest.mark.parametrize("mode", MODES)
def test_dicts_and_masks(mode: AutoresetMode) -> None:
    env = SyncVectorEnv([lambda: Arm(5), lambda: Arm(6)], autoreset_mode=mode)
    environment = VectorEnvironment(env, seed=1, name="arm")
    batch = begin(environment)
    for step in range(4):
        light, place = batch.obs
        assert light.argmax(axis=1).tolist() == [step, step]
        assert place.tolist() == [[5, step], [6, step]]
        assert batch.mask.tolist() == [[forbidden == step % 3 for forbidden in range(3)]] * 2
        batch = act(environment, 0, 0)
    assert batch.num_terminal == 2
    assert batch.obs[1].tolist() == [[5, 4], [6, 4], [5, 0], [6, 0]]
    assert batch.mask.tolist() == [[False] * 3] * 2 + [[True, False, False]] * 2


def vector(lengths: tuple[int, ...] = (2, 2), **_: Any) -> CountingVector:
    return CountingVector(lengths)


def vector_of(num_envs: int = 5) -> CountingVector:
    return CountingVector((2,) * num_envs)


@pytest.mark.parametrize(
    ("path", "copies", "there"),
    [
        ("python:tests.envs.python.test_gymnasium_vector:vector", 1, 2),
        ("python:tests.envs.python.test_gymnasium_vector:vector", 2, 2),
        ("python:tests.envs.python.test_gymnasium_vector:vector_of", 1, 5),
        ("python:tests.envs.python.test_gymnasium_vector:vector_of", 3, 3),
        ("gym:tests.envs.python.vector_samples:CountingVector-v0", 4, 4),
    ],
)
def test_where_they_come_from(path: str, copies: int, there: int) -> None:
    environment = make(path, num_envs=copies)
    assert isinstance(environment, VectorEnvironment)
    assert begin(environment).agent.tolist() == list(range(there))
    env = environment._env
    environment.close()
    assert env.closed_times == 1


def test_another_number_of_copies_is_a_mistake() -> None:
    with pytest.raises(SettingsError, match="vectorized environment with 2 copies, but --num-envs is 3"):
        make("python:tests.envs.python.test_gymnasium_vector:vector", num_envs=3)


def test_wrappers_are_those_of_vectorized_environments() -> None:
    given = settings("python:tests.envs.python.test_gymnasium_vector:vector")
    wrappers = ["gymnasium.wrappers.vector:ClipReward max_reward=11"]
    given = evolve(given, env_settings=evolve(given.env_settings, wrappers=wrappers))
    environment: Any = select.make_environment(given, NoLogs())
    begin(environment)
    assert act(environment, 0, 0).reward.tolist() == [11, 11]


def test_a_mode_that_is_not_told_is_that_of_gymnasium(caplog: pytest.LogCaptureFixture) -> None:
    env = CountingVector((1, 2))
    env.metadata = {}
    environment = VectorEnvironment(env, seed=7, name="counting")
    assert "NEXT_STEP is assumed" in caplog.text
    begin(environment)
    assert rows(act(environment, 1, 2)) == ([(0, [0, 1, 1], 11)], [(1, [1, 1, 1], 111)])


class Wrong(CountingVector):
    def __init__(self, change: Callable[[list[Any]], object], mode: AutoresetMode) -> None:
        super().__init__((1, 2), mode)
        self.change = change

    def step(self, actions: Any) -> Any:
        result = list(super().step(actions))
        self.change(result)
        return tuple(result)


def put(place: int, value: Any) -> Callable[[list[Any]], object]:
    return lambda result: result.__setitem__(place, value)


@pytest.mark.parametrize(
    ("mode", "change", "told"),
    [
        (AutoresetMode.NEXT_STEP, lambda result: result.pop(), "expected (observations, rewards,"),
        (AutoresetMode.NEXT_STEP, put(0, np.zeros((3, 3))), "expected observations of 2 copies"),
        (AutoresetMode.NEXT_STEP, put(1, [1.0]), "expected an array of 2 rewards"),
        (AutoresetMode.NEXT_STEP, put(1, None), "expected a"),
        (AutoresetMode.NEXT_STEP, put(1, ["1", "2"]), "expected a number for each reward"),
        (AutoresetMode.NEXT_STEP, put(2, [None, None]), "True or False for terminations"),
        (AutoresetMode.NEXT_STEP, put(4, None), "a dict for the infos"),
        (AutoresetMode.NEXT_STEP, put(4, {"final_obs": 3}), "only in the mode SAME_STEP. Its mode is NEXT_STEP"),
        (AutoresetMode.SAME_STEP, put(4, {}), "did not return a final observation for the copies [0]"),
        (AutoresetMode.DISABLED, put(1, [np.nan, 1]), "sent nan as a reward"),
    ],
)
def test_what_is_wrong_is_told(mode: AutoresetMode, change: Callable[[list[Any]], object], told: str) -> None:
    environment = VectorEnvironment(Wrong(change, mode), seed=7, name="counting")
    begin(environment)
    with pytest.raises(InvalidDataError, match=re.escape(told)):
        act(environment, 1, 2)


def test_what_cannot_be() -> None:
    env = CountingVector()
    env.metadata = {"autoreset_mode": "sometimes"}
    with pytest.raises(UnsupportedError, match=r"'sometimes'\. Expected one of"):
        VectorEnvironment(env, seed=7)
    with pytest.raises(UnsupportedError, match=r"does not accept environment_parameters \(gravity\)"):
        VectorEnvironment(CountingVector(), seed=7).reset({"gravity": ConstantSettings(value=3)})
    del env.single_action_space
    with pytest.raises(UnsupportedError, match="has no single_action_space"):
        VectorEnvironment(env, seed=7)
