"""Trajectories as row numbers, and the packed steps gathered from them.

Shape legend: S trajectories, B packed steps (of all of them), M most groupmates of one step, E rows of groupmates that
are none of the steps, R rows of the pool, O an observation's own shape.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trajtrainer.core.columns import Columns, concatenate
from trajtrainer.core.steps import WORKER_SHIFT, BoolArray, IntArray, LongArray, ObservationArray
from trajtrainer.data.moments import Moments
from trajtrainer.data.rows import RowPool


@dataclass(slots=True)
class TrajectoryBatch:
    """S trajectories that were finished by one message. Numbers only: the experience stays in the pool.

    Trajectory s consists of ``rows[offset[s]:offset[s + 1]]``; the observation after its last step is that of row
    ``bootstrap[s]``. Whoever holds the batch holds one reference to each of its rows and bootstraps; ``release`` gives
    them back.

    Attributes:
        rows: i32 [B], distinct.
        offset: i32 [S + 1], from 0 to B.
        bootstrap: i32 [S], distinct.
        terminated: bool [S], the episode ended for good: nothing is to be expected after the last step.
        ended: bool [S], the episode ended, for good or by its step limit; otherwise the horizon cut it.
        agent: i64 [S], ``worker << 32 | id``.
        all_done: bool [S], as in ``PackedGroups``; None where groups are not needed.
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
        """B."""
        return len(self.rows)

    @property
    def lengths(self) -> IntArray:
        """i32 [S], steps of each trajectory."""
        return self.offset[1:] - self.offset[:-1]


@dataclass(frozen=True, slots=True)
class PackedGroups:
    """The groupmates in packed steps, as numbers of rows: no observation stands twice.

    Number n is step n where n < B, and row n - B of ``others`` from there on; -1 is none, behind those that are there.
    Mates of a step are the other agents of the group when it was observed; one that was not asked for a decision then
    is there by what it saw when it last was.

    Attributes:
        mates: i32 [B, M], groupmates of each step.
        next_mates: i32 [S, M], those left after the last step of each trajectory. Only their observations count, as not
            all of them have decided.
        others: ``obs``, ``continuous`` and ``discrete`` of E rows.
        all_done: bool [S], the whole group ended with the last step; without mates: the agent did.
    """

    mates: IntArray
    next_mates: IntArray
    others: Columns[NDArray[Any]]
    all_done: BoolArray


@dataclass(frozen=True, slots=True)
class PackedSteps:
    """The experience of S trajectories, one after another without padding. Independent of the pool.

    Attributes:
        steps: the pool's columns, B rows.
        bootstrap: ``obs``, ``mask`` (not of demonstrations) and ``memory`` after the last step of each trajectory, S
            rows.
        offset: i32 [S + 1]; trajectory s is ``[offset[s]:offset[s + 1]]``.
        terminated: bool [S], as in ``TrajectoryBatch``.
        ended: bool [S].
        agent: i64 [S].
        groups: the groupmates; None where the algorithm does not need them.
    """

    steps: Columns[NDArray[Any]]
    bootstrap: Columns[NDArray[Any]]
    offset: IntArray
    terminated: BoolArray
    ended: BoolArray
    agent: LongArray
    groups: PackedGroups | None = None

    def __len__(self) -> int:
        """Return B."""
        return int(self.offset[-1])

    def __getitem__(self, name: str) -> NDArray[Any]:
        """Return a column of the steps, [B, ...]."""
        return self.steps[name]

    @property
    def obs(self) -> tuple[ObservationArray, ...]:
        """Return the observations per sensor, f32 or u8 [B, *O]."""
        return self.steps.obs

    @property
    def num_trajectories(self) -> int:
        """Return S."""
        return len(self.agent)

    @property
    def lengths(self) -> IntArray:
        """Return the steps of each trajectory, i32 [S]."""
        return self.offset[1:] - self.offset[:-1]

    def following(self) -> LongArray:
        """Return where what was observed after each step stands, i64 [B].

        Number n is the observation of step n where n < B, and row n - B of ``bootstrap`` from there on.
        """
        numbers: LongArray = np.arange(1, len(self) + 1)
        numbers[self.offset[1:] - 1] = len(self) + np.arange(self.num_trajectories)
        return numbers

    def trajectories(self, start: int, stop: int) -> PackedSteps:
        """Return trajectories ``start`` to ``stop`` (exclusive, within 0 to S). Columns of theirs are views."""
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
        """Return the groupmates in a range of trajectories. Steps outside of it become others."""
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
    """Groupmates by their places among some rows.

    Attributes:
        mates: like those that are numbered.
        next_mates: likewise.
        others: i64 [E], the rows that stand behind those B: first those of ``mates``.
        num_decided: how many of these those are.
    """

    mates: IntArray
    next_mates: IntArray
    others: LongArray
    num_decided: int


def number_mates(rows: NDArray[Any], mates: IntArray, next_mates: IntArray, num_rows: int) -> NumberedMates:
    """Return groupmates by their places among the steps; who is not there comes behind.

    Args:
        rows: [B], distinct, of the steps.
        mates: i32 [any], rows of the groupmates; -1 for none.
        next_mates: i32 [any], likewise.
        num_rows: all numbers are smaller.
    """
    place = np.full(num_rows + 1, -1, np.int32)  # the last entry is that of -1
    place[rows] = np.arange(len(rows), dtype=np.int32)
    found, behind = [], []
    end = len(rows)
    for some in (mates.astype(np.intp), next_mates.astype(np.intp)):
        numbers = place.take(some)
        is_missing = (numbers < 0) & (some >= 0)
        missing = np.unique(some[is_missing])
        place[missing] = np.arange(end, end + len(missing), dtype=np.int32)
        numbers[is_missing] = place[some[is_missing]]
        found.append(numbers)
        behind.append(missing)
        end += len(missing)
    return NumberedMates(found[0], found[1], np.concatenate(behind), len(behind[0]))


def _width(rows: IntArray) -> int:
    """Return how many columns hold a row at all; they come first."""
    return int((rows >= 0).any(0).sum())


def _of_width(mates: IntArray, width: int) -> IntArray:
    """Return so many columns; those that are left out or added hold none."""
    if mates.shape[1] >= width:
        return mates[:, :width]
    return np.concatenate([mates, np.full((len(mates), width - mates.shape[1]), -1, np.int32)], axis=1)


def join(batches: Sequence[TrajectoryBatch]) -> TrajectoryBatch:
    """Return one batch of the trajectories of several, in order. At least one."""
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
    """Return i32 [S + 1], where each of S trajectories of these lengths begins, and B."""
    offset = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=offset[1:])
    return offset


def gather(pool: RowPool, batches: Sequence[TrajectoryBatch], into: Columns[NDArray[Any]] | None = None) -> PackedSteps:
    """Copy the trajectories of one or more batches out of the pool: one index operation per column.

    The rows remain held; call ``release`` afterwards.

    Args:
        pool: where the rows stand.
        batches: at least one.
        into: columns of as many rows as there are steps; those of the pool's types are filled and become part of the
            result instead of new ones.
    """
    batch = join(batches)
    # Once to the machine's index type, instead of once per column.
    rows = batch.rows.astype(np.intp)
    bootstrap = batch.bootstrap.astype(np.intp)
    return PackedSteps(
        steps=Columns({name: _gathered(column, rows, into, name) for name, column in pool.columns.items()}),
        bootstrap=Columns({name: pool[name].take(bootstrap, axis=0) for name in pool.bootstrap_names}),
        offset=batch.offset,
        terminated=batch.terminated,
        ended=batch.ended,
        agent=batch.agent,
        groups=None if pool.moments is None else _groups(pool, pool.moments, batch),
    )


def _groups(pool: RowPool, moments: Moments, batch: TrajectoryBatch) -> PackedGroups:
    """Return the groupmates of these trajectories."""
    assert batch.all_done is not None
    of_steps, after = moments.members(batch.rows), moments.members(batch.bootstrap)
    # By the few moments instead of the many mates; but after a trajectory, not with what it ends before.
    table = of_steps.table[:, : _width(of_steps.table)]
    numbered = number_mates(batch.rows, table, after.mates(after.table), pool.capacity)
    mates = of_steps.mates(numbered.mates)
    others = {name: pool[name].take(numbered.others, axis=0) for name in pool.groupmate_names}
    for name in ("continuous", "discrete"):
        others[name][numbered.num_decided :] = 0
    width = max(mates.shape[1], _width(numbered.next_mates))
    return PackedGroups(_of_width(mates, width), _of_width(numbered.next_mates, width), Columns(others), batch.all_done)


def _gathered(
    column: NDArray[Any], rows: NDArray[np.intp], into: Columns[NDArray[Any]] | None, name: str
) -> NDArray[Any]:
    place = None if into is None else into.get(name)
    if place is None or place.dtype != column.dtype:
        return column.take(rows, axis=0)
    # With the default mode numpy would fill a buffer first.
    return column.take(rows, axis=0, out=place, mode="clip")


def of_workers(packed: PackedSteps, first: int) -> PackedSteps:
    """Return the steps as those of workers that are numbered from ``first`` on, not from 0."""
    return replace(packed, agent=packed.agent + (np.int64(first) << WORKER_SHIFT)) if first else packed


def join_packed(parts: Sequence[PackedSteps], into: Columns[NDArray[Any]] | None = None) -> PackedSteps:
    """Copy packed steps of one or more parts of the same columns behind each other.

    Args:
        parts: at least one.
        into: as for ``gather``.
    """
    starts = offsets(np.array([len(part) for part in parts]))
    return PackedSteps(
        steps=Columns({name: _joined(name, parts, into) for name in parts[0].steps}),
        bootstrap=Columns(
            {name: np.concatenate([part.bootstrap[name] for part in parts]) for name in parts[0].bootstrap}
        ),
        offset=np.concatenate(
            [np.zeros(1, np.int32), *(part.offset[1:] + start for part, start in zip(parts, starts, strict=False))]
        ),
        terminated=np.concatenate([part.terminated for part in parts]),
        ended=np.concatenate([part.ended for part in parts]),
        agent=np.concatenate([part.agent for part in parts]),
        groups=_joined_groups(parts, starts),
    )


def _joined(name: str, parts: Sequence[PackedSteps], into: Columns[NDArray[Any]] | None) -> NDArray[Any]:
    columns = [part[name] for part in parts]
    place = None if into is None else into.get(name)
    if place is None or place.dtype != columns[0].dtype:
        return np.concatenate(columns)
    return np.concatenate(columns, out=place)


def _joined_groups(parts: Sequence[PackedSteps], starts: IntArray) -> PackedGroups | None:
    """Return the groupmates of all parts; others stand behind all steps, part by part."""
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
    """Give the rows of these batches back to the pool. They must not be read any more."""
    if not batches:
        return
    # Two calls, because a row can be a step of one trajectory and the bootstrap of the one before.
    pool.release(np.concatenate([batch.rows for batch in batches]))
    pool.release(np.concatenate([batch.bootstrap for batch in batches]))
