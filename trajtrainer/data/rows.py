"""The columns in which experience is written once, when it arrives (DESIGN.md section 2).

Letters: R rows of a pool, D sum of branch sizes, C continuous actions, K discrete branches, H memory size,
O an observation's own shape.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from trajtrainer.errors import OutOfMemoryError
from trajtrainer.spec import BehaviorSpec
from trajtrainer.steps import BoolArray, FloatArray, IntArray, LongArray, ObservationArray

RowNumbers = NDArray[np.int32] | NDArray[np.int64]

_FIRST_ROWS, _FIRST_BYTES = 1024, 64 << 20
_MOST_SPARE_BYTES = 1 << 30
# One of the waits for the learner: systems that do not interrupt a wait let signals through in between.
_WAIT_S = 0.25

_COLUMNS = (
    "mask",
    "continuous",
    "discrete",
    "log_prob",
    "memory",
    "reward",
    "group_reward",
    "group",
    "done",
    "interrupted",
    "version",
)


class RowPool:
    """Rows of experience of one behaviour; a row is an agent's observation and what followed from it.

    A row is filled in three moments: observation, mask, group and memory when it is allocated; action,
    log-probabilities and policy version when the policy has decided; reward, group reward, done and interrupted
    when the agent's next record arrives. A row that only bootstraps (the last observation of an episode) keeps
    what its previous owner left in the other columns.

    Attributes:
        obs: per sensor f32 or u8 [R, *O].
        mask: bool [R, D], True = forbidden.
        continuous: f32 [R, C], raw as sampled.
        discrete: i32 [R, K].
        log_prob: f32 [R, C + K].
        memory: f32 [R, H], the recurrent memory before the step.
        reward: f32 [R], received with the agent's next record.
        group_reward: f32 [R], likewise.
        group: i32 [R], of the agent when it observed; 0 for none.
        done: bool [R], the episode ended with the next record.
        interrupted: bool [R], it ended by its step limit.
        version: i32 [R], of the policy that decided.

    Columns are replaced when the pool grows: read them from the pool each time. One thread (the collector)
    allocates and writes, another (the learner) may read handed-over rows and release them meanwhile.

    **Ownership.** ``allocate`` gives one reference to each row, ``retain`` adds one, ``release`` takes one; without
    references a row is free. The observation after a horizon cut is bootstrap of one trajectory and first row of the
    next, so it has two.

    **Back-pressure.** Without ``limit`` the pool doubles whenever rows run out. With one, ``allocate`` first grows up
    to the limit and then waits, but only while there are rows that nobody but the learner refers to, told by
    ``hand_over``; when there are none (all rows are unfinished trajectories), waiting would be for ever, and it grows
    beyond the limit. It is the learner's duty to release what it drained before it waits for more, and to call
    ``close`` when it ends, whether well or badly: after that nothing waits. Use a limit only when the learner has its
    own thread.
    """

    obs: tuple[ObservationArray, ...]
    mask: BoolArray
    continuous: FloatArray
    discrete: IntArray
    log_prob: FloatArray
    memory: FloatArray
    reward: FloatArray
    group_reward: FloatArray
    group: IntArray
    done: BoolArray
    interrupted: BoolArray
    version: IntArray

    def __init__(
        self,
        spec: BehaviorSpec,
        obs_dtypes: Sequence[DTypeLike],
        *,
        memory_size: int = 0,
        capacity: int | None = None,
        limit: int | None = None,
        on_wait: Callable[[], None] | None = None,
        poison: bool = False,
    ) -> None:
        """Makes an empty pool.

        Args:
            spec: shapes of observations and actions.
            obs_dtypes: per sensor, f32 or u8, as the environment's step batches have them.
            memory_size: H, 0 without a recurrent memory.
            capacity: rows to begin with; None for as many as are of moderate size.
            limit: rows beyond which ``allocate`` waits for the learner; None for never.
            on_wait: called when it begins to wait.
            poison: overwrite new and freed rows with NaN, -1 (255 in pictures) and True, so that a use after release
                shows. For tests and debugging; also checks row numbers for duplicates and free rows.

        Raises:
            ValueError: ``obs_dtypes`` has another length than the spec has sensors, or a size is not positive.
            OutOfMemoryError: there is no memory for them.
        """
        if len(obs_dtypes) != len(spec.observation_specs):
            raise ValueError(f"{len(obs_dtypes)} dtypes for {len(spec.observation_specs)} sensors")
        if (capacity is not None and capacity < 1) or memory_size < 0 or (limit is not None and limit < 1):
            raise ValueError(f"capacity {capacity}, memory size {memory_size}, limit {limit}: expected positive sizes")
        self.limit = limit
        self._on_wait = on_wait
        self._poison = poison
        self._changed = threading.Condition()
        self._closed = False
        self._held = 0
        self._make_columns(spec, obs_dtypes, memory_size)
        if capacity is None:
            capacity = max(1, min(_FIRST_ROWS, _FIRST_BYTES // self.row_bytes))
        self._references = np.zeros(0, np.int32)
        self._num_free = 0
        self._next = 0
        self._grow(capacity if limit is None else min(capacity, limit))

    def _make_columns(self, spec: BehaviorSpec, obs_dtypes: Sequence[DTypeLike], memory_size: int) -> None:
        action = spec.action_spec
        num_continuous, num_branches = action.continuous_size, action.discrete_size
        self.obs = tuple(
            np.empty((0, *sensor.shape), dtype)
            for sensor, dtype in zip(spec.observation_specs, obs_dtypes, strict=True)
        )
        self.mask = np.empty((0, sum(action.discrete_branches)), np.bool_)
        self.continuous = np.empty((0, num_continuous), np.float32)
        self.discrete = np.empty((0, num_branches), np.int32)
        self.log_prob = np.empty((0, num_continuous + num_branches), np.float32)
        self.memory = np.empty((0, memory_size), np.float32)
        self.reward, self.group_reward = np.empty(0, np.float32), np.empty(0, np.float32)
        self.group, self.version = np.empty(0, np.int32), np.empty(0, np.int32)
        self.done, self.interrupted = np.empty(0, np.bool_), np.empty(0, np.bool_)

    @property
    def capacity(self) -> int:
        """R, the rows there are."""
        return len(self._references)

    @property
    def num_free(self) -> int:
        """Rows that nobody refers to."""
        return self._num_free

    @property
    def num_lent(self) -> int:
        """Rows that only the learner refers to (queued, or drained and not yet released)."""
        return self.capacity - self._num_free - self._held

    @property
    def num_bytes(self) -> int:
        """Size of all columns."""
        return self.capacity * self.row_bytes

    @property
    def row_bytes(self) -> int:
        """Size of one row in all columns."""
        return sum(column.itemsize * math.prod(column.shape[1:]) for column in self._columns())

    def _columns(self) -> list[NDArray[Any]]:
        return [*self.obs, *(getattr(self, name) for name in _COLUMNS)]

    def allocate(self, n: int) -> LongArray:
        """Takes ``n`` free rows, each with one reference.

        Waits or grows when there are fewer, as the class says.

        Raises:
            OutOfMemoryError: it cannot grow.

        Returns:
            i64 [n], ascending, and mostly one run.
        """
        with self._changed:
            if n > self._num_free:
                self._make_room(n)
            rows = self._find(n)
            self._references[rows] = 1
            self._num_free -= n
            self._held += n
            return rows

    def retain(self, rows: RowNumbers) -> None:
        """Adds a reference to each of these distinct rows."""
        with self._changed:
            if self._poison:
                self._check(rows)
            self._references[rows] += 1

    def hand_over(self, count: int) -> None:
        """Tells that the collector has given away its references to ``count`` rows (with a trajectory).

        Only back-pressure uses it. Who forgets it gets a pool that grows beyond its limit, never one that waits for
        ever.
        """
        self._held -= count  # only the collector's thread reads and writes it

    def release(self, rows: RowNumbers) -> None:
        """Takes one reference from each of these rows; those without any become free.

        Args:
            rows: distinct within one call. A row that was first row of one trajectory and bootstrap of another needs
                two calls (``trajectory.release`` makes them).

        Raises:
            ValueError: a row was free already.
        """
        with self._changed:
            if self._poison:
                self._check(rows)
            references = self._references.take(rows)
            references -= 1
            if len(references) and references.min() < 0:
                raise ValueError(f"rows {rows[references < 0][:8].tolist()} were released once too often")
            self._references[rows] = references
            freed = rows[references == 0]
            if not len(freed):
                return
            if self._poison:
                self._spoil(freed)
            self._num_free += len(freed)
            self._changed.notify_all()

    def close(self) -> None:
        """Ends all waiting in ``allocate``, now and later: it grows instead. To be called when the learner ends."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _find(self, n: int) -> LongArray:
        """The next ``n`` free rows, of which there are enough. The lock is held.

        Going round the pool, instead of taking what was freed last, makes a message's rows neighbours: by the time
        they come up again, most trajectories that began among them are finished.
        """
        start = self._next
        stop = start + n
        if stop <= self.capacity and not self._references[start:stop].any():
            self._next = stop
            return np.arange(start, stop)
        width = n
        while True:
            free = (self._references[start : start + width] == 0).nonzero()[0]
            if len(free) >= n:
                break
            if start + width < self.capacity:
                width *= 4
            else:
                assert start > 0, "fewer rows are free than counted"
                start, width = 0, n
        rows: LongArray = free[:n] + start
        self._next = int(rows[-1]) + 1
        return rows

    def _make_room(self, n: int) -> None:
        """Grows or waits until ``n`` rows are free. The lock is held."""
        while n > self._num_free:
            needed = self.capacity + n - self._num_free
            doubled = max(needed, self.capacity + min(self.capacity, _MOST_SPARE_BYTES // self.row_bytes))
            if self.limit is None or self._closed:
                self._grow(doubled)
            elif needed <= self.limit:
                self._grow(min(doubled, self.limit))
            elif self.num_lent > 0:
                if self._on_wait is not None:
                    self._on_wait()
                self._changed.wait(_WAIT_S)
            else:
                self._grow(doubled)

    def _grow(self, capacity: int) -> None:
        """Replaces every column by a longer one. Readers of the old ones are not disturbed."""
        old = self.capacity
        try:
            longer = [_longer(column, capacity) for column in self._columns()]
        except MemoryError as error:
            raise OutOfMemoryError(
                f"There is no memory for {capacity} rows of experience of {self.row_bytes} bytes each "
                f"({capacity * self.row_bytes / 2**30:.1f} GiB). Make the observations smaller (pictures above all), "
                "or buffer_size and time_horizon."
            ) from error
        self.obs = tuple(longer[: len(self.obs)])
        for name, column in zip(_COLUMNS, longer[len(self.obs) :], strict=True):
            setattr(self, name, column)
        self._references = _longer(self._references, capacity)
        self._references[old:] = 0
        self._num_free += capacity - old
        self._next = old
        if self._poison:
            self._spoil(np.arange(old, capacity))

    def _spoil(self, rows: RowNumbers) -> None:
        for column in self._columns():
            column[rows] = _poison_of(column.dtype)

    def _check(self, rows: RowNumbers) -> None:
        if len(np.unique(rows)) != len(rows):
            raise ValueError("the same row is named twice in one call")
        if (self._references[rows] < 1).any():
            raise ValueError(f"rows {rows[self._references[rows] < 1][:8].tolist()} are free")


def _longer(column: NDArray[Any], length: int) -> NDArray[Any]:
    longer = np.empty((length, *column.shape[1:]), column.dtype)
    longer[: len(column)] = column
    return longer


def _poison_of(dtype: np.dtype[Any]) -> float | int | bool:
    if dtype.kind == "f":
        return float("nan")
    if dtype.kind == "u":
        return int(np.iinfo(dtype).max)
    return True if dtype.kind == "b" else -1
