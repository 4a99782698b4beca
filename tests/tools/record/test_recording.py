"""Policies are recorded as they acted; every episode is whole, and they are the same each time."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from trajtrainer.core.errors import EnvironmentFaultError, SettingsError
from trajtrainer.core.spec import (
    ActionSpec,
    BehaviorId,
    BehaviorSpec,
    DimensionProperty,
    ObservationSpec,
    ObservationType,
)
from trajtrainer.core.steps import ActionBatch, EnvironmentEvent, StepBatch
from trajtrainer.envs.in_process import InProcessEnvironment
from trajtrainer.experience.recordings.demonstrations import load_demonstrations
from trajtrainer.learning.algos.acting import Policy
from trajtrainer.policies.play.scripted import ScriptedPolicy, heuristic_policy, random_policy
from trajtrainer.tools.record.recording import Recording, record

SPEC = BehaviorSpec(
    [ObservationSpec((2,), (DimensionProperty.NONE,), ObservationType.DEFAULT, "v")], ActionSpec(1, (3,))
)
LENGTHS = (2, 5)  # of the episodes of agents 0 and 1


class Counting(InProcessEnvironment):
    """Two agents who see their own number and how often they were seen, and are rewarded with that, too.

    The buffer of observations is used again in every message.
    """

    def __init__(self, workers: int = 1, fails_after: int = 1000) -> None:
        super().__init__("counting", workers)
        self._counts = np.zeros((workers, 2), np.int64)
        self._ages = np.zeros((workers, 2), np.int64)
        self._buffer = np.zeros((4, 2), np.float32)
        self._messages_left = fails_after
        self.sent: list[float] = []

    def set_parameters(self, parameters: object) -> None: ...

    def _close(self) -> None: ...

    def _reset_worker(self, worker: int) -> EnvironmentEvent:
        self._ages[worker] = 0
        event = self._event(worker, np.zeros(0, np.int64), np.zeros(2, np.float32))
        return EnvironmentEvent(worker, event.steps, {"Count?team=0": SPEC}, is_reset=True)

    def _step_worker(self, worker: int, actions: Mapping[str, ActionBatch]) -> EnvironmentEvent:
        self._messages_left -= 1
        if self._messages_left < 0:
            raise EnvironmentFaultError("it fell over")
        self.sent += actions["Count?team=0"].env_continuous[:, 0].tolist()
        self._ages[worker] += 1
        ended = np.flatnonzero(self._ages[worker] == LENGTHS)
        self._ages[worker][ended] = 0
        return self._event(worker, ended, self._counts[worker].astype(np.float32))

    def _event(self, worker: int, ended: np.ndarray, reward: np.ndarray) -> EnvironmentEvent:
        self._counts[worker] += 1
        agents = np.concatenate([ended, np.arange(2)])
        count = len(agents)
        obs = self._buffer[:count]
        obs[:, 0], obs[:, 1] = agents, self._counts[worker][agents]
        return EnvironmentEvent(
            worker,
            {
                "Count?team=0": StepBatch(
                    agent=agents + (worker << 32),
                    obs=(obs,),
                    reward=reward[agents],
                    group=np.zeros(count, np.int32),
                    group_reward=np.zeros(count, np.float32),
                    mask=np.tile(np.array([False, True, False]), (count, 1)),
                    interrupted=ended == 1,
                    num_terminal=len(ended),
                )
            },
        )


def scripted(_: BehaviorId, spec: BehaviorSpec, seed: int) -> Policy:
    """Act on what is seen: a tenth of the count, and the branch 2."""
    return ScriptedPolicy(
        lambda obs, mask: ((obs[0][:, 1:] / 100).astype(np.float32), np.full((len(mask), 1), 2, np.int32))
    )


def recorded(workers: int = 1, episodes: int = 4, **others: object) -> Recording:
    return record(Counting(workers), scripted, episodes, seed=1, **others)["Count"]  # type: ignore[arg-type]


@pytest.mark.parametrize("workers", [1, 3])
def test_steps_are_what_was_seen_done_and_earned(workers: int) -> None:
    recording = recorded(workers, episodes=6)
    assert recording.spec == SPEC
    assert len(recording.trajectories) == 6
    for steps, after in recording.trajectories:
        seen = steps.obs[0]
        agent = int(seen[0, 0])
        assert len(steps) == LENGTHS[agent]
        assert (seen[:, 0] == agent).all()
        np.testing.assert_array_equal(np.diff(np.append(seen[:, 1], after.obs[0][0, 1])), 1)
        np.testing.assert_allclose(steps["continuous"][:, 0], seen[:, 1] / 100)
        assert (steps["discrete"] == 2).all()
        # The reward for a step is the number of messages until then.
        np.testing.assert_array_equal(steps["reward"], seen[:, 1])
        assert steps["mask"].tolist() == [[False, True, False]] * len(steps)
        assert steps["done"].tolist() == [False] * (len(steps) - 1) + [True]
        assert steps["interrupted"][-1] == (agent == 1)


def test_the_episodes_that_begin_first_are_recorded() -> None:
    assert sorted(int(each.steps.obs[0][0, 0]) for each in recorded(episodes=2).trajectories) == [0, 1]


def test_an_expert_labels_where_the_policy_got_to() -> None:
    environment = Counting()

    def expert(_: BehaviorId, spec: BehaviorSpec, seed: int) -> Policy:
        return ScriptedPolicy(
            lambda obs, mask: (-(obs[0][:, 1:] / 100).astype(np.float32), np.zeros((len(mask), 1), np.int32))
        )

    recording = record(environment, scripted, 4, seed=1, experts=expert)["Count"]
    for steps, _ in recording.trajectories:
        np.testing.assert_allclose(steps["continuous"][:, 0], -steps.obs[0][:, 1] / 100)
        assert (steps["discrete"] == 0).all()
    assert min(environment.sent) > 0  # the policy acted


def test_what_was_recorded_before_a_failure_is_not_lost() -> None:
    recording = record(Counting(fails_after=3), scripted, 9, seed=1)["Count"]
    assert [len(each.steps) for each in recording.trajectories] == [2]
    assert "it fell over" in str(recording.failure)
    with pytest.raises(EnvironmentFaultError):
        record(Counting(fails_after=1), scripted, 9, seed=1)


def test_random_actions_are_allowed_and_repeat() -> None:
    mask = np.tile(np.array([True, False, False]), (500, 1))
    obs = [np.zeros((500, 2), np.float32)]
    first, second = (random_policy(SPEC, 3).act(obs, mask, np.zeros((500, 0), np.float32)) for _ in range(2))
    np.testing.assert_array_equal(first.discrete, second.discrete)
    np.testing.assert_array_equal(first.continuous, second.continuous)
    counts = np.bincount(first.discrete[:, 0], minlength=3)
    assert counts[0] == 0
    assert min(counts[1:]) > 200
    assert np.abs(first.continuous).max() <= 1


def test_a_written_policy_is_of_its_task_only() -> None:
    with pytest.raises(SettingsError, match="no heuristic for the behavior 'Count'"):
        heuristic_policy("Count", SPEC)
    with pytest.raises(SettingsError, match="with their default observations and actions"):
        heuristic_policy("Basic", SPEC)


def test_shipped_recordings(tmp_path: Path) -> None:
    folder = Path(__file__).resolve().parents[3] / "config" / "demos"
    files = sorted(folder.glob("*.demo"))
    assert {each.stem for each in files} == {"3DBall", "Basic", "CartPole", "GridWorld", "Hybrid", "Pendulum"}
    assert sum(each.stat().st_size for each in files) < 300_000
    for each in files:
        demonstrations = load_demonstrations([each])
        assert demonstrations.name.partition("-")[0] == each.stem
