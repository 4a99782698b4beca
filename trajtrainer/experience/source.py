"""Transfers experience from a behavior's actors to its trainer, in order, as chunks of finished trajectories.

A chunk consists of rows of a pool in this process, or of packed steps in shared memory or in a received message.
``PackedLayout`` defines the positions of arrays in packed steps.

Shape legend: B packed steps, S trajectories, M maximum number of groupmates of a step, E rows of other groupmates,
R bytes, H memory size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from trajtrainer.core.columns import ColumnEntry, Columns, Store, bootstrap_names, entries_of, sensor_name
from trajtrainer.core.queues import EpisodesAborted, Marker, TrajectoryQueue
from trajtrainer.core.spec import BehaviorSpec
from trajtrainer.core.stats import StatsReporter
from trajtrainer.core.steps import Aggregation, BoolArray, FloatArray, IntArray, LongArray
from trajtrainer.experience.rows import RowPool
from trajtrainer.experience.trajectory import (
    PackedGroups,
    PackedSteps,
    TrajectoryBatch,
    gather,
    join,
    join_packed,
    release,
)

# Called with a number of steps. Returns the columns to copy the steps to, or None to create new columns.
Reserve = Callable[[int], Columns[NDArray[Any]] | None]

_ALIGNMENT = 64
_FLAG, _NUMBER, _AGENT = (
    ColumnEntry(np.dtype("?"), ()),
    ColumnEntry(np.dtype("<i4"), ()),
    ColumnEntry(np.dtype("<i8"), ()),
)


class EnvironmentRewards(NamedTuple):
    """The environment's rewards in S trajectories with B steps.

    Attributes:
        rewards: f32 [2, B], rewards of the agents and rewards of their groups.
        offset: i32 [S + 1], as in ``PackedSteps``.
        agent: i64 [S], as in ``PackedSteps``.
        ended: bool [S], as in ``PackedSteps``.
        in_group: bool [S], whether the agent is in a group.
        all_done: bool [S], as in ``PackedGroups``; None if the algorithm does not need groups.
    """

    rewards: FloatArray
    offset: IntArray
    agent: LongArray
    ended: BoolArray
    in_group: BoolArray
    all_done: BoolArray | None


@dataclass(slots=True)
class RowsChunk:
    """Finished trajectories as rows of a pool in this process. They are copied once, by ``gather``."""

    pool: RowPool
    batches: Sequence[TrajectoryBatch]
    rows: int  # rows in the learner's buffer, which holds whole sequences if there is a recurrent memory
    num_steps: int  # B

    @property
    def num_ended(self) -> int:
        """The number of episodes that end with these trajectories."""
        return sum(int(np.count_nonzero(batch.ended)) for batch in self.batches)

    def environment_rewards(self) -> EnvironmentRewards:
        pool, batch = self.pool, join(self.batches)
        return EnvironmentRewards(
            np.stack([pool["reward"][batch.rows], pool["group_reward"][batch.rows]]),
            batch.offset,
            batch.agent,
            batch.ended,
            pool["group"][batch.rows[batch.offset[1:] - 1]] > 0,
            batch.all_done,
        )

    def lag_sum(self, version: int) -> int:  # noqa: ARG002
        """Return the total policy lag: the sum over all steps of ``version`` minus the step's version."""
        return 0  # the actor uses the learner's current policy

    def newest_of_last(self) -> int:
        """Return the newest policy version among the last steps of the trajectories."""
        return max(int(self.pool["version"][batch.rows[batch.offset[1:] - 1]].max()) for batch in self.batches)

    @staticmethod
    def pack(chunks: Sequence[Any], into: Columns[NDArray[Any]] | None) -> PackedSteps:
        """Copy the steps of these chunks, and return their memory to the actor."""
        pool, batches = chunks[0].pool, [batch for chunk in chunks for batch in chunk.batches]
        packed = gather(pool, batches, into)
        release(pool, batches)
        return packed


@dataclass(frozen=True, slots=True)
class PackedChunk:
    """Finished trajectories as packed steps in memory written by a remote actor. ``free`` returns the memory."""

    packed: PackedSteps
    rows: int
    free: Callable[[], object]

    @property
    def num_steps(self) -> int:
        return len(self.packed)

    @property
    def num_ended(self) -> int:
        return int(np.count_nonzero(self.packed.ended))

    def environment_rewards(self) -> EnvironmentRewards:
        packed = self.packed
        return EnvironmentRewards(
            np.stack([packed["reward"], packed["group_reward"]]),
            packed.offset,
            packed.agent,
            packed.ended,
            packed["group"][packed.offset[1:] - 1] > 0,
            None if packed.groups is None else packed.groups.all_done,
        )

    def lag_sum(self, version: int) -> int:
        return len(self.packed) * version - int(self.packed["version"].sum(dtype=np.int64))

    def newest_of_last(self) -> int:
        return int(self.packed["version"][self.packed.offset[1:] - 1].max())

    @staticmethod
    def pack(chunks: Sequence[Any], into: Columns[NDArray[Any]] | None) -> PackedSteps:
        packed = join_packed([chunk.packed for chunk in chunks], into)
        for chunk in chunks:
            chunk.free()
        return packed


Chunk = RowsChunk | PackedChunk


class ExperienceSource(TrajectoryQueue[Chunk]):
    """The learner's queue of one behavior's experience. One thread adds and one thread drains; they may be the same.

    Drained rows can stay *held* until the learner has learned from them. Actors wait for ``consumed`` rows, so held
    rows limit how far actors can get ahead of learning.

    Args:
        is_concurrent: whether actors continue during an update, and thus need free rows and newer policies.
        max_lag: drop trajectories whose last step is from a policy that is more than this number of versions old; None
            keeps all trajectories.
        reports_lag: whether to report the age of the policies.

    Attributes:
        rows_put: total number of rows that have been added.
        drained: total number of rows that have been drained.
        on_progress: called when some of the held rows are released during an update.
        on_consumed: called when rows have been drained or learned from.
    """

    def __init__(self, *, is_concurrent: bool = False, max_lag: int | None = None, reports_lag: bool = False) -> None:
        super().__init__()
        self.is_concurrent = is_concurrent
        self.rows_put = self.drained = 0
        self.on_progress: Callable[[], object] = lambda: None
        self.on_consumed: Callable[[], object] = lambda: None
        self._max_lag = max_lag
        self._reports_lag = reports_lag
        self._drained_last = 0
        self._held = 0.0  # number of rows from the last drain that the learner has not learned from yet

    def add(self, item: Chunk | Marker) -> None:
        """Append a chunk or a marker."""
        if isinstance(item, EpisodesAborted):
            self.abort_episodes(item.worker)
        elif isinstance(item, Marker):
            self.put(item)
        else:
            self.rows_put += item.rows
            self.put(item, item.num_steps)

    @property
    def num_rows(self) -> int:
        """The number of rows waiting to be drained."""
        return self.rows_put - self.drained

    @property
    def consumed(self) -> int:
        """The number of rows that were drained and are no longer held."""
        return self.drained - math.ceil(self._held)

    def drain_into(self, reserve: Reserve, *, hold: bool) -> list[PackedSteps | Marker]:
        """Remove and return all items in order, without waiting. Chunks between two markers are packed together.

        Args:
            reserve: called with the number of steps; returns the columns to write them to.
            hold: do not count the rows as consumed until ``share_progress`` or ``settle`` is called.
        """
        items = self.drain()
        chunks = [item for item in items if not isinstance(item, Marker)]
        into = reserve(sum(chunk.num_steps for chunk in chunks)) if chunks else None
        parts: list[PackedSteps | Marker] = []
        end = 0
        for is_marker, group in groupby(items, lambda item: isinstance(item, Marker)):
            if is_marker:
                parts += [item for item in group if isinstance(item, Marker)]
                continue
            some = [item for item in group if not isinstance(item, Marker)]
            start, end = end, end + sum(chunk.num_steps for chunk in some)
            parts.append(some[0].pack(some, None if into is None else into.slice(start, end)))
        self._drained_last = sum(chunk.rows for chunk in chunks)
        # Set before ``drained``, because another thread may read ``consumed`` in between.
        self._held = self._drained_last if hold else 0
        self.drained += self._drained_last
        self.on_consumed()
        return parts

    def recent(
        self, packed: PackedSteps, version: int, reporter: StatsReporter
    ) -> tuple[PackedSteps | None, LongArray | slice]:
        """Keep the trajectories whose last step is recent enough at this version, and report the age of all steps.

        Only the last step counts: even if acting and learning alternate in a single loop, the first steps of a long
        trajectory may be several policy versions old by the time it is used for learning. With a limit of 0, actors
        stop before each update and unfinished trajectories continue with the newest policy, as in a single loop, so
        nothing is dropped.

        Returns:
            The kept trajectories (None if all were dropped), and the indices of their steps.
        """
        if not self._reports_lag:
            return packed, slice(None)
        lag = version - packed["version"]
        reporter.add_many("Actors/Policy Lag", lag)
        if self._max_lag is None:
            return packed, slice(None)
        is_recent = lag[packed.offset[1:] - 1] <= self._max_lag if self._max_lag else np.ones(1, np.bool_)
        if is_recent.all():
            reporter.add("Actors/Dropped Steps", 0, Aggregation.SUM)
            return packed, slice(None)
        steps = np.flatnonzero(np.repeat(is_recent, packed.lengths))
        reporter.add("Actors/Dropped Steps", len(packed) - len(steps), Aggregation.SUM)
        parts = []
        for kept, group in groupby(range(len(is_recent)), lambda number: bool(is_recent[number])):
            numbers = list(group)
            if kept:
                parts.append(packed.trajectories(numbers[0], numbers[-1] + 1))
        return join_packed(parts) if parts else None, steps

    def share_progress(self, part: float, publish: Callable[[], object]) -> None:
        """During an update, give concurrent actors the current policy and free rows for their next steps.

        Args:
            part: the fraction of the drained rows that has been learned from, 0 to 1.
            publish: publishes the policy. It is called first, so that this policy fills the free rows.
        """
        if self.is_concurrent:
            publish()
            self._held = min(self._held, (1 - part) * self._drained_last)
            self.on_progress()

    def settle(self) -> None:
        """Mark all drained rows as learned from."""
        self._held = 0
        self.on_consumed()


class Counts(NamedTuple):
    """The sizes of packed steps, which determine the positions of all arrays in the behavior's layout.

    Attributes:
        steps: number of steps, B.
        trajectories: number of trajectories, S.
        mates: maximum number of groupmates, M; 0 without groups.
        others: number of other rows, E; 0 without groups.
    """

    steps: int
    trajectories: int
    mates: int = 0
    others: int = 0

    @classmethod
    def of(cls, packed: PackedSteps) -> Counts:
        groups = packed.groups
        if groups is None:
            return cls(len(packed), packed.num_trajectories)
        return cls(len(packed), packed.num_trajectories, groups.mates.shape[1], len(groups.others))


class PackedLayout:
    """The positions of the arrays of a behavior's packed steps in a buffer, aligned to 64 bytes.

    Both ends derive the layout from the same settings, so only ``Counts`` has to be sent with the buffer.

    Args:
        spec: spec of the behavior.
        obs_dtypes: dtype of each sensor, f32 or u8.
        memory_size: H; 0 without a recurrent memory.
        groups: whether the steps have groupmates.
    """

    def __init__(
        self, spec: BehaviorSpec, obs_dtypes: Sequence[DTypeLike], *, memory_size: int = 0, groups: bool = False
    ) -> None:
        stores = Store.POOL | Store.GROUP if groups else Store.POOL
        self._steps = entries_of(stores, spec, obs_dtypes, memory_size=memory_size)
        sensors = [sensor_name(number) for number in range(len(obs_dtypes))]
        self._bootstrap = {name: self._steps[name] for name in bootstrap_names(len(obs_dtypes))}
        self._others = {name: self._steps[name] for name in [*sensors, "continuous", "discrete"]} if groups else {}
        self._has_groups = groups

    def size(self, counts: Counts) -> int:
        """Return the number of bytes needed for packed steps of these sizes, R."""
        return sum(aligned_bytes(entry, length) for entry, length in self._arrays(counts))

    def over(self, buffer: NDArray[np.uint8], counts: Counts) -> PackedSteps:
        """Return packed steps whose arrays are views of ``buffer``, u8 [R or more]."""
        position = 0

        def views(arrays: Iterator[tuple[ColumnEntry, int]]) -> Iterator[NDArray[Any]]:
            nonlocal position
            for entry, length in arrays:
                yield np.ndarray((length, *entry.shape), entry.dtype, buffer, position)
                position += aligned_bytes(entry, length)

        found = views(self._arrays(counts))

        def columns(entries: dict[str, ColumnEntry]) -> Columns[NDArray[Any]]:
            return Columns({name: next(found) for name in entries})

        steps, bootstrap = columns(self._steps), columns(self._bootstrap)
        offset, terminated, ended, agent = (next(found) for _ in range(4))
        groups = None
        if self._has_groups:
            mates, next_mates = next(found), next(found)
            others = columns(self._others)
            groups = PackedGroups(mates, next_mates, others, next(found))
        return PackedSteps(steps, bootstrap, offset, terminated, ended, agent, groups)

    def write(self, packed: PackedSteps, buffer: NDArray[np.uint8]) -> None:
        """Write packed steps to ``buffer``. Arrays that ``gather`` has already written there are not copied."""
        for target, source in zip(_all(self.over(buffer, Counts.of(packed))), _all(packed), strict=True):
            if target.__array_interface__["data"] != source.__array_interface__["data"]:
                target[...] = source

    def _arrays(self, counts: Counts) -> Iterator[tuple[ColumnEntry, int]]:
        """Yield the entry and length of all arrays, in their order in the buffer."""
        steps, trajectories, mates, others = counts
        yield from ((entry, steps) for entry in self._steps.values())
        yield from ((entry, trajectories) for entry in self._bootstrap.values())
        yield from ((_NUMBER, trajectories + 1), (_FLAG, trajectories), (_FLAG, trajectories), (_AGENT, trajectories))
        if self._has_groups:
            width = ColumnEntry(_NUMBER.dtype, (mates,))
            yield from ((width, steps), (width, trajectories))
            yield from ((entry, others) for entry in self._others.values())
            yield _FLAG, trajectories


def _all(packed: PackedSteps) -> Iterator[NDArray[Any]]:
    """Yield all arrays in the order of ``PackedLayout._arrays``."""
    yield from packed.steps.values()
    yield from packed.bootstrap.values()
    yield from (packed.offset, packed.terminated, packed.ended, packed.agent)
    if packed.groups is not None:
        groups = packed.groups
        yield from (groups.mates, groups.next_mates, *groups.others.values(), groups.all_done)


def aligned_bytes(entry: ColumnEntry, length: int = 1) -> int:
    """Return the size of ``length`` entries in bytes, rounded up to the alignment."""
    size = length * math.prod(entry.shape) * entry.dtype.itemsize
    return -(-size // _ALIGNMENT) * _ALIGNMENT
