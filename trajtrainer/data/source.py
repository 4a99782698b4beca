"""Experience on its way from the actors of a behavior to its trainer: chunks of finished trajectories, in order.

Shape legend: B packed steps, S trajectories.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from trajtrainer.core.columns import Columns
from trajtrainer.core.queues import EpisodesAborted, TrajectoryQueue
from trajtrainer.core.stats import StatsReporter
from trajtrainer.core.steps import Aggregation, LongArray
from trajtrainer.data.rows import RowPool
from trajtrainer.data.trajectory import PackedSteps, TrajectoryBatch, gather, join_packed, release

# Gives columns to write so many steps into, or None for anywhere.
Reserve = Callable[[int], Columns[NDArray[Any]] | None]


class Chunk(Protocol):
    """Finished trajectories that an actor has handed over, where it has put them."""

    @property
    def rows(self) -> int:
        """Rows of the learner's buffer that they take: with a memory, those of whole sequences."""

    @property
    def num_steps(self) -> int:
        """B."""

    @property
    def num_ended(self) -> int:
        """How many episodes end with them."""

    def lag_sum(self, version: int) -> int:
        """Return the policies by which the steps are older than this version, added up; 0 in the learner's loop."""

    def newest_of_last(self) -> int:
        """Return the newest version of the policies that decided the trajectories' last steps."""

    @property
    def pack(self) -> Callable[[Sequence[Any], Columns[NDArray[Any]] | None], PackedSteps]:
        """Copies the steps of chunks of this kind, and gives their places back to the actor."""


@dataclass(slots=True)
class RowsChunk:
    """Rows of a pool in this process; the only copy is the gathering."""

    pool: RowPool
    batches: Sequence[TrajectoryBatch]
    rows: int
    num_steps: int

    @property
    def num_ended(self) -> int:
        """See ``Chunk``."""
        return sum(int(np.count_nonzero(batch.ended)) for batch in self.batches)

    def lag_sum(self, version: int) -> int:  # noqa: ARG002
        """See ``Chunk``: who acts by the learner's own policy is not behind."""
        return 0

    def newest_of_last(self) -> int:
        """See ``Chunk``."""
        return max(int(self.pool["version"][batch.rows[batch.offset[1:] - 1]].max()) for batch in self.batches)

    @staticmethod
    def pack(chunks: Sequence[RowsChunk], into: Columns[NDArray[Any]] | None) -> PackedSteps:
        """See ``Chunk``."""
        pool, batches = chunks[0].pool, [batch for chunk in chunks for batch in chunk.batches]
        packed = gather(pool, batches, into)
        release(pool, batches)
        return packed


@dataclass(frozen=True, slots=True)
class PackedChunk:
    """Packed steps in memory that an actor elsewhere has written.

    Attributes:
        packed: the steps.
        rows: see ``Chunk``.
        free: gives the memory back to the actor.
    """

    packed: PackedSteps
    rows: int
    free: Callable[[], object]

    @property
    def num_steps(self) -> int:
        """B."""
        return len(self.packed)

    @property
    def num_ended(self) -> int:
        """See ``Chunk``."""
        return int(np.count_nonzero(self.packed.ended))

    def lag_sum(self, version: int) -> int:
        """See ``Chunk``."""
        return len(self.packed) * version - int(self.packed["version"].sum(dtype=np.int64))

    def newest_of_last(self) -> int:
        """See ``Chunk``."""
        return int(self.packed["version"][self.packed.offset[1:] - 1].max())

    @staticmethod
    def pack(chunks: Sequence[PackedChunk], into: Columns[NDArray[Any]] | None) -> PackedSteps:
        """See ``Chunk``."""
        packed = join_packed([chunk.packed for chunk in chunks], into)
        for chunk in chunks:
            chunk.free()
        return packed


class Recent(NamedTuple):
    """The trajectories that are recent enough to learn from.

    Attributes:
        packed: their steps; None without any.
        steps: i64, indices of these steps among those given; None for all.
    """

    packed: PackedSteps | None
    steps: LongArray | None


class ExperienceSource(TrajectoryQueue[Chunk]):
    """The learning side of the experience of one behavior. One thread puts, one drains; they may be the same.

    Attributes:
        is_concurrent: whether acting goes on while the trainer learns, so that it needs room and newer policies then.
        rows_put: rows of everything that ever came.
        on_progress: called when a part of what is held is given back during an update.
        on_consumed: called when rows were drained or learned from.
    """

    def __init__(self, *, is_concurrent: bool = False, max_lag: int | None = None, reports_lag: bool = False) -> None:
        """Begin without experience.

        Args:
            is_concurrent: see above.
            max_lag: versions by which the policy of a trajectory's last step may be older than the newest one; older
                trajectories are dropped. None where age does not matter.
            reports_lag: whether the age is reported.
        """
        super().__init__()
        self.is_concurrent = is_concurrent
        self.rows_put = 0
        self.on_progress: Callable[[], object] = _nothing
        self.on_consumed: Callable[[], object] = _nothing
        self._max_lag = max_lag
        self._reports_lag = reports_lag
        self._drained = self._drained_last = 0  # rows
        self._held = 0.0  # of these, what the learner has not learned from yet

    def add(self, chunk: Chunk) -> None:
        """Append a chunk."""
        self.rows_put += chunk.rows
        self.put(chunk, chunk.num_steps)

    @property
    def num_rows(self) -> int:
        """Rows that wait."""
        return self.rows_put - self._drained

    @property
    def drained(self) -> int:
        """Rows that were ever drained."""
        return self._drained

    @property
    def consumed(self) -> int:
        """Rows that were drained and are not held."""
        return self._drained - math.ceil(self._held)

    def drain_into(self, reserve: Reserve, *, hold: bool) -> list[PackedSteps | EpisodesAborted]:
        """Take all there is, in its order, without waiting. What comes between two aborts is packed together.

        Args:
            reserve: returns where the steps should be written, given their number.
            hold: count the rows as not learned from until ``share_progress`` or ``settle``. So a learner bounds how far
                acting is ahead of it.
        """
        items = self.drain()
        chunks = _chunks(items)
        into = reserve(sum(chunk.num_steps for chunk in chunks)) if chunks else None
        parts: list[PackedSteps | EpisodesAborted] = []
        end = 0
        for is_aborted, group in groupby(items, lambda item: isinstance(item, EpisodesAborted)):
            found = list(group)
            if is_aborted:
                parts += [item for item in found if isinstance(item, EpisodesAborted)]
                continue
            some = _chunks(found)
            start, end = end, end + sum(chunk.num_steps for chunk in some)
            parts.append(some[0].pack(some, None if into is None else into.slice(start, end)))
        self._drained_last = sum(chunk.rows for chunk in chunks)
        self._held = self._drained_last if hold else 0  # first, as another thread may look at what is consumed
        self._drained += self._drained_last
        self.on_consumed()
        return parts

    def recent(self, packed: PackedSteps, version: int, reporter: StatsReporter) -> Recent:
        """Return the trajectories whose last steps are recent enough, and report the age of all.

        The last step counts: in one loop, too, a trajectory that is long for the buffer begins some policies before it
        is learned from. With a limit of 0 actors stop before each update, and what is under way continues with the
        newest policy, as in one loop: nothing is dropped.

        Args:
            packed: B steps.
            version: of the newest policy.
            reporter: of the behavior's statistics.
        """
        if not self._reports_lag:
            return Recent(packed, None)
        lag = version - packed["version"]
        reporter.add_many("Actors/Policy Lag", lag)
        if self._max_lag is None:
            return Recent(packed, None)
        is_recent = lag[packed.offset[1:] - 1] <= self._max_lag if self._max_lag else np.ones(1, np.bool_)
        if is_recent.all():
            reporter.add("Actors/Dropped Steps", 0, Aggregation.SUM)
            return Recent(packed, None)
        steps = np.flatnonzero(np.repeat(is_recent, packed.lengths))
        reporter.add("Actors/Dropped Steps", len(packed) - len(steps), Aggregation.SUM)
        parts = []
        for kept, group in groupby(range(len(is_recent)), lambda number: bool(is_recent[number])):
            numbers = list(group)
            if kept:
                parts.append(packed.trajectories(numbers[0], numbers[-1] + 1))
        return Recent(join_packed(parts) if parts else None, steps)

    def share_progress(self, part: float, publish: Callable[[], object]) -> None:
        """Let acting, if it goes on during an update, have the policy as it is now and room for its next steps.

        Args:
            part: of what is held, 0 to 1, that has been learned from.
            publish: publishes the policy. It comes first: it is the one by which the room should be filled.
        """
        if self.is_concurrent:
            publish()
            self._held = min(self._held, (1 - part) * self._drained_last)
            self.on_progress()

    def settle(self) -> None:
        """Count everything that was drained as learned from."""
        self._held = 0
        self.on_consumed()


def _nothing() -> None:
    pass


def _chunks(items: Sequence[Chunk | EpisodesAborted]) -> list[Chunk]:
    return [item for item in items if not isinstance(item, EpisodesAborted)]
