"""Ownership of rows, growth, poison and back-pressure."""

from __future__ import annotations

import numpy as np
import pytest

from tests.experience.streams import OBS_DTYPES, mixed_spec, vector_spec
from trajtrainer.core.errors import OutOfMemoryError
from trajtrainer.experience import rows
from trajtrainer.experience.rows import RowPool

PATIENCE_S = 30.0


def small(capacity: int = 4, *, poison: bool = True) -> RowPool:
    return RowPool(vector_spec(), [np.float32], capacity=capacity, poison=poison)


def test_columns_have_the_shapes_of_the_spec() -> None:
    pool = RowPool(mixed_spec(), OBS_DTYPES, memory_size=6, capacity=5)
    assert [(column.shape, column.dtype.name) for column in pool.obs] == [
        ((5, 3), "float32"),
        ((5, 1, 2, 2), "uint8"),
    ]
    assert pool["mask"].shape == (5, 5)
    assert pool["continuous"].shape == (5, 2)
    assert pool["discrete"].shape == (5, 2)
    assert pool["log_prob"].shape == (5, 4)
    assert pool["memory"].shape == (5, 6)
    assert pool["reward"].shape == pool["group"].shape == pool["done"].shape == pool["version"].shape == (5,)
    assert pool.capacity == pool.num_free == 5


def test_a_row_of_eight_floats_takes_less_than_a_hundred_bytes() -> None:
    assert RowPool(vector_spec(8), [np.float32]).row_bytes < 100


def test_allocated_rows_are_distinct_and_ascending() -> None:
    pool = small(capacity=8)
    assert pool.allocate(3).tolist() == [0, 1, 2]
    assert pool.allocate(5).tolist() == [3, 4, 5, 6, 7]
    assert pool.num_free == 0


def test_allocation_goes_round_in_runs_and_over_rows_in_use() -> None:
    pool = small(capacity=10)
    first = pool.allocate(4)
    pool.release(first)
    assert pool.allocate(4).tolist() == [4, 5, 6, 7]
    assert pool.allocate(4).tolist() == [0, 1, 2, 3]
    pool.release(np.array([5, 6]))
    assert pool.allocate(3).tolist() == [5, 6, 8]
    assert pool.allocate(1).tolist() == [9]
    assert pool.num_free == 0


def test_growth_keeps_what_is_in_the_rows() -> None:
    pool = small(capacity=4)
    rows = pool.allocate(4)
    pool["reward"][rows] = [1, 2, 3, 4]
    pool.obs[0][rows, 0] = [10, 20, 30, 40]
    old_reward = pool["reward"]
    more = pool.allocate(1)
    assert pool.capacity == 8
    assert more.tolist() == [4]
    assert pool["reward"][rows].tolist() == old_reward[rows].tolist() == [1, 2, 3, 4]
    assert pool.obs[0][rows, 0].tolist() == [10, 20, 30, 40]
    assert pool.allocate(100).tolist() == sorted({*range(5, 105)})


def test_new_and_freed_rows_are_poisoned() -> None:
    pool = RowPool(mixed_spec(), OBS_DTYPES, memory_size=1, capacity=2, poison=True)

    def assert_poisoned(row: int) -> None:
        assert np.isnan(pool.obs[0][row]).all()
        assert (pool.obs[1][row] == 255).all()
        assert np.isnan(
            [pool["reward"][row], pool["group_reward"][row], pool["memory"][row, 0], pool["log_prob"][row, 0]]
        ).all()
        assert pool["version"][row] == pool["group"][row] == pool["discrete"][row, 0] == -1
        assert pool["mask"][row].all()

    row = int(pool.allocate(1)[0])
    assert_poisoned(row)
    for column in (
        *pool.obs,
        pool["reward"],
        pool["group_reward"],
        pool["memory"],
        pool["log_prob"],
        pool["version"],
        pool["mask"],
    ):
        column[row] = 0
    pool["group"][row] = pool["discrete"][row] = 0
    pool.release(np.array([row]))
    assert_poisoned(row)


def test_retained_row_is_freed_by_the_second_release() -> None:
    pool = small()
    rows = pool.allocate(2)
    pool.retain(rows[:1])
    pool.release(rows)
    assert pool.num_free == 3
    assert int(rows[0]) not in pool.allocate(3)
    pool.release(rows[:1])
    assert pool.allocate(1).tolist() == rows[:1].tolist()


def test_misuse_is_an_error() -> None:
    pool = small(poison=False)
    rows = pool.allocate(1)
    pool.release(rows)
    with pytest.raises(ValueError, match="released although they are free"):
        pool.release(rows)
    careful = small(poison=True)
    rows = careful.allocate(2)
    with pytest.raises(ValueError, match="twice in one call"):
        careful.release(np.concatenate([rows, rows]))
    careful.release(rows)
    with pytest.raises(ValueError, match="are free"):
        careful.retain(rows)
    with pytest.raises(ValueError, match="2 dtypes for 1 sensors"):
        RowPool(vector_spec(), OBS_DTYPES)
    with pytest.raises(ValueError, match="capacity 0"):
        small(capacity=0)


def test_grows_for_whatever_is_asked_for() -> None:
    pool = small(capacity=4)
    pool.allocate(5)
    assert pool.capacity == 8
    pool.allocate(4)
    assert pool.capacity == 16
    assert len(pool.allocate(50)) == 50


def test_large_rows_begin_with_few() -> None:
    """A picture of 64 MiB must not ask for a thousand rows before the first step."""
    assert RowPool(vector_spec(8), [np.float32]).capacity == 1024
    megabyte = RowPool(vector_spec(1 << 18), [np.float32])
    assert megabyte.capacity == 63
    huge = RowPool(vector_spec(1 << 24), [np.float32])
    assert huge.capacity == 1
    assert huge.row_bytes >= 1 << 26


def test_large_pools_do_not_double(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "_MOST_SPARE_BYTES", 1 << 20)
    pool = RowPool(vector_spec(1 << 14), [np.float32], capacity=8)
    for held, capacity in ((8, 8), (1, 16), (16, 31), (7, 46)):
        pool.allocate(held)
        assert pool.capacity == capacity


def test_what_cannot_be_allocated_is_told_and_changes_nothing() -> None:
    pool = RowPool(vector_spec(1 << 24), [np.float32])
    with pytest.raises(OutOfMemoryError, match=r"not enough memory for 16777216 rows .* \(1048576\.\d GiB\)"):
        pool.allocate(1 << 24)
    assert pool.capacity == 1
    assert len(pool.allocate(1)) == 1
