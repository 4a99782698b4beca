"""Experience on its way from the actors of a behavior to its trainer: chunks of finished trajectories, in order.

Shape legend: B packed steps, S trajectories.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from trajtrainer.core.columns import Columns, Entry, Store, bootstrap_names, entries_of, sensor_name
from trajtrainer.core.queues import EpisodesAborted, TrajectoryQueue
from trajtrainer.core.spec import BehaviorSpec
from trajtrainer.core.stats import StatsReporter
from trajtrainer.core.steps import Aggregation, LongArray
from trajtrainer.data.rows import RowPool
from trajtrainer.data.trajectory import PackedGroups, PackedSteps, TrajectoryBatch, gather, join_packed, release

_ALIGNMENT = 64
_FLAG, _NUMBER, _AGENT = Entry(np.dtype("?"), ()), Entry(np.dtype("<i4"), ()), Entry(np.dtype("<i8"), ())


class Counts(NamedTuple):
    """The sizes of packed steps: with the layout of their behavior all that is needed to find their arrays.

    Attributes:
        steps: B.
        trajectories: S.
        mates: M; 0 without groups.
        others: E; 0 without groups.
    """

    steps: int
    trajectories: int
    mates: int = 0
    others: int = 0

    @classmethod
    def of(cls, packed: PackedSteps) -> Counts:
        """Return those of ``packed``."""
        groups = packed.groups
        if groups is None:
            return cls(len(packed), packed.num_trajectories)
        return cls(len(packed), packed.num_trajectories, groups.mates.shape[1], len(groups.others))


class PackedLayout:
    """The places of all arrays of one behavior's packed steps, one after the other, each at a multiple of 64 bytes.

    Both ends make it from the same settings, so that nothing but ``Counts`` travels beside the bytes.
    """

    def __init__(
        self, spec: BehaviorSpec, obs_dtypes: Sequence[DTypeLike], *, memory_size: int = 0, groups: bool = False
    ) -> None:
        """Resolve the columns.

        Args:
            spec: of the behavior.
            obs_dtypes: per sensor, f32 or u8.
            memory_size: H; 0 without a recurrent memory.
            groups: whether the groupmates are there.
        """
        stores = Store.POOL | Store.GROUP if groups else Store.POOL
        self._steps = entries_of(stores, spec, obs_dtypes, memory_size=memory_size)
        sensors = [sensor_name(number) for number in range(len(obs_dtypes))]
        self._bootstrap = {name: self._steps[name] for name in bootstrap_names(len(obs_dtypes))}
        self._others = {name: self._steps[name] for name in [*sensors, "continuous", "discrete"]} if groups else {}
        self._has_groups = groups

    def size(self, counts: Counts) -> int:
        """Return R, the bytes that packed steps of these sizes take."""
        return sum(_bytes(entry, length) for entry, length in self._arrays(counts))

    def over(self, buffer: NDArray[np.uint8], counts: Counts) -> PackedSteps:
        """Return packed steps whose arrays are views of ``buffer``, u8 [R or more]."""
        position = 0

        def views(arrays: Iterator[tuple[Entry, int]]) -> Iterator[NDArray[Any]]:
            nonlocal position
            for entry, length in arrays:
                yield np.ndarray((length, *entry.shape), entry.dtype, buffer, position)
                position += _bytes(entry, length)

        found = views(self._arrays(counts))

        def columns(entries: dict[str, Entry]) -> Columns[NDArray[Any]]:
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
        """Write packed steps into ``buffer``; arrays that are there already (see ``gather``) are not copied."""
        for target, source in zip(_all(self.over(buffer, Counts.of(packed))), _all(packed), strict=True):
            if target.__array_interface__["data"] != source.__array_interface__["data"]:
                target[...] = source

    def _arrays(self, counts: Counts) -> Iterator[tuple[Entry, int]]:
        """Yield type and length of all arrays, in their order."""
        steps, trajectories, mates, others = counts
        yield from ((entry, steps) for entry in self._steps.values())
        yield from ((entry, trajectories) for entry in self._bootstrap.values())
        yield from ((_NUMBER, trajectories + 1), (_FLAG, trajectories), (_FLAG, trajectories), (_AGENT, trajectories))
        if self._has_groups:
            width = Entry(_NUMBER.dtype, (mates,))
            yield from ((width, steps), (width, trajectories))
            yield from ((entry, others) for entry in self._others.values())
            yield _FLAG, trajectories


def _all(packed: PackedSteps) -> Iterator[NDArray[Any]]:
    """Yield all arrays, in the order of the layout."""
    yield from packed.steps.values()
    yield from packed.bootstrap.values()
    yield from (packed.offset, packed.terminated, packed.ended, packed.agent)
    if packed.groups is not None:
        groups = packed.groups
        yield from (groups.mates, groups.next_mates, *groups.others.values(), groups.all_done)


def _bytes(entry: Entry, length: int) -> int:
    size = length * math.prod(entry.shape) * entry.dtype.itemsize
    return -(-size // _ALIGNMENT) * _ALIGNMENT


# Gives columns to write so many steps into, or None for anywhere.
Reserve = Callable[[int], Columns[NDArray[Any]] | None]


@dataclass(slots=True)
class RowsChunk:
    """Finished trajectories as rows of a pool in this process; gathering them is the only copy."""

    pool: RowPool
    batches: Sequence[TrajectoryBatch]
    rows: int  # that they take in the learner's buffer: with a memory, in whole sequences
    num_steps: int  # B

    @property
    def num_ended(self) -> int:
        """Episodes that end with them."""
        return sum(int(np.count_nonzero(batch.ended)) for batch in self.batches)

    def lag_sum(self, version: int) -> int:  # noqa: ARG002
        """Return the sum over the steps of how many versions they are older than this one."""
        return 0  # the learner's own policy acts

    def newest_of_last(self) -> int:
        """Return the newest version among the policies that decided the trajectories' last steps."""
        return max(int(self.pool["version"][batch.rows[batch.offset[1:] - 1]].max()) for batch in self.batches)

    @staticmethod
    def pack(chunks: Sequence[Any], into: Columns[NDArray[Any]] | None) -> PackedSteps:
        """Copy the steps of chunks of this kind, and give their places back to the actor."""
        pool, batches = chunks[0].pool, [batch for chunk in chunks for batch in chunk.batches]
        packed = gather(pool, batches, into)
        release(pool, batches)
        return packed


@dataclass(frozen=True, slots=True)
class PackedChunk:
    """The same as packed steps in memory that an actor elsewhere has written; ``free`` gives it back."""

    packed: PackedSteps
    rows: int
    free: Callable[[], object]

    @property
    def num_steps(self) -> int:
        return len(self.packed)

    @property
    def num_ended(self) -> int:
        return int(np.count_nonzero(self.packed.ended))

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
    """The learning side of the experience of one behavior. One thread puts, one drains; they may be the same.

    Args:
        is_concurrent: acting continues while the trainer learns, so it needs room and newer policies during an update.
        max_lag: trajectories are dropped if the policy of their last step is more versions old; None to keep all.
        reports_lag: whether the age is reported.

    Attributes:
        rows_put: rows of everything that ever came.
        drained: rows that were ever drained.
        on_progress: called when part of what is held is given back during an update.
        on_consumed: called when rows were drained or learned from.
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
        self._held = 0.0  # of these, what the learner has not learned from yet

    def add(self, chunk: Chunk) -> None:
        """Append a chunk."""
        self.rows_put += chunk.rows
        self.put(chunk, chunk.num_steps)

    @property
    def num_rows(self) -> int:
        """Rows that wait."""
        return self.rows_put - self.drained

    @property
    def consumed(self) -> int:
        """Rows that were drained and are not held."""
        return self.drained - math.ceil(self._held)

    def drain_into(self, reserve: Reserve, *, hold: bool) -> list[PackedSteps | EpisodesAborted]:
        """Take everything, in order, without waiting. What comes between two aborts is packed together.

        Args:
            reserve: returns where to write the steps, given their number.
            hold: do not count the rows as consumed until ``share_progress`` or ``settle``. This is how a learner bounds
                how far acting is ahead of it.
        """
        items = self.drain()
        chunks = [item for item in items if not isinstance(item, EpisodesAborted)]
        into = reserve(sum(chunk.num_steps for chunk in chunks)) if chunks else None
        parts: list[PackedSteps | EpisodesAborted] = []
        end = 0
        for is_aborted, group in groupby(items, lambda item: isinstance(item, EpisodesAborted)):
            if is_aborted:
                parts += [item for item in group if isinstance(item, EpisodesAborted)]
                continue
            some = [item for item in group if not isinstance(item, EpisodesAborted)]
            start, end = end, end + sum(chunk.num_steps for chunk in some)
            parts.append(some[0].pack(some, None if into is None else into.slice(start, end)))
        self._drained_last = sum(chunk.rows for chunk in chunks)
        self._held = self._drained_last if hold else 0  # first, as another thread may look at what is consumed
        self.drained += self._drained_last
        self.on_consumed()
        return parts

    def recent(
        self, packed: PackedSteps, version: int, reporter: StatsReporter
    ) -> tuple[PackedSteps | None, LongArray | slice]:
        """Keep the trajectories whose last steps are recent enough at this version, and report the age of all.

        The last step decides: even in one loop, a trajectory that is long for the buffer begins some policies before it
        is learned from. With a limit of 0 actors stop before each update, and unfinished trajectories continue with the
        newest policy, as in one loop: nothing is dropped.

        Returns:
            What is kept, None for nothing, and which of the given steps these are.
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
        """During an update, let acting have the present policy and room for its next steps, if it continues.

        Args:
            part: of what is held, 0 to 1, that has been learned from.
            publish: publishes the policy. Called first: the room should be filled by this policy.
        """
        if self.is_concurrent:
            publish()
            self._held = min(self._held, (1 - part) * self._drained_last)
            self.on_progress()

    def settle(self) -> None:
        """Count everything that was drained as learned from."""
        self._held = 0
        self.on_consumed()
