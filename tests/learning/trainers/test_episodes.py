"""Episode sums over trajectories."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.experience.harness import Harness
from tests.experience.oracle import Trajectory
from tests.experience.streams import random_stream
from tests.learning.trainers.rig import Recorder
from trajtrainer.core.stats import StatsReporter
from trajtrainer.core.steps import Aggregation, agent_ids
from trajtrainer.experience.source import PackedChunk, RowsChunk
from trajtrainer.experience.trajectory import EpisodeSums, gather
from trajtrainer.learning.trainers.episodes import ArrivedEpisodes, EpisodeRecord


def _add(sums: EpisodeSums, parts: list[tuple[int, list[float], bool]]) -> list[float]:
    """(agent, rewards, ended) trajectories; the second kind of reward is ten times the first."""
    rewards = np.array([r for _, one, _ in parts for r in one], np.float32)
    offset = np.cumsum([0] + [len(one) for _, one, _ in parts]).astype(np.int32)
    finished = sums.add(
        np.stack([rewards, 10 * rewards]),
        offset,
        np.array([agent for agent, _, _ in parts], np.int64),
        np.array([ended for _, _, ended in parts]),
    )
    np.testing.assert_allclose(finished[1], 10 * finished[0], rtol=1e-5, atol=1e-4)
    result: list[float] = finished[0].tolist()
    return result


def test_an_episode_spans_trajectories_and_agents_do_not_mix() -> None:
    sums = EpisodeSums()
    assert _add(sums, [(1, [1.0, 2.0], False), (2, [10.0], False)]) == []
    assert _add(sums, [(1, [4.0], True), (2, [20.0], True), (1, [0.5], True)]) == [7.0, 30.0, 0.5]


def test_two_trajectories_of_an_agent_in_one_call() -> None:
    assert _add(EpisodeSums(), [(1, [1.0], False), (1, [2.0], True), (1, [8.0], True)]) == [3.0, 8.0]


@pytest.mark.parametrize(("worker", "expected"), [(0, [2.0, 50.0]), (1, [3.0, 40.0]), (None, [2.0, 40.0])])
def test_forget(worker: int | None, expected: list[float]) -> None:
    sums = EpisodeSums()
    here, there = (int(agent_ids(worker, np.array([5]))[0]) for worker in (0, 1))
    _add(sums, [(here, [1.0], False), (there, [10.0], False)])
    sums.reset_worker(worker)
    assert _add(sums, [(here, [2.0], True), (there, [40.0], True)]) == expected


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 5), st.booleans()), max_size=20), st.integers(1, 7))
def test_equals_the_plain_rule(stream: list[tuple[int, int, bool]], size: int) -> None:
    rng = np.random.default_rng(0)
    parts = [(agent, rng.integers(-9, 9, length).astype(float).tolist(), ended) for agent, length, ended in stream]
    expected, open_sums = [], dict.fromkeys(range(4), 0.0)
    for agent, rewards, ended in parts:
        open_sums[agent] += sum(rewards)
        if ended:
            expected.append(open_sums[agent])
            open_sums[agent] = 0.0
    sums = EpisodeSums()
    found = [total for start in range(0, len(parts), size) for total in _add(sums, parts[start : start + size])]
    assert found == expected


GROUP_REWARD = "Environment/Group Cumulative Reward"


def _played(groups: tuple[int, ...] | None) -> tuple[Recorder, EpisodeRecord, list[Trajectory]]:
    """Statistics and record of a stream of agents in these groups, drained now and then, and its trajectories."""
    harness, recorder = Harness(horizon=4, memory_size=0, groups=groups), Recorder()
    reporter = StatsReporter("B", [recorder])
    record, waiting = EpisodeRecord(reporter), []
    for number, round_ in enumerate(random_stream(200, seed=5)):
        waiting += harness.play(round_)
        if waiting and (number % 9 == 0 or number == 199):
            packed = gather(harness.pool, waiting)
            record.add(packed, ["Extrinsic"], packed["reward"][None])
            waiting = []
    reporter.write(0)
    return recorder, record, harness.expected


def test_a_group_reward_is_that_of_members_that_end_with_their_group() -> None:
    recorder, record, trajectories = _played((1, 1, 2, 0, 3, 3))
    expected, sums = [], dict.fromkeys(range(6), 0.0)
    for one in trajectories:
        sums[one.agent] += sum(step.group_reward for step in one.steps)
        if one.ended:
            if one.all_done and one.steps[-1].group:
                expected.append(sums[one.agent])
            sums[one.agent] = 0.0
    ((_, values),) = recorder.summaries
    found = values[GROUP_REWARD]
    assert found.aggregation is Aggregation.HISTOGRAM
    assert len(found.values) > 5
    np.testing.assert_allclose(found.values, expected, rtol=1e-5, atol=1e-5)
    assert list(record.group_reward_buffer) == [float(value) for value in found.values][-100:]
    assert len(values["Policy/Extrinsic Reward"].values) == sum(one.ended for one in trajectories)


@pytest.mark.parametrize("groups", [None, (0,)], ids=["not needed", "none"])
def test_without_groups_there_is_no_group_reward(groups: tuple[int, ...] | None) -> None:
    ((_, values),) = _played(groups)[0].summaries
    assert GROUP_REWARD not in values
    assert len(values["Environment/Cumulative Reward"].values) > 5


def test_what_groups_received_is_saved_limited_and_cleared_with_the_lesson() -> None:
    record, again = _played((1, 1, 2, 0, 3, 3))[1], EpisodeRecord(StatsReporter("B", []))
    received = list(record.group_reward_buffer)
    again.restore(record.state())
    assert list(again.group_reward_buffer) == received
    again.set_reward_buffer_size(3)
    assert list(again.group_reward_buffer) == received[-3:]
    again.begin_lesson(1)
    assert not again.group_reward_buffer
    again.restore({"reward_buffer": [1.0]})  # as 0.1.0 wrote it
    assert (list(again.reward_buffer), list(again.group_reward_buffer)) == ([1.0], [])


def test_rewards_of_a_lesson_that_has_ended_since_are_not_restored() -> None:
    record, again = _played((1, 1, 2, 0, 3, 3))[1], EpisodeRecord(StatsReporter("B", []))
    again.lesson = 1
    again.restore(record.state())
    assert (len(again.reward_buffer), len(again.group_reward_buffer)) == (0, 0)
    assert again.num_total == record.num_total > 0


@pytest.mark.parametrize("groups", [None, (1, 1, 2, 0, 3, 3)], ids=["without groups", "groups"])
@pytest.mark.parametrize("are_packed", [False, True], ids=["rows", "packed"])
def test_what_arrives_is_counted_as_the_trainer_will_count_it(groups: tuple[int, ...] | None, are_packed: bool) -> None:
    harness, record, recorded = Harness(horizon=4, memory_size=0, groups=groups), *_records()
    for round_ in random_stream(200, seed=5):
        for batch in harness.play(round_):
            packed = gather(harness.pool, [batch])
            chunk = (
                PackedChunk(packed, len(packed), lambda: None)
                if are_packed
                else RowsChunk(harness.pool, [batch], batch.num_steps, batch.num_steps)
            )
            recorded.add(chunk)
            record.add(packed, ["Extrinsic"], packed["reward"][None])
    assert len(record.reward_buffer) == 100
    assert recorded.rewards == record.reward_buffer
    assert recorded.group_rewards == record.group_reward_buffer
    assert recorded.has_groups
    assert recorded.num_episodes == recorded.num_total == record.num_episodes
    resumed = ArrivedEpisodes(3)
    resumed.resume(record)
    assert list(resumed.rewards) == list(record.reward_buffer)[-3:]
    assert (resumed.num_total, resumed.num_episodes) == (record.num_episodes, 0)


def _records() -> tuple[EpisodeRecord, ArrivedEpisodes]:
    return EpisodeRecord(StatsReporter("B", [])), ArrivedEpisodes(100)
