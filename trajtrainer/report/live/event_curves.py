"""Curves of a run's event files, read on from where they were, a piece at a time."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from itertools import chain

import numpy as np

from trajtrainer.report.live.curves import FEWEST_BUCKETS, MOST_BUCKETS, Curve
from trajtrainer.report.live.folder import Entry, Folder, Parts
from trajtrainer.report.live.histograms import LEVELS
from trajtrainer.report.live.points import Found, Points, find_points
from trajtrainer.rundir.event_file import PREFIX
from trajtrainer.rundir.series import MOST_TAGS, EventReader

# Of all curves of a run together; with many tags each has fewer.
_MOST_BUCKETS_OF_RUN = 1 << 19
_MOST_RECORDS = 10_000
_MOST_HISTOGRAMS = 500
_MOST_BYTES = 1 << 20


class BehaviorCurves:
    """The curves of one behaviour.

    Attributes:
        curves: tag -> its course.
        histograms: tag -> the course of each of its percentiles (``histograms.LEVELS``).
        starts: steps from which the run went on, where its event files tell.
        began: when the first point was written, seconds since 1970; None before that.
        version: changes with them.
    """

    def __init__(self, folder: Folder, parts: Parts) -> None:
        self._folder = folder
        self._parts = parts
        self._begin([])
        self.version = 0

    def _begin(self, files: Sequence[Entry]) -> None:
        self.curves: dict[str, Curve] = {}
        self.histograms: dict[str, list[Curve]] = {}
        self.starts: list[int] = []
        self.began: float | None = None
        self._files: list[Entry] = list(files)
        self._readers = [EventReader(self._folder.path.joinpath(*self._parts, each.name)) for each in files]

    @property
    def num_bytes(self) -> int:
        """The size of all files."""
        return sum(file.size for file in self._files)

    @property
    def num_read(self) -> int:
        """How many of these bytes were read, or will never be."""
        return sum(
            file.size if reader.is_damaged else reader.offset
            for file, reader in zip(self._files, self._readers, strict=True)
        )

    @property
    def is_damaged(self) -> bool:
        """Whether a file has a part that cannot be read."""
        return any(reader.is_damaged for reader in self._readers)

    def read_on(self, until_s: float, most_buckets: int) -> bool:
        """Read what is new, until ``time.monotonic`` says so. Return whether that was all."""
        self._look()
        for file, reader in zip(self._files, self._readers, strict=True):
            if not self._read_file(file, reader, until_s, most_buckets):
                return False
        return True

    def _look(self) -> None:
        """Find the files. Where one is gone, or is another one now, all begins anew."""
        files = event_files(self._folder, self._parts)
        known = [file.identity for file in self._files]
        has_shrunk = any(file.size < reader.offset for file, reader in zip(files, self._readers, strict=False))
        if [file.identity for file in files[: len(known)]] != known or has_shrunk:
            self._begin(files)
            self.version += 1
        for file in files[len(self._files) :]:
            self._readers.append(EventReader(self._folder.path.joinpath(*self._parts, file.name)))
        self._files = files

    def _read_file(self, file: Entry, reader: EventReader, until_s: float, most_buckets: int) -> bool:
        if reader.is_damaged or file.size <= reader.offset:
            return True
        try:
            with self._folder.opened((*self._parts, file.name)) as opened:
                records = reader.records(opened)
                while batch := list(_limited(records)):
                    self._take(find_points(batch), most_buckets)
                    if time.monotonic() > until_s:
                        return reader.offset >= file.size
        except OSError:  # gone meanwhile
            pass
        return True

    def _take(self, found: Found, most_buckets: int) -> None:
        """Put points into the curves, in the order in which everything stood in the file."""
        begin = 0
        for number, step in found.starts.items():
            self._extend(found, begin, number, most_buckets)
            self._go_on_from(step)
            begin = number
        self._extend(found, begin, None, most_buckets)
        self.version += bool(found.points or found.histograms)

    def _extend(self, found: Found, begin: int, end: int | None, most_buckets: int) -> None:
        """Append the points of the records from one number to before another one."""
        # All are counted in advance, so that the first do not have to give much up later.
        num_curves = len(self.curves.keys() | found.points.keys())
        num_curves += len(LEVELS) * len(self.histograms.keys() | found.histograms.keys())
        most = most_buckets // max(1, num_curves)
        most = min(max(most - most % 2, FEWEST_BUCKETS), MOST_BUCKETS)
        for tag, some in found.points.items():
            piece = self._piece(some, begin, end)
            if piece is not None and (tag in self.curves or len(self.curves) < MOST_TAGS):
                curve = self.curves.setdefault(tag, Curve())
                curve.extend(some.steps[piece], some.times[piece], some.values[piece], most)
        for tag, some in found.histograms.items():
            piece = self._piece(some, begin, end)
            if piece is not None and (tag in self.histograms or len(self.histograms) < _MOST_HISTOGRAMS):
                levels = self.histograms.setdefault(tag, [Curve() for _ in LEVELS])
                for curve, values in zip(levels, some.values[piece].T, strict=True):
                    curve.extend(some.steps[piece], some.times[piece], values, most)

    def _piece(self, points: Points, begin: int, end: int | None) -> slice | None:
        """Return which points are of the records from one number to before another one; None without any."""
        first, behind = np.searchsorted(points.order, (begin, np.iinfo(np.int64).max if end is None else end))
        if first == behind:
            return None
        if self.began is None:
            self.began = float(points.times[first])
        return slice(first, behind)

    def _go_on_from(self, step: int) -> None:
        for curve in (*self.curves.values(), *chain.from_iterable(self.histograms.values())):
            curve.drop_from(step)
        if step not in self.starts and len(self.starts) < MOST_TAGS:
            self.starts.append(step)
        self.version += 1


def _limited(records: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the next records, until there are many or they are large."""
    size = 0
    for count, record in enumerate(records, 1):
        yield record
        size += len(record)
        if count >= _MOST_RECORDS or size >= _MOST_BYTES:
            return


class RunCurves:
    """The curves of a run.

    Attributes:
        behaviors: name of the folder -> its curves.
    """

    def __init__(self, folder: Folder, parts: Parts) -> None:
        self._folder = folder
        self._parts = parts
        self.behaviors: dict[str, BehaviorCurves] = {}

    def read_on(self, seconds: float) -> bool:
        """Read what is new, for so long at most. Return whether that was all."""
        until_s = time.monotonic() + seconds
        there = {entry.name for entry in behavior_folders(self._folder, self._parts)}
        for gone in self.behaviors.keys() - there:
            del self.behaviors[gone]
        for name in sorted(there - self.behaviors.keys()):
            self.behaviors[name] = BehaviorCurves(self._folder, (*self._parts, name))
        most = _MOST_BUCKETS_OF_RUN // max(1, len(self.behaviors))
        whole = [each.read_on(until_s, most) for each in self.behaviors.values()]  # a little of each
        return all(whole)

    @property
    def began(self) -> float | None:
        """When the first point was written, seconds since 1970; None before that."""
        return min((each.began for each in self.behaviors.values() if each.began is not None), default=None)

    @property
    def version(self) -> tuple[tuple[str, int], ...]:
        """Something that changes with the curves."""
        return tuple((name, each.version) for name, each in self.behaviors.items())

    @property
    def share_read(self) -> float:
        """Which part of the files has been read, 0 to 1."""
        size = sum(each.num_bytes for each in self.behaviors.values())
        read = sum(each.num_read for each in self.behaviors.values())
        return min(1.0, read / size) if size else 1.0


def event_files(folder: Folder, parts: Parts) -> list[Entry]:
    """Return the event files of a behaviour's folder, in the order in which they were begun."""
    return [each for each in folder.list(parts) if each.name.startswith(PREFIX) and not each.is_folder]


def behavior_folders(folder: Folder, parts: Parts) -> list[Entry]:
    """Return the folders of a run that hold event files."""
    return [each for each in folder.folders(parts) if event_files(folder, (*parts, each.name))]
