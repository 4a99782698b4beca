"""The columns in which experience is written once, when it arrives.

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
from trajtrainer.data.moments import Arrangement, Moments

RowNumbers = NDArray[np.int32] | NDArray[np.int64]

_FIRST_ROWS, _FIRST_BYTES = 1024, 64 << 20
_MOST_SPARE_BYTES = 1 << 30
# Stands for the references to a row that nobody but moments refers to.
_KEPT = -1


class RowPool:
    """Rows of experience of one behavior; a row is an agent's observation and what followed from it.

    A row is filled in three moments (``columns.Moment``): when it is allocated, when the policy has decided, and when
    the agent's next record arrives. A row that only bootstraps (the last observation of an episode) keeps what its
    previous owner left in the columns of the later moments.

    Attributes:
        columns: the pool's subset of the table, R rows. Replaced when the pool grows: read it from the pool each time.
        moments: who was there with whom; None where groups are not needed.

    One thread (the collector) allocates and writes, another (the learner) may read handed-over rows and release them
    meanwhile.

    **Ownership.** ``allocate`` gives one reference to each row, ``retain`` adds one, ``release`` takes one; without
    references a row is free. The observation after a horizon cut is bootstrap of one trajectory and first row of the
    next, so it has two.

    The pool grows whenever rows run out. An actor's allowance (``actors.pacing``) bounds how many the learner holds.

    **Groups.** Where the algorithm needs them, rows stay for as long as a trajectory with a groupmate's row of the same
    moment (``Moments``) is unfinished or with the learner.
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
        """Make an empty pool.

        Args:
            spec: shapes of observations and actions.
            obs_dtypes: per sensor, f32 or u8, as the environment's step batches have them.
            memory_size: H, 0 without a recurrent memory.
            groups: whether the learner needs the groupmates of each row.
            capacity: rows to begin with; None for as many as are of moderate size.
            poison: overwrite new and freed rows with NaN, -1 (255 in pictures) and True, so that a use after release
                shows. For tests and debugging; also checks row numbers for duplicates and free rows.

        Raises:
            ValueError: ``obs_dtypes`` has another length than the spec has sensors, or a size is not positive.
            OutOfMemoryError: there is no memory for them.
        """
        if (capacity is not None and capacity < 1) or memory_size < 0:
            raise ValueError(f"capacity {capacity}, memory size {memory_size}: expected positive sizes")
        self._poison = poison
        self._lock = threading.Lock()
        stores = Store.POOL | Store.GROUP if groups else Store.POOL
        self.columns = empty(entries_of(stores, spec, obs_dtypes, memory_size=memory_size), 0)
        self.moments = Moments() if groups else None
        if capacity is None:
            capacity = max(1, min(_FIRST_ROWS, _FIRST_BYTES // self.row_bytes))
        self._references = np.zeros(0, np.int32)
        self._num_free = 0
        self._next = 0
        self._grow(capacity)

    def __getitem__(self, name: str) -> NDArray[Any]:
        """Return a column as it is now, [R, ...]."""
        return self.columns[name]

    @property
    def bootstrap_names(self) -> list[str]:
        """Return the columns that tell what comes after a trajectory."""
        return bootstrap_names(len(self.obs))

    @property
    def groupmate_names(self) -> list[str]:
        """Return the columns that tell of a groupmate."""
        return [*(sensor_name(number) for number in range(len(self.obs))), "continuous", "discrete"]

    @property
    def obs(self) -> tuple[ObservationArray, ...]:
        """Return the sensors' columns, f32 or u8 [R, *O]."""
        return self.columns.obs

    @property
    def capacity(self) -> int:
        """R, the rows there are."""
        return len(self._references)

    @property
    def num_free(self) -> int:
        """Rows that nobody refers to."""
        return self._num_free

    @property
    def num_bytes(self) -> int:
        """Size of all columns."""
        return self.capacity * self.row_bytes

    @property
    def row_bytes(self) -> int:
        """Return the size of one row in all columns."""
        return sum(column.itemsize * math.prod(column.shape[1:]) for column in self.columns.values())

    def allocate(self, n: int) -> LongArray:
        """Take ``n`` free rows, each with one reference; grow when there are fewer.

        Raises:
            OutOfMemoryError: it cannot grow.

        Returns:
            i64 [n], ascending, and mostly one run.
        """
        with self._lock:
            if n > self._num_free:
                self._make_room(n)
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
        """Note which rows are of the same groups at the same time; see ``Moments.open``."""
        assert self.moments is not None
        with self._lock:
            self.moments.open(rows, arrangement, num_users)

    def open_last_moment(self, rows: LongArray, stays: BoolArray, others: LongArray) -> None:
        """Note who is there at last observations in a group; see ``Moments.open_last``."""
        assert self.moments is not None
        with self._lock:
            self.moments.open_last(rows, stays, others)

    def release(self, rows: RowNumbers) -> None:
        """Take one reference from each of these rows; those without any become free.

        Args:
            rows: distinct within one call. A row that was first row of one trajectory and bootstrap of another needs
                two calls (``trajectory.release`` makes them).

        Raises:
            ValueError: a row was free already.
        """
        with self._lock:
            if self._poison:
                self._check(rows)
            references = self._references.take(rows)
            references -= 1
            if len(references) and references.min() < 0:
                raise ValueError(f"rows {rows[references < 0][:8].tolist()} were released once too often")
            self._references[rows] = references
            freed = rows[references == 0]
            if self.moments is not None:
                freed = self._without_kept(self.moments.release(rows), freed)
            if self._poison:
                spoil(self.columns, freed)
            self._num_free += len(freed)

    def _without_kept(self, forgotten: RowNumbers, unowned: RowNumbers) -> RowNumbers:
        """Return which rows are free, of those that moments do not keep any more and those that lost their last owner.

        The lock is held.
        """
        assert self.moments is not None
        kept = self.moments.kept(unowned)
        back = forgotten[self._references[forgotten] == _KEPT]
        self._references[unowned[kept]] = _KEPT
        self._references[back] = 0
        free = np.concatenate([unowned[~kept], back])
        self.moments.forget(free)
        return free

    def _find(self, n: int) -> LongArray:
        """Return the next ``n`` free rows, of which there are enough. The lock is held.

        Going round the pool, instead of taking what was freed last, makes a message's rows neighbors: by the time
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
        """Grow until ``n`` rows are free, to twice the size if that is no waste. The lock is held."""
        needed = self.capacity + n - self._num_free
        self._grow(max(needed, self.capacity + min(self.capacity, _MOST_SPARE_BYTES // self.row_bytes)))

    def _grow(self, capacity: int) -> None:
        """Replace every column by a longer one. Readers of the old ones are not disturbed."""
        old = self.capacity
        try:
            self.columns = self.columns.map(lambda column: _longer(column, capacity))
        except MemoryError as error:
            raise OutOfMemoryError(
                f"There is no memory for {capacity} rows of experience of {self.row_bytes} bytes each "
                f"({capacity * self.row_bytes / 2**30:.1f} GiB). Make the observations smaller (pictures above all), "
                "or buffer_size and time_horizon."
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
            raise ValueError("the same row is named twice in one call")
        if (self._references[rows] < 1).any():
            raise ValueError(f"rows {rows[self._references[rows] < 1][:8].tolist()} are free")


def _longer(column: NDArray[Any], length: int) -> NDArray[Any]:
    longer = np.empty((length, *column.shape[1:]), column.dtype)
    longer[: len(column)] = column
    return longer
