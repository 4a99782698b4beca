"""Curves of a run's statistics in bounded memory, read from event files and extended as the files grow.

A curve consists of buckets, which hold the mean, lowest and highest value of neighboring points. At first, each bucket
is a single point. When there are too many buckets, pairs of neighbors are merged. This way, extreme values are never
lost, and the newest point is always included.

Shape legend: P points, B buckets.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trajtrainer.core.filenames import EVENT_FILE_PREFIX
from trajtrainer.policies.folder.contained_folder import ContainedFolder, FolderEntry, Parts
from trajtrainer.policies.folder.event_reader import (
    LEVELS,
    EventBatch,
    EventRecordReader,
    Floats,
    Ints,
    Points,
    parse_records,
)

logger = logging.getLogger(__name__)

MAX_BUCKETS = 8192
MAX_TAGS = 5000
_FEWEST_BUCKETS = 256
_MAX_BUCKETS_AT_ONCE = 1 << 22  # for all tags of a folder together, if it is read completely
_FIRST_CAPACITY = 64
_TIME, _MEAN, _LOW, _HIGH = range(4)
_MAX_HISTOGRAMS = 500
# Limits for a batch of records.
_MAX_RECORDS = 10_000
_MAX_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Series:
    """A statistic over a run. Up to 8,192 points are returned as written; with more, neighbors share a bucket.

    Attributes:
        steps: the last step of each bucket, ascending, i64 [B].
        values: the mean of each bucket, finite, f64 [B].
        low: the lowest value of each bucket, f64 [B].
        high: the highest value of each bucket, f64 [B].
        times: the time when the last point of each bucket was written, in seconds since 1970, f64 [B].
    """

    steps: Ints
    values: Floats
    low: Floats
    high: Floats
    times: Floats

    @classmethod
    def of_points(cls, steps: Ints, values: Floats) -> Series:
        """Create a series of single points, without times."""
        return cls(steps, values, values, values, np.zeros(len(steps)))


class Curve:
    """The growing curve of one tag.

    Attributes:
        last: step, time and value of the newest point, or of the newest bucket if later points were dropped; None if
            the curve is empty.
        num_points: number of points that were added.
    """

    def __init__(self) -> None:
        self.last: tuple[int, float, float] | None = None
        self.num_points = 0
        self._steps = np.empty(_FIRST_CAPACITY, np.int64)
        self._columns = np.empty((4, _FIRST_CAPACITY))
        self._size = 0
        self._stride = 1  # points per bucket
        self._tail = (np.empty(0, np.int64), np.empty(0), np.empty(0))  # points of the incomplete last bucket

    def extend(self, steps: Ints, times: Floats, values: Floats, most: int = MAX_BUCKETS) -> None:
        """Add points in the order in which they were written.

        If a step is not greater than the previous one, the run was resumed from there, and the points at or after this
        step are dropped.

        Args:
            steps: step of each point, i64 [P].
            times: seconds since 1970, f64 [P].
            values: finite values, f64 [P].
            most: maximum number of buckets to keep; must be even.
        """
        borders = [0, *(np.flatnonzero(np.diff(steps) <= 0) + 1).tolist(), len(steps)]
        for begin, end in pairwise(borders):
            if begin < end:
                self.drop_from(int(steps[begin]))
                self._append(steps[begin:end], times[begin:end], values[begin:end], most)

    def drop_from(self, step: int) -> None:
        """Drop the points at or after this step, together with the buckets that contain them."""
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

    def series(
        self, most: int | None = None, begin: float = -np.inf, end: float = np.inf, *, by_time: bool = False
    ) -> Series:
        """Return the part between two steps or times, and one more bucket at each end.

        Args:
            most: maximum number of buckets in the result; None for no limit.
            begin: first step.
            end: last step.
            by_time: if True, ``begin`` and ``end`` are seconds since 1970.
        """
        steps, columns = self._all()
        # The clock may have been set back during the run.
        along = np.maximum.accumulate(columns[_TIME]) if by_time else steps
        first = max(0, int(np.searchsorted(along, begin, "left")) - 1)
        behind = int(np.searchsorted(along, end, "right")) + 1
        steps, columns = steps[first:behind], columns[:, first:behind]
        width = 1 if most is None else -(-len(steps) // max(1, most))
        if width > 1:
            steps, columns = _merged(steps, columns, width)
        # Return copies, because the curve's arrays change as it grows.
        mean, low, high, times = (columns[row].copy() for row in (_MEAN, _LOW, _HIGH, _TIME))
        return Series(steps.copy(), mean, low, high, times)

    def _all(self) -> tuple[Ints, NDArray[np.float64]]:
        """Return all buckets, including an incomplete one at the end."""
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
            while self._size >= most:  # merge pairs of buckets; if the number is odd, keep the first
                odd = self._size % 2
                halved, columns = _merged(self._steps[odd : self._size], self._columns[:, odd : self._size], 2)
                self._size = odd + len(halved)
                self._steps[odd : self._size], self._columns[:, odd : self._size] = halved, columns
                self._stride *= 2
            count = min(len(steps) // self._stride, most - self._size)
            if not count:
                break
            begin, end, stored = self._size, self._size + count, count * self._stride
            if end > len(self._steps):
                added = max(end, 2 * len(self._steps)) - begin
                self._steps = np.concatenate([self._steps[:begin], np.empty(added, np.int64)])
                self._columns = np.concatenate([self._columns[:, :begin], np.empty((4, added))], axis=1)
            groups = values[:stored].reshape(count, self._stride)
            self._steps[begin:end] = steps[:stored].reshape(count, self._stride)[:, -1]
            self._columns[_TIME, begin:end] = times[:stored].reshape(count, self._stride)[:, -1]
            self._columns[_MEAN, begin:end] = groups.mean(axis=1)
            self._columns[_LOW, begin:end] = groups.min(axis=1)
            self._columns[_HIGH, begin:end] = groups.max(axis=1)
            self._size = end
            steps, times, values = steps[stored:], times[stored:], values[stored:]
        self._tail = steps.copy(), times.copy(), values.copy()


def _merged(steps: Ints, columns: NDArray[np.float64], width: int) -> tuple[Ints, NDArray[np.float64]]:
    """Merge each group of ``width`` neighbors. The last group may be smaller."""
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


class BehaviorCurves:
    """The curves in the event files of one behavior's folder.

    Attributes:
        curves: tag -> curve.
        histograms: tag -> one curve per percentile (``LEVELS``).
        starts: steps from which the run was resumed, if its event files contain them.
        began: the time when the first point was written, in seconds since 1970; None if there is no point yet.
        version: a number that changes whenever the curves change.
        error: the error of the last read; None if it succeeded.
    """

    def __init__(self, folder: ContainedFolder, parts: Parts) -> None:
        self._folder = folder
        self._parts = parts
        self._begin([])
        self.version = 0
        self.error: OSError | None = None

    def _begin(self, files: Sequence[FolderEntry]) -> None:
        self.curves: dict[str, Curve] = {}
        self.histograms: dict[str, list[Curve]] = {}
        self.starts: list[int] = []
        self.began: float | None = None
        self._files: list[FolderEntry] = list(files)
        self._readers = [EventRecordReader(self._folder.path.joinpath(*self._parts, each.name)) for each in files]

    @property
    def num_bytes(self) -> int:
        """The total size of all files."""
        return sum(file.size for file in self._files)

    @property
    def num_read(self) -> int:
        """The number of bytes that were read or cannot be read."""
        return sum(
            file.size if reader.is_damaged else reader.offset
            for file, reader in zip(self._files, self._readers, strict=True)
        )

    @property
    def is_damaged(self) -> bool:
        """True if a part of a file is damaged and cannot be read."""
        return any(reader.is_damaged for reader in self._readers)

    def read_on(self, until_s: float, most_buckets: int) -> bool:
        """Read new records until ``time.monotonic`` reaches ``until_s``. Return whether everything was read."""
        self.error = None
        files = event_files(self._folder, self._parts)
        known = [file.identity for file in self._files]
        has_shrunk = any(file.size < reader.offset for file, reader in zip(files, self._readers, strict=False))
        if [file.identity for file in files[: len(known)]] != known or has_shrunk:
            # A file was deleted or replaced: this is a different run with the same name.
            self._begin(files)
            self.version += 1
        for file in files[len(self._files) :]:
            self._readers.append(EventRecordReader(self._folder.path.joinpath(*self._parts, file.name)))
        self._files = files
        for file, reader in zip(self._files, self._readers, strict=True):
            if not self._read_file(file, reader, until_s, most_buckets):
                return False
        return True

    def _read_file(self, file: FolderEntry, reader: EventRecordReader, until_s: float, most_buckets: int) -> bool:
        if reader.is_damaged or file.size <= reader.offset:
            return True
        try:
            with self._folder.open((*self._parts, file.name)) as opened:
                records = reader.records(opened)
                while batch := list(_next_batch(records)):
                    events = parse_records(batch)
                    if events.num_damaged:
                        path = self._folder.path.joinpath(*self._parts, file.name)
                        logger.warning("%s: skipped %d damaged records.", path, events.num_damaged)
                    self._add(events, most_buckets)
                    if time.monotonic() > until_s:
                        return reader.offset >= file.size
        except FileNotFoundError:  # just deleted
            pass
        except OSError as error:
            self.error = error
        return True

    def _add(self, events: EventBatch, most_buckets: int) -> None:
        """Add points in file order, so that the start of a resumed run drops only points that come before it."""
        begin = 0
        for number, step in events.starts.items():
            self._extend(events, begin, number, most_buckets)
            for curve in (*self.curves.values(), *chain.from_iterable(self.histograms.values())):
                curve.drop_from(step)
            if step not in self.starts and len(self.starts) < MAX_TAGS:
                self.starts.append(step)
            self.version += 1
            begin = number
        self._extend(events, begin, None, most_buckets)
        self.version += bool(events.points or events.histograms)

    def _extend(self, events: EventBatch, begin: int, end: int | None, most_buckets: int) -> None:
        """Add the points of the records from index ``begin`` up to, but not including, ``end``."""
        # Count all curves in advance, so that the first ones do not have to be reduced drastically later.
        num_curves = len(self.curves.keys() | events.points.keys())
        num_curves += len(LEVELS) * len(self.histograms.keys() | events.histograms.keys())
        most = most_buckets // max(1, num_curves)
        most = min(max(most - most % 2, _FEWEST_BUCKETS), MAX_BUCKETS)
        for tag, some in events.points.items():
            piece = self._piece(some, begin, end)
            if piece is not None and (tag in self.curves or len(self.curves) < MAX_TAGS):
                curve = self.curves.setdefault(tag, Curve())
                curve.extend(some.steps[piece], some.times[piece], some.values[piece], most)
        for tag, some in events.histograms.items():
            piece = self._piece(some, begin, end)
            if piece is not None and (tag in self.histograms or len(self.histograms) < _MAX_HISTOGRAMS):
                levels = self.histograms.setdefault(tag, [Curve() for _ in LEVELS])
                for curve, values in zip(levels, some.values[piece].T, strict=True):
                    curve.extend(some.steps[piece], some.times[piece], values, most)

    def _piece(self, points: Points, begin: int, end: int | None) -> slice | None:
        first, behind = np.searchsorted(points.order, (begin, np.iinfo(np.int64).max if end is None else end))
        if first == behind:
            return None
        if self.began is None:
            self.began = float(points.times[first])
        return slice(first, behind)


def _next_batch(records: Iterator[bytes]) -> Iterator[bytes]:
    size = 0
    for count, record in enumerate(records, 1):
        yield record
        size += len(record)
        if count >= _MAX_RECORDS or size >= _MAX_BYTES:
            return


def event_files(folder: ContainedFolder, parts: Parts) -> list[FolderEntry]:
    """Return the event files of a behavior's folder, in the order in which they were created."""
    return [each for each in folder.list(parts) if each.name.startswith(EVENT_FILE_PREFIX) and not each.is_folder]


def read_scalars(folder: Path) -> dict[str, Series]:
    """Read the scalars of a behavior's folder as a dict from tag to series, sorted by tag.

    If a run was killed and resumed from an earlier step, the points that it had written after this step are left out.

    Raises:
        OSError: a file cannot be read.
    """
    curves = BehaviorCurves(ContainedFolder(folder), ())
    curves.read_on(math.inf, _MAX_BUCKETS_AT_ONCE)
    if curves.error is not None:
        raise curves.error
    found = {tag: curve.series() for tag, curve in sorted(curves.curves.items())}
    return {tag: series for tag, series in found.items() if len(series.steps)}
