"""Trajectories as row numbers, and the packed steps gathered from them.

Shape legend: S trajectories, B packed steps (of all of them), M most groupmates of one step, E rows of groupmates that
are none of the steps, R rows of the pool, O an observation's own shape.
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
    """S trajectories that one message finished. Row numbers only: the experience stays in the pool.

    Trajectory s consists of ``rows[offset[s]:offset[s + 1]]``; row ``bootstrap[s]`` has the observation after its last
    step. The owner of the batch holds one reference to each of these rows; ``release`` gives them back.

    Attributes:
        rows: i32 [B], distinct.
        offset: i32 [S + 1], from 0 to B.
        bootstrap: i32 [S], distinct.
        terminated: bool [S], whether the episode ended for good, so that no reward follows the last step.
        ended: bool [S], whether the episode ended, for good or by its step limit; otherwise the horizon cut it.
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
        """Steps of each trajectory, i32 [S]."""
        return self.offset[1:] - self.offset[:-1]


@dataclass(frozen=True, slots=True)
class PackedGroups:
    """The groupmates in packed steps, as row numbers, so that no observation is stored twice.

    Number n means step n if n < B, otherwise row n - B of ``others``; -1 pads the end of a line. The mates of a step
    are the other agents in the group when it was observed. A mate that was not asked for a decision then is represented
    by its last observation.

    Attributes:
        mates: i32 [B, M], groupmates of each step.
        next_mates: i32 [S, M], mates left after the last step of each trajectory. Only their observations are valid, as
            not all of them have decided.
        others: ``obs``, ``continuous`` and ``discrete`` of E rows.
        all_done: bool [S], whether the whole group ended with the last step; without mates, whether the agent did.
    """

    mates: IntArray
    next_mates: IntArray
    others: Columns[NDArray[Any]]
    all_done: BoolArray


@dataclass(frozen=True, slots=True)
class PackedSteps:
    """The experience of S trajectories, one after another without padding, independent of the pool.

    Attributes:
        steps: the pool's columns, B rows.
        bootstrap: ``obs``, ``mask`` (not of demonstrations) and ``memory`` after the last step of each trajectory, S
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
        """B."""
        return int(self.offset[-1])

    def __getitem__(self, name: str) -> NDArray[Any]:
        """A column of the steps, [B, ...]."""
        return self.steps[name]

    @property
    def obs(self) -> tuple[ObservationArray, ...]:
        """Observations per sensor, f32 or u8 [B, *O]."""
        return self.steps.obs

    @property
    def num_trajectories(self) -> int:
        """S."""
        return len(self.agent)

    @property
    def lengths(self) -> IntArray:
        """Steps of each trajectory, i32 [S]."""
        return self.offset[1:] - self.offset[:-1]

    def following(self) -> LongArray:
        """Where to find the observation after each step, i64 [B].

        Number n means that of step n if n < B, otherwise that of row n - B of ``bootstrap``.
        """
        numbers: LongArray = np.arange(1, len(self) + 1)
        numbers[self.offset[1:] - 1] = len(self) + np.arange(self.num_trajectories)
        return numbers

    def trajectories(self, start: int, stop: int) -> PackedSteps:
        """Trajectories ``start`` to ``stop`` (exclusive, within 0 to S). Their columns are views."""
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
        """The groupmates in a range of trajectories. Mates outside of that range become ``others``."""
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
    """Groupmates by their places among B steps, followed by E other rows.

    Attributes:
        mates: the places of ``mates``, in the same shape.
        next_mates: the places of ``next_mates``, in the same shape.
        others: i64 [E], the other rows, those of ``mates`` first.
        num_decided: how many of ``others`` are from ``mates``.
    """

    mates: IntArray
    next_mates: IntArray
    others: LongArray
    num_decided: int


def number_mates(rows: NDArray[Any], mates: IntArray, next_mates: IntArray, num_rows: int) -> NumberedMates:
    """Replace the row numbers of groupmates by places. Mates that are not among the steps are placed after them.

    Args:
        rows: [B], distinct, of the steps.
        mates: i32 [any], rows of the groupmates; -1 for none.
        next_mates: i32 [any], likewise.
        num_rows: greater than all row numbers.
    """
    place = np.full(num_rows + 1, -1, np.int32)  # index -1 finds the last entry, which stays -1
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
    """The largest number of mates in a line."""
    return int((rows >= 0).any(0).sum())


def _of_width(mates: IntArray, width: int) -> IntArray:
    """The same mates with ``width`` columns; columns that are left out or added hold no mate."""
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
    """Where each of S trajectories with these lengths begins, and B: i32 [S + 1]."""
    offset = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=offset[1:])
    return offset


def gather(pool: RowPool, batches: Sequence[TrajectoryBatch], into: Columns[NDArray[Any]] | None = None) -> PackedSteps:
    """Copy the trajectories of one or more batches out of the pool, with one index operation per column.

    The caller still owns the rows; call ``release`` afterwards.

    Args:
        pool: has the rows.
        batches: at least one.
        into: columns with one row per step. Those with the pool's types are filled and become part of the result,
            instead of new ones.
    """
    batch = join(batches)
    # Converted to numpy's index type here, which ``take`` would otherwise do for each column.
    rows = batch.rows.astype(np.intp)
    bootstrap = batch.bootstrap.astype(np.intp)
    steps = {}
    for name, column in pool.columns.items():
        target = None if into is None else into.get(name)
        if target is None or target.dtype != column.dtype:
            steps[name] = column.take(rows, axis=0)
        else:
            # With the default mode, numpy would go through a buffer.
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
    # For the steps, the members of the few moments are numbered instead of the many mates. After a trajectory, the
    # mates are: its moment's members would bring in the bootstrap row itself.
    table = of_steps.table[:, : _width(of_steps.table)]
    numbered = number_mates(batch.rows, table, after.mates(after.table), pool.capacity)
    mates = of_steps.mates(numbered.mates)
    others = {name: pool[name].take(numbered.others, axis=0) for name in pool.groupmate_names}
    for name in ("continuous", "discrete"):
        others[name][numbered.num_decided :] = 0
    width = max(mates.shape[1], _width(numbered.next_mates))
    return PackedGroups(_of_width(mates, width), _of_width(numbered.next_mates, width), Columns(others), batch.all_done)


def of_workers(packed: PackedSteps, first: int) -> PackedSteps:
    """The same steps with worker numbers that start at ``first`` instead of 0."""
    return replace(packed, agent=packed.agent + (np.int64(first) << WORKER_SHIFT)) if first else packed


def join_packed(parts: Sequence[PackedSteps], into: Columns[NDArray[Any]] | None = None) -> PackedSteps:
    """Join packed steps with the same columns.

    Args:
        parts: at least one.
        into: as for ``gather``.
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
    """Join the groupmates of all parts. The ``others`` follow all steps, part by part."""
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
    """Give the rows of these batches back to the pool. They must not be read anymore."""
    if not batches:
        return
    # Two calls, because a row can be a step of one trajectory and the bootstrap of another.
    pool.release(np.concatenate([batch.rows for batch in batches]))
    pool.release(np.concatenate([batch.bootstrap for batch in batches]))


class PerAgent(dict[int, T]):
    """Agent -> a value of its unfinished episode."""

    def reset_worker(self, worker: int | None) -> None:
        """Drop the values of one worker's agents, or of all."""
        for agent in [one for one in self if worker is None or one >> WORKER_SHIFT == worker]:
            del self[agent]


class EpisodeSums(PerAgent[list[float]]):
    """Adds up several kinds of reward per agent until its episode ends."""

    def add(self, rewards: FloatArray, offset: IntArray, agent: LongArray, ended: BoolArray) -> NDArray[np.float64]:
        """Add trajectories in order.

        Args:
            rewards: [X, B], X kinds.
            offset: i32 [S + 1].
            agent: i64 [S].
            ended: bool [S], whether the episode ended with the trajectory.

        Returns:
            f64 [X, episodes that ended], their sums in order.
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
