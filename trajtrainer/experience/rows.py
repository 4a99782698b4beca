"""The pool of rows. Experience is written to it once, when it arrives.

Shape legend: R rows of a pool, H memory size.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from trajtrainer.core.columns import Columns, Store, bootstrap_names, empty, entries_of, sensor_name, spoil
from trajtrainer.core.errors import OutOfMemoryError
from trajtrainer.core.spec import BehaviorSpec
from trajtrainer.core.steps import BoolArray, LongArray, ObservationArray
from trajtrainer.experience.moments import Arrangement, GroupMoments

RowNumbers = NDArray[np.int32] | NDArray[np.int64]

_FIRST_ROWS, _FIRST_BYTES = 1024, 64 << 20
_MOST_SPARE_BYTES = 1 << 30
# Marks a row that has no references left but still belongs to a moment.
_KEPT = -1


class RowPool:
    """The rows of one behavior's experience. A row contains an observation, the agent's action and the outcome.

    A row is filled in three stages, the first three of ``columns.Moment``: when it is allocated, after the policy has
    decided, and when the agent's next record arrives. If a row is used only as a bootstrap (the last observation of an
    episode), its later columns still contain values from its previous use.

    One thread (the collector) allocates and writes rows, while another (the learner) may read and release the rows that
    were handed over to it.

    **Ownership.** ``allocate`` gives each row one reference, ``retain`` adds one, and ``release`` removes one. A row
    without references is free. The observation after a horizon cut is the bootstrap of one trajectory and the first row
    of the next, so it has two references.

    The pool grows whenever it runs out of rows. An actor's allowance (``actors.pacing``) limits how many rows the
    learner holds.

    **Groups.** For an algorithm that needs groups, a row is also kept until the learner has released all trajectories
    that contain a groupmate's row from the same moment (``GroupMoments``).

    Args:
        spec: shapes of observations and actions.
        obs_dtypes: dtype of each sensor, f32 or u8, as in the environment's step batches.
        memory_size: H; 0 without a recurrent memory.
        groups: whether the learner needs the groupmates of each row.
        capacity: initial number of rows; None for a moderate size.
        poison: overwrite new and freed rows with NaN, -1 (255 for images) and True, so that code that uses them after
            release fails visibly, and check row numbers for duplicates and free rows. For tests and debugging.

    Attributes:
        columns: the pool's subset of the table, R rows. The columns are replaced when the pool grows, so always access
            them through the pool.
        moments: which rows were in a group together; None if groups are not needed.

    Raises:
        ValueError: the number of dtypes differs from the number of sensors, or a size is not positive.
        OutOfMemoryError: there is not enough memory for the rows.
    """

    columns: Columns[NDArray[Any]]

    def __init__(
        self,
        spec: BehaviorSpec,
        obs_dtypes: Sequence[DTypeLike],
        *,
        memory_size: int = 0,
        groups: bool = False,
        capacity: int | None = None,
        poison: bool = False,
    ) -> None:
        if (capacity is not None and capacity < 1) or memory_size < 0:
            raise ValueError(f"capacity {capacity}, memory size {memory_size}: expected positive sizes")
        self._poison = poison
        self._lock = threading.Lock()
        stores = Store.POOL | Store.GROUP if groups else Store.POOL
        self.columns = empty(entries_of(stores, spec, obs_dtypes, memory_size=memory_size), 0)
        self.moments = GroupMoments() if groups else None
        if capacity is None:
            capacity = max(1, min(_FIRST_ROWS, _FIRST_BYTES // self.row_bytes))
        self._references = np.zeros(0, np.int32)
        self._num_free = 0
        self._next = 0
        self._grow(capacity)

    def __getitem__(self, name: str) -> NDArray[Any]:
        """Return a column of all rows, [R, ...]. It is replaced when the pool grows."""
        return self.columns[name]

    @property
    def bootstrap_names(self) -> list[str]:
        """The names of the columns for the observation after a trajectory's last step."""
        return bootstrap_names(len(self.obs))

    @property
    def groupmate_names(self) -> list[str]:
        """The names of the groupmates' columns that the learner needs."""
        return [*(sensor_name(number) for number in range(len(self.obs))), "continuous", "discrete"]

    @property
    def obs(self) -> tuple[ObservationArray, ...]:
        """The sensors' columns, f32 or u8 [R, *O]."""
        return self.columns.obs

    @property
    def capacity(self) -> int:
        """The number of rows including free rows, R."""
        return len(self._references)

    @property
    def num_free(self) -> int:
        """The number of rows that have no references and are not kept by a moment."""
        return self._num_free

    @property
    def row_bytes(self) -> int:
        """The size of a row in bytes, over all columns."""
        return sum(column.itemsize * math.prod(column.shape[1:]) for column in self.columns.values())

    def allocate(self, n: int) -> LongArray:
        """Reserve ``n`` free rows, each with one reference. The pool grows if fewer are free.

        Raises:
            OutOfMemoryError: the pool cannot grow.

        Returns:
            Row numbers, i64 [n], ascending and usually consecutive.
        """
        with self._lock:
            if n > self._num_free:
                # Double the size, unless that would waste too much memory.
                spare = min(self.capacity, _MOST_SPARE_BYTES // self.row_bytes)
                self._grow(self.capacity + max(n - self._num_free, spare))
            rows = self._find(n)
            self._references[rows] = 1
            self._num_free -= n
            return rows

    def retain(self, rows: RowNumbers) -> None:
        """Add a reference to each of these distinct rows."""
        with self._lock:
            if self._poison:
                self._check(rows)
            self._references[rows] += 1
            if self.moments is not None:
                self.moments.retain(rows)

    def open_moments(self, rows: LongArray, arrangement: Arrangement, num_users: int | None = None) -> None:
        assert self.moments is not None
        with self._lock:
            self.moments.open(rows, arrangement, num_users)

    def open_last_moment(self, rows: LongArray, stays: BoolArray, others: LongArray) -> None:
        assert self.moments is not None
        with self._lock:
            self.moments.open_last(rows, stays, others)

    def release(self, rows: RowNumbers) -> None:
        """Remove one reference from each of these rows. Rows without references become free.

        Args:
            rows: row numbers, distinct within one call. Two calls are needed if a row is the first one of a trajectory
                and the bootstrap of another (``trajectory.release`` does this).

        Raises:
            ValueError: a row is already free.
        """
        with self._lock:
            if self._poison:
                self._check(rows)
            references = self._references.take(rows)
            references -= 1
            if len(references) and references.min() < 0:
                raise ValueError(f"rows {rows[references < 0][:8].tolist()} were released although they are free")
            self._references[rows] = references
            freed = rows[references == 0]
            if self.moments is not None:
                # A row becomes free once it has no references and no moment keeps it. Either can happen first.
                unkept = self.moments.release(rows)
                is_kept = self.moments.kept(freed)
                unkept = unkept[self._references[unkept] == _KEPT]
                self._references[freed[is_kept]] = _KEPT
                self._references[unkept] = 0
                freed = np.concatenate([freed[~is_kept], unkept])
                self.moments.clear(freed)
            if self._poison:
                spoil(self.columns, freed)
            self._num_free += len(freed)

    def _find(self, n: int) -> LongArray:
        """Return the next ``n`` free rows, which must exist. The caller holds the lock.

        The search cycles through the pool rather than reusing the rows that were freed last. This keeps the rows of a
        message together: by the time the search returns to them, most trajectories that started there are finished.
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

    def _grow(self, capacity: int) -> None:
        """Replace each column with a longer copy. Another thread may still read the old columns."""
        old = self.capacity
        try:
            self.columns = self.columns.map(lambda column: _longer(column, capacity))
        except MemoryError as error:
            raise OutOfMemoryError(
                f"There is not enough memory for {capacity} rows of experience with {self.row_bytes} bytes each "
                f"({capacity * self.row_bytes / 2**30:.1f} GiB). Reduce the size of the observations (above all images)"
                ", buffer_size or time_horizon."
            ) from error
        self._references = _longer(self._references, capacity)
        self._references[old:] = 0
        if self.moments is not None:
            self.moments.add_rows(capacity)
        self._num_free += capacity - old
        self._next = old
        if self._poison:
            spoil(self.columns, np.arange(old, capacity))

    def _check(self, rows: RowNumbers) -> None:
        if len(np.unique(rows)) != len(rows):
            raise ValueError("the same row occurs twice in one call")
        if (self._references[rows] < 1).any():
            raise ValueError(f"rows {rows[self._references[rows] < 1][:8].tolist()} are free")


def _longer(column: NDArray[Any], length: int) -> NDArray[Any]:
    longer = np.empty((length, *column.shape[1:]), column.dtype)
    longer[: len(column)] = column
    return longer
