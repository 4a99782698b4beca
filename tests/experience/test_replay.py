"""The replay against a list of trajectories whose every number tells where it came from."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.experience.packing import everything, packed_steps
from tests.experience.replay_streams import MEMORY, OBS_TYPES, Ending, Stream, empty_replay, mask_of, memory_of
from tests.experience.streams import vector_spec
from trajtrainer.core.steps import LongArray
from trajtrainer.experience.replay import Replay, Sample, rows_for
from trajtrainer.experience.trajectory import PackedSteps

DRAINS = st.lists(st.lists(st.integers(1, 17), min_size=1, max_size=6), min_size=1, max_size=12)


def _add(replay: Replay, stream: Stream, lengths: list[int], endings: list[Ending] | None = None) -> None:
    packed = stream.packed(lengths, endings or [])
    critic_memory = None
    if replay.sequence_length > 1:
        starts = [packed.obs[0][a:b, 0] for a, b in zip(packed.offset[:-1], packed.offset[1:], strict=True)]
        first = np.concatenate([one[:: replay.sequence_length] for one in starts])
        critic_memory = -memory_of(first.astype(np.int64), MEMORY)
    replay.add(packed, critic_memory)


def _sequences(stream: Stream, num_rows: int, length: int) -> list[LongArray]:
    """What must be there: sequences (with the observation that follows) that begin within the newest rows."""
    total = sum(len(numbers) for numbers in stream.trajectories)
    found = []
    row = 0
    for numbers in stream.trajectories:
        steps = len(numbers) - 1
        starts = [start for start in range(0, steps, length) if row + start >= total - num_rows]
        found += [numbers[start : min(start + length, steps) + 1] for start in starts]
        row += len(numbers)
    return found


def _check(replay: Replay, expected: list[LongArray]) -> None:
    """Every sequence of the replay is the expected one, in all columns."""
    length = replay.sequence_length
    assert replay.num_sequences == len(expected)
    assert replay.num_steps == sum(len(numbers) - 1 for numbers in expected)
    if not expected:
        return
    sample = replay.sample(np.arange(len(expected)))
    padded = [np.minimum(np.arange(length), len(numbers) - 2) for numbers in expected]
    steps = np.concatenate([numbers[index] for numbers, index in zip(expected, padded, strict=True)])
    real = np.concatenate([np.arange(length) < len(numbers) - 1 for numbers in expected])
    _check_rows(sample, steps)
    if length == 1 or real.all():
        assert sample.real is None
    else:
        assert sample.real is not None
        np.testing.assert_array_equal(sample.real, real)
    first = steps[::length]
    np.testing.assert_array_equal(sample.sequences["memory"], memory_of(first, sample.sequences["memory"].shape[1]))
    np.testing.assert_array_equal(
        sample.sequences["critic_memory"], -memory_of(first, sample.sequences["memory"].shape[1])
    )


def _check_rows(sample: Sample, steps: LongArray) -> None:
    np.testing.assert_array_equal(sample.obs[0], np.stack((steps, steps / 2), 1))
    np.testing.assert_array_equal(sample.next_obs[0], np.stack((steps + 1, (steps + 1) / 2), 1))
    np.testing.assert_array_equal(sample.obs[1][:, 0, 1, 1], steps % 251)
    np.testing.assert_array_equal(sample.next_obs[1][:, 0, 0, 0], (steps + 1) % 251)
    np.testing.assert_array_equal(sample.rows["continuous"], np.stack((steps, -steps), 1))
    np.testing.assert_array_equal(sample.rows["discrete"], np.stack((steps % 3, steps % 2), 1))
    np.testing.assert_array_equal(sample.rows["mask"], mask_of(steps))
    np.testing.assert_array_equal(sample.rows["next_mask"], mask_of(steps + 1))
    np.testing.assert_array_equal(sample.rows["reward"], steps / 2)
    np.testing.assert_array_equal(sample.rows["group_reward"], steps / 4)
    assert [column.dtype for column in sample.obs] == list(OBS_TYPES)


@settings(deadline=None)
@given(DRAINS, st.integers(2, 60), st.sampled_from([1, 4]))
def test_whatever_is_overwritten_the_newest_whole_sequences_remain(
    drains: list[list[int]], num_rows: int, length: int
) -> None:
    replay, stream = empty_replay(num_rows, length), Stream(MEMORY if length > 1 else 0)
    for lengths in drains:
        _add(replay, stream, lengths)
        _check(replay, _sequences(stream, num_rows, length))


@pytest.mark.parametrize("length", [1, 4])
def test_rows_of_no_sequence_are_painted_and_never_seen(length: int) -> None:
    replay, stream = empty_replay(40, length), Stream(MEMORY if length > 1 else 0)
    painted = 0
    for i in range(60):
        _add(replay, stream, [1 + i * 7 % 11])
        painted += int(np.isnan(replay._rows["continuous"]).any(1).sum())
        sample = replay.sample(np.arange(replay.num_sequences))
        assert np.isfinite(sample.obs[0]).all()
        assert np.isfinite(sample.next_obs[0]).all()
        assert np.isfinite(sample.rows["continuous"]).all()
    assert painted


def test_sampling_is_in_any_order_and_repeats() -> None:
    replay, stream = empty_replay(30), Stream()
    _add(replay, stream, [5, 5])
    sample = replay.sample(np.array([9, 0, 0, 4, 5]))
    assert sample.obs[0][:, 0].tolist() == [11, 1, 1, 5, 7]
    assert sample.next_obs[0][:, 0].tolist() == [12, 2, 2, 6, 8]


def test_a_sample_is_a_copy() -> None:
    replay, stream = empty_replay(12), Stream()
    _add(replay, stream, [5])
    sample = replay.sample(np.arange(5))
    for _ in range(4):
        _add(replay, stream, [5])
    _check_rows(sample, np.arange(1, 6))


def test_terminated_and_interrupted_are_kept_apart() -> None:
    replay, stream = empty_replay(40), Stream()
    _add(replay, stream, [3, 2, 4], [Ending(terminated=True), Ending(interrupted=True)])
    sample = replay.sample(np.arange(9))
    assert sample.rows["terminated"].tolist() == [False, False, True] + [False] * 6
    assert sample.rows["interrupted"].tolist() == [False] * 4 + [True] + [False] * 4


def test_rewards_of_groups_are_kept() -> None:
    replay, stream = empty_replay(40), Stream()
    _add(replay, stream, [4])
    sample = replay.sample(np.arange(4))
    assert sample.rows["group_reward"].tolist() == [0.25, 0.5, 0.75, 1.0]
    assert sample.packed()["group_reward"].tolist() == [0.25, 0.5, 0.75, 1.0]


def test_of_a_trajectory_longer_than_the_ring_the_end_remains() -> None:
    replay, stream = empty_replay(10), Stream()
    _add(replay, stream, [25])
    _check(replay, _sequences(stream, 10, 1))
    assert replay.num_steps == 9
    assert replay.sample(np.array([8])).next_obs[0][0, 0] == 26


def test_full() -> None:
    replay, stream = empty_replay(10), Stream()
    found = []
    for _ in range(3):
        _add(replay, stream, [4])
        found.append(replay.is_full)
    assert found == [False, True, True]
    replay.add(_nothing(stream.packed([1])))
    assert replay.num_steps == 8


def _nothing(packed: PackedSteps) -> PackedSteps:
    return packed.trajectories(0, 0)


def test_too_few_rows() -> None:
    with pytest.raises(ValueError, match="expected at least 2"):
        empty_replay(1)


@pytest.mark.parametrize(("steps", "horizon", "rows"), [(1000, 10, 1101), (1000, 1000, 1002), (50, 1, 101)])
def test_room_for_the_steps_and_what_follows_trajectories(steps: int, horizon: int, rows: int) -> None:
    assert rows_for(steps, horizon) == rows
    replay, stream = empty_replay(rows), Stream()
    for _ in range(3 * steps // horizon):
        _add(replay, stream, [horizon])
    assert replay.num_steps >= steps


def test_what_reward_signals_see_of_single_steps() -> None:
    replay, stream = empty_replay(40), Stream()
    _add(replay, stream, [3, 2], [Ending(terminated=True), Ending(interrupted=True)])
    sample = replay.sample(np.array([2, 4, 0]))
    packed = sample.packed()
    assert packed.obs[0][:, 0].tolist() == [3, 6, 1]
    assert packed.bootstrap.obs[0][:, 0].tolist() == [4, 7, 2]
    assert packed.offset.tolist() == [0, 1, 2, 3]
    assert packed["done"].tolist() == [True, True, False]
    assert packed.terminated.tolist() == [True, False, False]
    assert packed.ended.tolist() == [True, True, False]
    assert packed["interrupted"].tolist() == [False, True, False]


def test_what_reward_signals_see_of_sequences() -> None:
    replay, stream = empty_replay(40, 4), Stream(MEMORY)
    _add(replay, stream, [6, 3], [Ending(), Ending(terminated=True)])
    packed = replay.sample(np.array([1, 2, 0])).packed()
    assert packed.obs[0][:, 0].tolist() == [5, 6, 8, 9, 10, 1, 2, 3, 4]
    assert packed.bootstrap.obs[0][:, 0].tolist() == [7, 11, 5]
    assert packed.offset.tolist() == [0, 2, 5, 9]
    assert packed.terminated.tolist() == [False, True, False]
    for name, column in everything(packed).items():
        assert _length(name, column) == len(packed), name


def test_what_reward_signals_see_of_sequences_without_padding() -> None:
    replay, stream = empty_replay(40, 4), Stream(MEMORY)
    _add(replay, stream, [4, 8], [Ending(terminated=True), Ending()])
    packed = replay.sample(np.array([2, 0])).packed()
    assert packed.obs[0][:, 0].tolist() == [10, 11, 12, 13, 1, 2, 3, 4]
    assert packed.bootstrap.obs[0][:, 0].tolist() == [14, 5]
    assert packed.offset.tolist() == [0, 4, 8]
    assert packed.terminated.tolist() == [False, True]
    assert len(packed) == 8


def _length(name: str, column: NDArray[np.generic]) -> int:
    """Rows of a column; those of which there is one per trajectory count as 9 rows when there are three."""
    per_trajectory = ("bootstrap_obs.0", "bootstrap_obs.1", "terminated", "ended", "agent")
    if name == "offset":
        return 9 if len(column) == 4 else 0
    return 9 if name in per_trajectory and len(column) == 3 else len(column)


def test_a_million_steps_of_eight_floats_take_less_than_150_megabytes() -> None:
    replay = Replay(vector_spec(8), [np.float32], num_rows=rows_for(1_000_000, 1000))
    packed = _plain(1000, 50)
    for _ in range(24):
        replay.add(packed)
    assert replay.is_full
    assert replay.num_steps == 1_000_000
    assert replay.num_bytes < 150e6


def _plain(length: int, count: int) -> PackedSteps:
    """Trajectories of the behavior with 8 floats and one continuous action."""
    packed = Stream().packed([length] * count)
    steps = len(packed)
    return packed_steps(
        offset=packed.offset,
        terminated=packed.terminated,
        ended=packed.ended,
        agent=packed.agent,
        reward=packed["reward"],
        group_reward=packed["group_reward"],
        done=packed["done"],
        interrupted=packed["interrupted"],
        memory=packed["memory"],
        obs=(np.ones((steps, 8), np.float32),),
        bootstrap_obs=(np.ones((count, 8), np.float32),),
        mask=np.zeros((steps, 0), np.bool_),
        continuous=np.zeros((steps, 1), np.float32),
        discrete=np.zeros((steps, 0), np.int32),
    )
