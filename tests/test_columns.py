"""The table of columns: one place to add a column, from where it reaches both kinds of learners."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest
import torch

from tests.data.streams import OBS_DTYPES, mixed_spec
from trajtrainer import columns
from trajtrainer.columns import Columns, Moment, Store, concatenate, entries_of
from trajtrainer.steps import ActionBatch, StepBatch


def test_rows_are_taken_sliced_joined_and_mapped_alike_in_both_libraries() -> None:
    rows = Columns(
        {"obs.0": np.arange(6.0).reshape(3, 2), "reward": np.arange(3.0), "mask": np.zeros((3, 0), np.bool_)}
    )
    for some, index in ((rows, np.array([2, 0])), (rows.map(torch.from_numpy), torch.tensor([2, 0]))):
        taken = some.take(index)
        assert (len(some), len(taken)) == (3, 2)
        assert taken["reward"].tolist() == [2, 0]
        assert taken.obs[0].tolist() == [[4, 5], [0, 1]]
        assert tuple(taken["mask"].shape) == (2, 0)
        part = some.slice(1, 3)
        part["reward"][0] = 7
        assert some["reward"].tolist() == [0, 7, 2], "slices are views"
        some["reward"][1] = 1
    joined = concatenate([rows, rows.slice(0, 1)])
    assert joined["reward"].tolist() == [0, 1, 2, 0]
    assert rows.with_columns({"reward": np.ones(3)})["reward"].tolist() == [1, 1, 1]
    assert rows["reward"].tolist() == [0, 1, 2]


def test_every_column_comes_from_somewhere() -> None:
    """A column is filled from the batch's field of its name."""
    brought = {
        Moment.OBSERVED: {field.name for field in fields(StepBatch)} | {"memory"},
        Moment.FOLLOWED: {field.name for field in fields(StepBatch)},
        Moment.DECIDED: {field.name for field in fields(ActionBatch)},
    }
    for column in columns.TABLE:
        if column.moment in brought:
            assert column.name in brought[column.moment]
        if Store.EVENT in column.stores:
            assert column.name in brought[Moment.OBSERVED]


def test_entries_have_the_shapes_of_the_behavior() -> None:
    entries = entries_of(Store.POOL, mixed_spec(), OBS_DTYPES, memory_size=6)
    assert entries["memory"].shape == (6,)
    assert entries["log_prob"].shape == (entries["continuous"].shape[0] + entries["discrete"].shape[0],)
    assert [entries[name].dtype for name in ("obs.0", "obs.1")] == list(OBS_DTYPES)
    with pytest.raises(ValueError, match="sensors"):
        entries_of(Store.POOL, mixed_spec(), [np.float32])
