"""Trajectories as row numbers, and the packed steps gathered from them.

Shape legend: S trajectories, B packed steps of all trajectories, M maximum number of groupmates of a step, E rows of
groupmates that are not among the steps, R rows of the pool, O an observation's own shape.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from trajtrainer.core.columns import Columns, concatenate
from trajtrainer.core.steps import WORKER_SHIFT, BoolArray, FloatArray, IntArray, LongArray, ObservationArray
from trajtrainer.experience.moments import GroupMoments
from trajtrainer.experience.rows import RowPool

T = TypeVar("T")


@dataclass(slots=True)
class TrajectoryBatch:
    """S trajectories that were finished by one message, as row numbers. The experience itself stays in the pool.

    Trajectory s consists of ``rows[offset[s]:offset[s + 1]]``, and row ``bootstrap[s]`` has the observation after its
    last step. The owner of the batch holds one reference to each of these rows, until it calls ``release``.

    Attributes:
        rows: i32 [B], distinct row numbers.
        offset: i32 [S + 1], from 0 to B.
        bootstrap: i32 [S], distinct row numbers.
        terminated: bool [S], whether the episode reached a terminal state, so that there is no reward after the last
            step.
        ended: bool [S], whether the episode ended, in a terminal state or at its step limit; if False, the trajectory
            was cut at the horizon.
        agent: i64 [S], ``worker << 32 | id``.
        all_done: bool [S], as in ``PackedGroups``; None if groups are not needed.
    """

    rows: IntArray
    offset: IntArray
    bootstrap: IntArray
    terminated: BoolArray
    ended: BoolArray
    agent: LongArray
    all_done: BoolArray | None = None

    def __len__(self) -> int:
        return len(self.agent)

    @property
    def num_steps(self) -> int:
        """The number of steps, B."""
        return len(self.rows)

    @property
    def lengths(self) -> IntArray:
        """The number of steps in each trajectory, i32 [S]."""
        return self.offset[1:] - self.offset[:-1]


@dataclass(frozen=True, slots=True)
class PackedGroups:
    """The groupmates in packed steps, as row numbers, so that no observation is stored twice.

    A number n < B refers to step n, and any other n to row n - B of ``others``. Lines are padded with -1. The mates of
    a step are the other agents that were in the group when the step was observed. If a mate did not request a decision
    at this time, its last observation is used.

    Attributes:
        mates: i32 [B, M], groupmates of each step.
        next_mates: i32 [S, M], groupmates that remain after the last step of each trajectory. Only their observations
            are valid, because not all of them have decided yet.
        others: ``obs``, ``continuous`` and ``discrete`` of E rows.
        all_done: bool [S], whether the episodes of the whole group ended with the last step; for an agent without
            mates, whether its own episode ended.
    """

    mates: IntArray
    next_mates: IntArray
    others: Columns[NDArray[Any]]
    all_done: BoolArray


@dataclass(frozen=True, slots=True)
class PackedSteps:
    """The experience of S trajectories, concatenated without padding and independent of the pool.

    Attributes:
        steps: the pool's columns, B rows.
        bootstrap: ``obs``, ``mask`` (not for demonstrations) and ``memory`` after the last step of each trajectory, S
            rows.
        offset: i32 [S + 1]; trajectory s is ``[offset[s]:offset[s + 1]]``.
        terminated: bool [S], as in ``TrajectoryBatch``.
        ended: bool [S].
        agent: i64 [S].
        groups: the groupmates; None if the algorithm does not need them.
    """

    steps: Columns[NDArray[Any]]
    bootstrap: Columns[NDArray[Any]]
    offset: IntArray
    terminated: BoolArray
    ended: BoolArray
    agent: LongArray
    groups: PackedGroups | None = None

    def __len__(self) -> int:
        """Return the number of steps, B."""
        return int(self.offset[-1])

    def __getitem__(self, name: str) -> NDArray[Any]:
        """Return a column of the steps, [B, ...]."""
        return self.steps[name]

    @property
    def obs(self) -> tuple[ObservationArray, ...]:
        """The observations of each sensor, f32 or u8 [B, *O]."""
        return self.steps.obs

    @property
    def num_trajectories(self) -> int:
        """The number of trajectories, S."""
        return len(self.agent)

    @property
    def lengths(self) -> IntArray:
        """The number of steps in each trajectory, i32 [S]."""
        return self.offset[1:] - self.offset[:-1]

    def following(self) -> LongArray:
        """Return the position of the observation after each step, i64 [B].

        A number n < B refers to step n, and any other n to row n - B of ``bootstrap``.
        """
        numbers: LongArray = np.arange(1, len(self) + 1)
        numbers[self.offset[1:] - 1] = len(self) + np.arange(self.num_trajectories)
        return numbers

    def trajectories(self, start: int, stop: int) -> PackedSteps:
        """Return the trajectories from ``start`` up to but not including ``stop``. Their columns are views."""
        first, last = int(self.offset[start]), int(self.offset[stop])
        ends = slice(start, stop)
        return PackedSteps(
            steps=self.steps.slice(first, last),
            bootstrap=self.bootstrap.slice(start, stop),
            offset=self.offset[start : stop + 1] - np.int32(first),
            terminated=self.terminated[ends],
            ended=self.ended[ends],
            agent=self.agent[ends],
            groups=None if self.groups is None else self._groups_of(self.groups, slice(first, last), ends),
        )

    def _groups_of(self, groups: PackedGroups, steps: slice, ends: slice) -> PackedGroups:
        """Return the groupmates in a range of trajectories. Mates outside this range become ``others``."""
        outside = len(self) + len(groups.others)
        rows = np.arange(steps.start, steps.stop)
        numbered = number_mates(rows, groups.mates[steps], groups.next_mates[ends], outside)
        before = numbered.others < len(self)
        found = {
            name: np.empty((len(before), *column.shape[1:]), column.dtype) for name, column in groups.others.items()
        }
        for name, column in found.items():
            column[before] = self.steps[name][numbered.others[before]]
            column[~before] = groups.others[name][numbered.others[~before] - len(self)]
        mates, next_mates = numbered.mates, numbered.next_mates
        width = max(_width(mates), _width(next_mates))
        return PackedGroups(
            _of_width(mates, width), _of_width(next_mates, width), Columns(found), groups.all_done[ends]
        )


class NumberedMates(NamedTuple):
    """Groupmates as indices into B steps followed by E other rows.

    Attributes:
        mates: the indices of the given ``mates``, with the same shape.
        next_mates: the indices of the given ``next_mates``, with the same shape.
        others: i64 [E], the row numbers of the other rows; first those of ``mates``, then those of ``next_mates``.
        num_decided: the number of rows in ``others`` that are from ``mates``.
    """

    mates: IntArray
    next_mates: IntArray
    others: LongArray
    num_decided: int


def number_mates(rows: NDArray[Any], mates: IntArray, next_mates: IntArray, num_rows: int) -> NumberedMates:
    """Convert the row numbers of groupmates to indices. Mates that are not among the steps get indices after them.

    Args:
        rows: [B], the distinct row numbers of the steps.
        mates: i32 [any], row numbers of groupmates; -1 means no groupmate.
        next_mates: i32 [any], row numbers of the groupmates after the last steps; -1 means no groupmate.
        num_rows: a number greater than all row numbers.
    """
    place = np.full(num_rows + 1, -1, np.int32)  # index -1 refers to the last entry, which remains -1
    place[rows] = np.arange(len(rows), dtype=np.int32)
    found, others = [], []
    end = len(rows)
    for some in (mates.astype(np.intp), next_mates.astype(np.intp)):
        numbers = place.take(some)
        is_missing = (numbers < 0) & (some >= 0)
        missing = np.unique(some[is_missing])
        place[missing] = np.arange(end, end + len(missing), dtype=np.int32)
        numbers[is_missing] = place[some[is_missing]]
        found.append(numbers)
        others.append(missing)
        end += len(missing)
    return NumberedMates(found[0], found[1], np.concatenate(others), len(others[0]))


def _width(rows: IntArray) -> int:
    """Return the largest number of mates in a line."""
    return int((rows >= 0).any(0).sum())


def _of_width(mates: IntArray, width: int) -> IntArray:
    """Return the mates in ``width`` columns. Only empty columns are added or removed."""
    if mates.shape[1] >= width:
        return mates[:, :width]
    return np.concatenate([mates, np.full((len(mates), width - mates.shape[1]), -1, np.int32)], axis=1)


def join(batches: Sequence[TrajectoryBatch]) -> TrajectoryBatch:
    """Join the trajectories of one or more batches, in order."""
    if len(batches) == 1:
        return batches[0]
    lengths = np.concatenate([batch.lengths for batch in batches])
    all_done = [batch.all_done for batch in batches if batch.all_done is not None]
    return TrajectoryBatch(
        rows=np.concatenate([batch.rows for batch in batches]),
        offset=offsets(lengths),
        bootstrap=np.concatenate([batch.bootstrap for batch in batches]),
        terminated=np.concatenate([batch.terminated for batch in batches]),
        ended=np.concatenate([batch.ended for batch in batches]),
        agent=np.concatenate([batch.agent for batch in batches]),
        all_done=np.concatenate(all_done) if all_done else None,
    )


def offsets(lengths: IntArray | LongArray) -> IntArray:
    """Return the start of each of S trajectories with these lengths, followed by B, i32 [S + 1]."""
    offset = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=offset[1:])
    return offset


def gather(pool: RowPool, batches: Sequence[TrajectoryBatch], into: Columns[NDArray[Any]] | None = None) -> PackedSteps:
    """Copy the trajectories of one or more batches from the pool, with one index operation per column.

    The caller still owns the rows, and should call ``release`` afterwards.

    Args:
        pool: the pool that contains the rows.
        batches: one or more batches.
        into: columns with one row per step. Columns with the same dtype as the pool's are filled and become part of the
            result; the others are replaced by new columns.
    """
    batch = join(batches)
    # Convert to numpy's index type once. Otherwise, ``take`` would convert the indices for each column.
    rows = batch.rows.astype(np.intp)
    bootstrap = batch.bootstrap.astype(np.intp)
    steps = {}
    for name, column in pool.columns.items():
        target = None if into is None else into.get(name)
        if target is None or target.dtype != column.dtype:
            steps[name] = column.take(rows, axis=0)
        else:
            # numpy would buffer the output in the default mode.
            steps[name] = column.take(rows, axis=0, out=target, mode="clip")
    return PackedSteps(
        steps=Columns(steps),
        bootstrap=Columns({name: pool[name].take(bootstrap, axis=0) for name in pool.bootstrap_names}),
        offset=batch.offset,
        terminated=batch.terminated,
        ended=batch.ended,
        agent=batch.agent,
        groups=None if pool.moments is None else _gather_groups(pool, pool.moments, batch),
    )


def _gather_groups(pool: RowPool, moments: GroupMoments, batch: TrajectoryBatch) -> PackedGroups:
    assert batch.all_done is not None
    of_steps, after = moments.members(batch.rows), moments.members(batch.bootstrap)
    # For the steps, convert the members of the moments, because there are far fewer members than mates. For the
    # observations after the last steps, convert the mates, because the members of a moment can include the bootstrap
    # row.
    table = of_steps.table[:, : _width(of_steps.table)]
    numbered = number_mates(batch.rows, table, after.mates(after.table), pool.capacity)
    mates = of_steps.mates(numbered.mates)
    others = {name: pool[name].take(numbered.others, axis=0) for name in pool.groupmate_names}
    for name in ("continuous", "discrete"):
        others[name][numbered.num_decided :] = 0
    width = max(mates.shape[1], _width(numbered.next_mates))
    return PackedGroups(_of_width(mates, width), _of_width(numbered.next_mates, width), Columns(others), batch.all_done)


def of_workers(packed: PackedSteps, first: int) -> PackedSteps:
    """Return the steps with ``first`` added to all worker numbers."""
    return replace(packed, agent=packed.agent + (np.int64(first) << WORKER_SHIFT)) if first else packed


def join_packed(parts: Sequence[PackedSteps], into: Columns[NDArray[Any]] | None = None) -> PackedSteps:
    """Join packed steps with the same columns.

    Args:
        parts: one or more packed steps.
        into: as in ``gather``.
    """
    starts = offsets(np.array([len(part) for part in parts]))
    steps = {}
    for name, first in parts[0].steps.items():
        target = None if into is None else into.get(name)
        if target is not None and target.dtype != first.dtype:
            target = None
        steps[name] = np.concatenate([part[name] for part in parts], out=target)
    return PackedSteps(
        steps=Columns(steps),
        bootstrap=Columns(
            {name: np.concatenate([part.bootstrap[name] for part in parts]) for name in parts[0].bootstrap}
        ),
        offset=np.concatenate(
            [np.zeros(1, np.int32), *(part.offset[1:] + start for part, start in zip(parts, starts, strict=False))]
        ),
        terminated=np.concatenate([part.terminated for part in parts]),
        ended=np.concatenate([part.ended for part in parts]),
        agent=np.concatenate([part.agent for part in parts]),
        groups=_join_groups(parts, starts),
    )


def _join_groups(parts: Sequence[PackedSteps], starts: IntArray) -> PackedGroups | None:
    """Join the groupmates of all parts. The parts' ``others`` are numbered in order after all steps."""
    groups = [part.groups for part in parts if part.groups is not None]
    if not groups:
        return None
    width = max(each.mates.shape[1] for each in groups)
    begins = starts[-1] + offsets(np.array([len(each.others) for each in groups]))

    def moved(mates: IntArray, number: int) -> IntArray:
        size, wide = len(parts[number]), _of_width(mates, width)
        there = np.where(wide < size, wide + starts[number], wide + (begins[number] - size))
        return np.where(wide < 0, np.int32(-1), there).astype(np.int32)

    return PackedGroups(
        mates=np.concatenate([moved(each.mates, number) for number, each in enumerate(groups)]),
        next_mates=np.concatenate([moved(each.next_mates, number) for number, each in enumerate(groups)]),
        others=concatenate([each.others for each in groups]).map(np.array),
        all_done=np.concatenate([each.all_done for each in groups]),
    )


def release(pool: RowPool, batches: Sequence[TrajectoryBatch]) -> None:
    """Release the rows of these batches to the pool. They must not be read afterwards."""
    if not batches:
        return
    # Two calls, because a row can be a step of one trajectory and the bootstrap of another.
    pool.release(np.concatenate([batch.rows for batch in batches]))
    pool.release(np.concatenate([batch.bootstrap for batch in batches]))


class PerAgent(dict[int, T]):
    """A mapping from agents to a value for the agent's unfinished episode."""

    def reset_worker(self, worker: int | None) -> None:
        """Remove the values of one worker's agents, or of all agents (None)."""
        for agent in [one for one in self if worker is None or one >> WORKER_SHIFT == worker]:
            del self[agent]


class EpisodeSums(PerAgent[list[float]]):
    """Sums of several kinds of rewards per agent, until the agent's episode ends."""

    def add(self, rewards: FloatArray, offset: IntArray, agent: LongArray, ended: BoolArray) -> NDArray[np.float64]:
        """Add the rewards of trajectories in order.

        Args:
            rewards: [X, B], X kinds of rewards.
            offset: i32 [S + 1], offsets of the trajectories.
            agent: i64 [S], agent of each trajectory.
            ended: bool [S], whether the episode ended with the trajectory.

        Returns:
            f64 [X, episodes that ended], the sums of these episodes in order.
        """
        sums = np.add.reduceat(rewards.astype(np.float64), offset[:-1], axis=1)
        finished = []
        for one, parts, is_end in zip(agent.tolist(), sums.T.tolist(), ended.tolist(), strict=True):
            earlier = self.get(one)
            total = parts if earlier is None else [a + b for a, b in zip(earlier, parts, strict=True)]
            if is_end:
                self.pop(one, None)
                finished.append(total)
            else:
                self[one] = total
        return np.array(finished, np.float64).reshape(len(finished), len(rewards)).T
