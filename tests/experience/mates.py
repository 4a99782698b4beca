"""Groupmates taken apart, to compare what refers to them in different ways."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tests.experience.oracle import Record, Trajectory
from trajtrainer.experience.trajectory import PackedSteps

# What an agent saw and did, sensor by sensor; without what it did where that does not count.
Seen = tuple[bytes, ...]


def expected_mates(trajectories: Sequence[Trajectory]) -> tuple[list[list[Seen]], list[list[Seen]]]:
    """What the mates of each step saw and did, and what those after each trajectory saw."""
    steps = [step for trajectory in trajectories for step in trajectory.steps]
    return (
        [sorted(_acted(mate) for mate in step.mates) for step in steps],
        [sorted(_seen(mate) for mate in trajectory.next_mates) for trajectory in trajectories],
    )


def mates_of(packed: PackedSteps) -> tuple[list[list[Seen]], list[list[Seen]]]:
    """The same of packed steps."""
    groups = packed.groups
    assert groups is not None
    obs = [np.concatenate(pair) for pair in zip(packed.obs, groups.others.obs, strict=True)]
    acted = [*obs, *(np.concatenate([packed[name], groups.others[name]]) for name in ("continuous", "discrete"))]
    widest = max(int((mates >= 0).sum(1).max(initial=0)) for mates in (groups.mates, groups.next_mates))
    assert groups.mates.shape == (len(packed), widest)
    assert groups.next_mates.shape == (packed.num_trajectories, widest)
    return _rows(groups.mates, acted), _rows(groups.next_mates, obs)


def _rows(mates: NDArray[np.int32], columns: Sequence[NDArray[np.generic]]) -> list[list[Seen]]:
    for row in mates:
        there = row[: int((row >= 0).sum())].tolist()
        assert (row[len(there) :] == -1).all(), "those that are there come first"
        assert len(set(there)) == len(there)
    return [sorted(tuple(one[mate].tobytes() for one in columns) for mate in row if mate >= 0) for row in mates]


def _seen(record: Record) -> Seen:
    return tuple(sensor.tobytes() for sensor in record.obs)


def _acted(record: Record) -> Seen:
    assert record.answer is not None
    return (*_seen(record), record.answer.continuous.tobytes(), record.answer.discrete.tobytes())
