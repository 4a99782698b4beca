"""The learning side of the experience channel: from what waits to columns.

Shape legend: B packed steps, S trajectories.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from trajtrainer.core.columns import Columns
from trajtrainer.core.queues import EpisodesAborted, TrajectoryQueue
from trajtrainer.core.steps import IntArray
from trajtrainer.data.rows import RowPool
from trajtrainer.data.trajectory import PackedSteps, TrajectoryBatch, gather, join, release

# Gives columns to write so many steps into, or None for anywhere.
Room = Callable[[int], Columns[NDArray[Any]] | None]

_NONE = np.zeros(0, np.int32)


class ExperienceSource(Protocol):
    """Where a trainer's experience comes from. One thread drains it.

    Attributes:
        is_elsewhere: whether it comes from other processes or machines, where acting goes on while the trainer learns.
    """

    is_elsewhere: bool

    @property
    def num_put(self) -> int:
        """Return the steps that ever came, drained or not."""

    @property
    def num_steps(self) -> int:
        """Return the steps that wait."""

    @property
    def is_needed(self) -> bool:
        """Return whether what waits should be drained, however little it is."""

    def __len__(self) -> int:
        """Return how many items wait."""

    def lengths(self) -> IntArray:
        """Return the length of each trajectory that waits, [S]."""

    def wait(self, timeout_s: float | None = None, enough: Callable[[], bool] | None = None) -> bool:
        """Wait until something is worth draining; see ``TrajectoryQueue.wait``."""

    def drain(self, room: Room, *, hold: bool = False) -> list[PackedSteps | EpisodesAborted]:
        """Take all there is, in its order, without waiting.

        Args:
            room: where the steps should be written.
            hold: keep the acting side from reusing what the steps took there until ``give_back`` or ``settle``. That is
                how a learner bounds how far acting is ahead of it.
        """

    def give_back(self, part: float) -> None:
        """Give back what is held until ``part`` (0 to 1) of the steps is given back, the oldest first."""

    def settle(self) -> None:
        """Give back all that is held."""

    def close(self) -> None:
        """End all waiting for experience, now and later: nothing more will come."""

    def abandon(self) -> None:
        """Tell the acting side that nothing will be drained any more: it need not wait for it."""


class Waiting(Protocol):
    """Trajectories that wait in a queue."""

    @property
    def num_steps(self) -> int:
        """B."""

    @property
    def lengths(self) -> IntArray:
        """i32 [S], steps of each trajectory."""


W = TypeVar("W", bound=Waiting)


class QueueSource(Generic[W]):
    """What all sources share that have their trajectories from a queue. See ``ExperienceSource``."""

    def __init__(self, queue: TrajectoryQueue[W]) -> None:
        """Take the learning side's end of a queue."""
        self._queue = queue
        self.wait = queue.wait
        self.close = queue.close

    @property
    def num_put(self) -> int:
        """See ``ExperienceSource``."""
        return self._queue.num_put

    @property
    def num_steps(self) -> int:
        """See ``ExperienceSource``."""
        return self._queue.num_steps

    @property
    def is_needed(self) -> bool:
        """See ``ExperienceSource``."""
        return self._queue.is_needed

    def __len__(self) -> int:
        return len(self._queue)

    def lengths(self) -> IntArray:
        """See ``ExperienceSource``."""
        lengths = [batch.lengths for batch in _batches(self._queue.waiting())]
        return np.concatenate(lengths) if lengths else _NONE

    def drain(self, room: Room, *, hold: bool = False) -> list[PackedSteps | EpisodesAborted]:
        """See ``ExperienceSource``. What comes between two aborts is packed together."""
        items = self._queue.drain()
        batches = _batches(items)
        into = room(sum(batch.num_steps for batch in batches)) if batches else None
        parts: list[PackedSteps | EpisodesAborted] = []
        end = 0
        for is_aborted, group in groupby(items, lambda item: isinstance(item, EpisodesAborted)):
            found = list(group)
            if is_aborted:
                parts += [item for item in found if isinstance(item, EpisodesAborted)]
                continue
            some = _batches(found)
            start, end = end, end + sum(batch.num_steps for batch in some)
            parts.append(self._pack(some, None if into is None else into.slice(start, end)))
        self._packed(batches, hold=hold)
        return parts

    def _pack(self, batches: Sequence[W], into: Columns[NDArray[Any]] | None) -> PackedSteps:
        """Copy some trajectories; see ``gather``."""
        raise NotImplementedError

    def _packed(self, batches: Sequence[W], *, hold: bool) -> None:
        """Give back what all that was drained took, or hold it."""
        raise NotImplementedError


class LocalSource(QueueSource[TrajectoryBatch]):
    """Rows of a pool, named by a queue."""

    is_elsewhere = False

    def __init__(self, pool: RowPool, queue: TrajectoryQueue[TrajectoryBatch]) -> None:
        """Take both ends as they are; the acting side writes into the pool and puts into the queue."""
        super().__init__(queue)
        self._pool = pool
        self._rows: IntArray = _NONE
        self._bootstraps: IntArray = _NONE
        self._returned = 0
        self.abandon = pool.close

    def _pack(self, batches: Sequence[TrajectoryBatch], into: Columns[NDArray[Any]] | None) -> PackedSteps:
        return gather(self._pool, batches, into)

    def _packed(self, batches: Sequence[TrajectoryBatch], *, hold: bool) -> None:
        if not hold:
            release(self._pool, batches)
            return
        self.settle()
        if batches:
            held = join(batches)
            self._rows, self._bootstraps = held.rows, held.bootstrap

    def give_back(self, part: float) -> None:
        """See ``ExperienceSource``."""
        until = int(part * len(self._rows))
        if until > self._returned:
            self._pool.release(self._rows[self._returned : until])
            self._returned = until

    def settle(self) -> None:
        """See ``ExperienceSource``."""
        rows, bootstraps = self._rows[self._returned :], self._bootstraps
        self._rows, self._bootstraps, self._returned = _NONE, _NONE, 0
        if len(bootstraps):
            # Two calls, because a row can be a step of one trajectory and the bootstrap of the one before.
            self._pool.release(rows)
            self._pool.release(bootstraps)


class NoExperience:
    """The source of a trainer whose algorithm has all that it learns from already."""

    num_put = num_steps = 0
    is_needed = is_elsewhere = False

    def __init__(self) -> None:
        self._closed = threading.Event()
        self.close = self._closed.set
        self.abandon = self._closed.set

    def __len__(self) -> int:
        return 0

    def lengths(self) -> IntArray:
        """See ``ExperienceSource``."""
        return _NONE

    def wait(self, timeout_s: float | None = None, enough: Callable[[], bool] | None = None) -> bool:
        """See ``ExperienceSource``: does not wait where there is enough without more."""
        if not self._closed.is_set() and not (enough is not None and enough()):
            self._closed.wait(timeout_s)
        return not self._closed.is_set()

    def drain(self, room: Room, *, hold: bool = False) -> list[PackedSteps | EpisodesAborted]:  # noqa: ARG002
        """See ``ExperienceSource``."""
        return []

    def give_back(self, part: float) -> None:
        """See ``ExperienceSource``."""

    def settle(self) -> None:
        """See ``ExperienceSource``."""


def _batches(items: Sequence[W | EpisodesAborted]) -> list[W]:
    return [item for item in items if not isinstance(item, EpisodesAborted)]
