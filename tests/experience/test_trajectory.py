"""Gathering, slicing, joining and releasing trajectories."""

from __future__ import annotations

import numpy as np
import pytest

from tests.experience.packing import concatenate, everything
from tests.experience.streams import OBS_DTYPES, Numbers, assert_same, mixed_spec, random_stream
from trajtrainer.experience.agent_processor import AgentProcessor
from trajtrainer.experience.rows import RowPool
from trajtrainer.experience.trajectory import TrajectoryBatch, gather, join, release


@pytest.fixture
def pool() -> RowPool:
    return RowPool(mixed_spec(), OBS_DTYPES, memory_size=2, poison=True)


@pytest.fixture
def batches(pool: RowPool) -> list[TrajectoryBatch]:
    """Some dozens of trajectories in several batches."""
    processor = AgentProcessor(pool, 5)
    numbers = Numbers(mixed_spec(), 2)
    finished = []
    for (message,) in random_stream(60, seed=3):
        batch = numbers.steps(message)
        recorded = processor.record(batch)
        processor.acted(recorded.rows[batch.num_terminal :], numbers.actions(batch.num_decisions))
        if recorded.trajectories is not None:
            finished.append(recorded.trajectories)
    processor.drop()
    return finished


def test_gather_takes_rows_and_bootstraps_in_order(pool: RowPool, batches: list[TrajectoryBatch]) -> None:
    packed = gather(pool, batches)
    joined = join(batches)
    assert len(packed) == joined.num_steps == sum(batch.num_steps for batch in batches)
    assert packed.num_trajectories == len(joined) == sum(map(len, batches))
    assert packed.lengths.tolist() == [length for batch in batches for length in batch.lengths.tolist()]
    np.testing.assert_array_equal(packed.obs[1], pool.obs[1][joined.rows])
    np.testing.assert_array_equal(packed["reward"], pool["reward"][joined.rows])
    np.testing.assert_array_equal(packed.bootstrap.obs[0], pool.obs[0][joined.bootstrap])
    np.testing.assert_array_equal(packed.bootstrap["memory"], pool["memory"][joined.bootstrap])
    assert packed["done"][packed.offset[1:] - 1].tolist() == packed.ended.tolist()
    assert packed["done"].sum() == packed.ended.sum()


def test_gathering_at_once_and_one_by_one_is_the_same(pool: RowPool, batches: list[TrajectoryBatch]) -> None:
    assert_same(gather(pool, batches), concatenate([gather(pool, [batch]) for batch in batches]))


def test_packed_steps_do_not_depend_on_the_pool(pool: RowPool, batches: list[TrajectoryBatch]) -> None:
    packed = gather(pool, batches)
    release(pool, batches)
    assert pool.num_free == pool.capacity
    assert np.isfinite(packed["reward"]).all()
    assert not any(np.shares_memory(a, b) for a, b in zip(packed.obs, pool.obs, strict=True))
    release(pool, [])


def test_ranges_of_trajectories_are_views(pool: RowPool, batches: list[TrajectoryBatch]) -> None:
    packed = gather(pool, batches)
    part = packed.trajectories(2, 6)
    start, stop = packed.offset[2], packed.offset[6]
    assert part.num_trajectories == 4
    assert len(part) == stop - start
    assert part.offset[0] == 0
    assert part.lengths.tolist() == packed.lengths[2:6].tolist()
    np.testing.assert_array_equal(part["reward"], packed["reward"][start:stop])
    np.testing.assert_array_equal(part.agent, packed.agent[2:6])
    whole, views = everything(packed), everything(part)
    assert all(np.shares_memory(whole[name], view) for name, view in views.items() if name != "offset")
    assert packed.trajectories(3, 3).num_trajectories == 0
