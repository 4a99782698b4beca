"""The course of a statistic in bounded memory: mean, lowest and highest value of runs of points.

As long as there is room a bucket is one point; when it is full, each two neighbours become one. Extremes are never
lost, however many points there are, and the newest point is always there.

Shape legend: P points, B buckets.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

MOST_BUCKETS = 8192
FEWEST_BUCKETS = 256
_FIRST_ROOM = 64
_TIME, _MEAN, _LOW, _HIGH = range(4)


@dataclass(frozen=True, slots=True)
class Sample:
    """Some buckets of a curve.

    Attributes:
        steps: the last one of each bucket, ascending, i64 [B].
        times: the same in seconds since 1970, f64 [B].
        mean: of the points of each, f64 [B].
        low: the lowest of them, f64 [B].
        high: the highest of them, f64 [B].
    """

    steps: Ints
    times: Floats
    mean: Floats
    low: Floats
    high: Floats


class Curve:
    """The points of one tag, as they come.

    Attributes:
        last: step, time and value of the newest point; of one that was lost, those of the bucket before it.
        num_points: how many came.
    """

    def __init__(self) -> None:
        self.last: tuple[int, float, float] | None = None
        self.num_points = 0
        self._steps = np.empty(_FIRST_ROOM, np.int64)
        self._columns = np.empty((4, _FIRST_ROOM))
        self._size = 0
        self._stride = 1  # points of a bucket
        self._tail = (np.empty(0, np.int64), np.empty(0), np.empty(0))  # fewer than a bucket takes

    @property
    def num_buckets(self) -> int:
        """The number of buckets that are kept."""
        return self._size

    def extend(self, steps: Ints, times: Floats, values: Floats, most: int = MOST_BUCKETS) -> None:
        """Take points in the order in which they were written.

        One of a step that was there means that the run went on from before it.

        Args:
            steps: i64 [P].
            times: f64 [P].
            values: finite, f64 [P].
            most: buckets that may be kept; even.
        """
        borders = [0, *(np.flatnonzero(np.diff(steps) <= 0) + 1).tolist(), len(steps)]
        for begin, end in pairwise(borders):
            if begin < end:
                self.drop_from(int(steps[begin]))
                self._append(steps[begin:end], times[begin:end], values[begin:end], most)

    def drop_from(self, step: int) -> None:
        """Forget what came from this step on, and the rest of its bucket."""
        if self.last is None or self.last[0] < step:
            return
        steps, times, values = self._tail
        kept = int(np.searchsorted(steps, step))
        self._tail = steps[:kept], times[:kept], values[:kept]
        if not kept:
            self._size = int(np.searchsorted(self._steps[: self._size], step))
        left, columns = self._all()
        at = (int(left[-1]), float(columns[_TIME, -1]), float(columns[_MEAN, -1])) if len(left) else None
        self.last = (at[0], at[1], float(values[kept - 1])) if at and kept else at

    def sample(self, most: int, begin: float = -np.inf, end: float = np.inf, *, by_time: bool = False) -> Sample:
        """Return the part between two steps, or moments, in at most ``most`` + 1 buckets, and one beyond each end."""
        steps, columns = self._all()
        along = np.maximum.accumulate(columns[_TIME]) if by_time else steps
        first = max(0, int(np.searchsorted(along, begin, "left")) - 1)
        behind = int(np.searchsorted(along, end, "right")) + 1
        steps, columns = steps[first:behind], columns[:, first:behind]
        width = -(-len(steps) // max(1, most))
        if width > 1:
            steps, columns = _merged(steps, columns, width)
        return Sample(steps, columns[_TIME], columns[_MEAN], columns[_LOW], columns[_HIGH])

    def _all(self) -> tuple[Ints, NDArray[np.float64]]:
        """Return the buckets, and one of what is not enough for one."""
        steps, columns = self._steps[: self._size], self._columns[:, : self._size]
        tail_steps, times, values = self._tail
        if not len(tail_steps):
            return steps, columns
        rest = np.array([[times[-1]], [values.mean()], [values.min()], [values.max()]])
        return np.append(steps, tail_steps[-1]), np.concatenate([columns, rest], axis=1)

    def _append(self, steps: Ints, times: Floats, values: Floats, most: int) -> None:
        self.num_points += len(steps)
        self.last = int(steps[-1]), float(times[-1]), float(values[-1])
        steps, times, values = (np.concatenate(pair) for pair in zip(self._tail, (steps, times, values), strict=True))
        while len(steps):
            while self._size >= most:
                self._halve()
            count = min(len(steps) // self._stride, most - self._size)
            if not count:
                break
            taken = count * self._stride
            self._store(count, steps[:taken], times[:taken], values[:taken])
            steps, times, values = steps[taken:], times[taken:], values[taken:]
        self._tail = steps.copy(), times.copy(), values.copy()

    def _store(self, count: int, steps: Ints, times: Floats, values: Floats) -> None:
        begin, end = self._size, self._size + count
        if end > len(self._steps):
            room = max(end, 2 * len(self._steps)) - self._size
            self._steps = np.concatenate([self._steps[:begin], np.empty(room, np.int64)])
            self._columns = np.concatenate([self._columns[:, :begin], np.empty((4, room))], axis=1)
        groups = values.reshape(count, self._stride)
        self._steps[begin:end] = steps.reshape(count, self._stride)[:, -1]
        self._columns[_TIME, begin:end] = times.reshape(count, self._stride)[:, -1]
        self._columns[_MEAN, begin:end] = groups.mean(axis=1)
        self._columns[_LOW, begin:end] = groups.min(axis=1)
        self._columns[_HIGH, begin:end] = groups.max(axis=1)
        self._size = end

    def _halve(self) -> None:
        """Make one bucket of each two; of an odd number the first stays as it is."""
        odd = self._size % 2
        steps, columns = _merged(self._steps[odd : self._size], self._columns[:, odd : self._size], 2)
        self._size = odd + len(steps)
        self._steps[odd : self._size], self._columns[:, odd : self._size] = steps, columns
        self._stride *= 2


def _merged(steps: Ints, columns: NDArray[np.float64], width: int) -> tuple[Ints, NDArray[np.float64]]:
    """Put ``width`` neighbours together; the last ones may be fewer."""
    begins = np.arange(0, len(steps), width)
    if not len(begins):
        return steps, columns
    ends = np.append(begins[1:], len(steps))
    return steps[ends - 1], np.stack(
        [
            columns[_TIME][ends - 1],
            np.add.reduceat(columns[_MEAN], begins) / (ends - begins),
            np.minimum.reduceat(columns[_LOW], begins),
            np.maximum.reduceat(columns[_HIGH], begins),
        ]
    )
