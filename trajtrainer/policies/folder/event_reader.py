"""Reads event files of trajtrainer and ML-Agents, even while they are being written.

It reads single records, and parses the scalars and histograms of many records at once. TensorBoard's own reader loads
everything into memory, or a random sample, including images. A long run has millions of records that differ only in
their time, step and values. ``parse_records`` therefore parses records of the same layout together
(``core/protobuf.py``), and all others one by one.

Shape legend: N records of the same length L, P points.
"""

from __future__ import annotations

import logging
import os
import struct
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray
from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.histogram_pb2 import HistogramProto
from tensorboard.util.tensor_util import make_ndarray

from trajtrainer.core.protobuf import (
    DOUBLE,
    FLOAT,
    NUMBER,
    RAW,
    Alike,
    Bytes,
    Layout,
    LayoutSorter,
    Schema,
    UnusualRecordError,
    floats,
    numbers,
)
from trajtrainer.policies.folder.event_file import masked_crc

logger = logging.getLogger(__name__)

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

LONGEST_TAG = 1000
LATEST = 1e11
"""Upper limit for times, in seconds since 1970. A record with a later time is damaged."""
LEVELS = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)
"""The percentiles that are kept for a histogram."""
_LARGEST_RECORD = 1 << 24  # larger records contain no scalars from trajtrainer or ML-Agents
_CHUNK = 1 << 20
_HEADER = struct.Struct("<QI")  # length and its checksum
_FOOTER_BYTES = 4
_FEWEST = 16  # minimum number of records of the same length that justifies finding their layout
_LARGEST_STEP = 1 << 62
_LARGEST_VALUE = 1e300  # limit for values, so that their sums stay finite
# Per tag and batch. Parsing a histogram takes ten times as long as parsing a number.
_MAX_HISTOGRAMS = 64
_MAX_STEP_BYTES = 9  # longer varints are negative numbers
# Field numbers of Event, of its Summary, and of the values in the Summary.
_WALL_TIME, _STEP, _SIMPLE_VALUE, _HISTOGRAM = (1,), (2,), (5, 1, 2), (5, 1, 5)
_EVENT: Schema = {1: DOUBLE, 2: NUMBER, 5: {1: {2: FLOAT, 5: RAW}}}


class EventRecordReader:
    """Reads the records of one event file. Each call continues where the last one stopped.

    Attributes:
        offset: file position after the last complete record that was read or skipped.
        is_damaged: True if the file is damaged at ``offset``, so that no further records can be read.
    """

    def __init__(self, path: Path) -> None:
        """Start at the beginning of the file. ``path`` is used only in messages."""
        self.offset = 0
        self.is_damaged = False
        self._path = path

    def records(self, file: BinaryIO) -> Iterator[bytes]:
        """Yield the content of complete records, up to the end of the file or a damaged record.

        If the caller stops early, the next call continues after the last record that was yielded.
        """
        size = os.fstat(file.fileno()).st_size
        wanted = _CHUNK
        while self.offset + _HEADER.size <= size:
            file.seek(self.offset)
            asked = min(wanted, size - self.offset)
            data = file.read(asked)
            at, needed = 0, _HEADER.size
            while at + _HEADER.size <= len(data):
                length, checksum = _HEADER.unpack_from(data, at)
                if checksum != _length_checksum(data[at : at + 8]):
                    # Without the length of a record, the start of the next one cannot be found.
                    logger.warning(
                        "%s is damaged at byte %d; the rest of the file is skipped.", self._path, self.offset
                    )
                    self.is_damaged = True
                    return
                needed = _HEADER.size + length + _FOOTER_BYTES
                if at + needed > len(data):
                    break
                self.offset += needed
                yield data[at + _HEADER.size : at + needed - _FOOTER_BYTES]
                at, needed = at + needed, _HEADER.size
            if len(data) < asked:  # the file has just been truncated
                return
            if self.offset + needed > size:
                return  # the run is writing this record, or was killed while writing it
            if needed > _LARGEST_RECORD:
                self.offset += needed
            wanted = max(_CHUNK, min(needed, _LARGEST_RECORD))


@lru_cache(maxsize=4096)  # only a few different lengths are common
def _length_checksum(length: bytes) -> int:
    return masked_crc(length)


@dataclass(slots=True)
class Points:
    """The points of one tag.

    Attributes:
        order: index of each point's record in the batch, ascending, i64 [P].
        steps: step of each point, i64 [P].
        times: seconds since 1970, f64 [P].
        values: finite values, f64 [P]; for histograms, the percentiles ``LEVELS``, f64 [P, 7].
    """

    order: Ints
    steps: Ints
    times: Floats
    values: Floats


@dataclass(slots=True)
class EventBatch:
    """The content of a batch of records.

    Attributes:
        points: tag -> scalars.
        histograms: tag -> histograms.
        starts: index of the record at which a resumed run starts -> the first step of the resumed run, ascending.
        num_damaged: number of records that could not be parsed.
    """

    points: dict[str, Points]
    histograms: dict[str, Points]
    starts: dict[int, int]
    num_damaged: int


Pieces = defaultdict[str, list[Points]]


def parse_records(records: Sequence[bytes]) -> EventBatch:
    """Parse all scalars and histograms (a subset of the histograms if there are too many). Skip damaged records."""
    scalars, histograms = Pieces(list), Pieces(list)
    sizes = np.array([len(each) for each in records], np.int64)
    data = b"".join(records)
    found, others = LayoutSorter(_SummaryLayout).sort(data, np.cumsum(sizes) - sizes, sizes, _FEWEST)
    for group, rows in found:
        _parse_together(group, rows, scalars, histograms)
    starts, num_damaged = _parse_one_by_one(records, others.tolist(), scalars, histograms)
    return EventBatch(
        {tag: _in_order(pieces) for tag, pieces in scalars.items()},
        {tag: _in_order(pieces) for tag, pieces in histograms.items()},
        starts,
        num_damaged,
    )


def _in_order(pieces: Sequence[Points]) -> Points:
    if len(pieces) == 1:
        return pieces[0]
    order, steps, times, values = (
        np.concatenate([getattr(piece, name) for piece in pieces]) for name in ("order", "steps", "times", "values")
    )
    rank = np.argsort(order, kind="stable")
    return Points(order[rank], steps[rank], times[rank], values[rank])


class _SummaryLayout:
    """The positions of all values in a summary record that contains only scalars and histograms.

    Attributes:
        layout: layout of the record.
        time: position of the time.
        step: position of the step; None if the step is 0.
        values: pairs of a tag and the position of its scalar.
        histograms: pairs of a tag and the position of its histogram.

    Raises:
        UnusualRecordError: the record is not such a summary.
    """

    def __init__(self, record: bytes) -> None:
        self.layout = Layout.of(record, _EVENT, _MAX_STEP_BYTES)
        try:
            event = Event.FromString(record)
        except DecodeError as error:
            raise UnusualRecordError from error
        tags: dict[str | None, list[str]] = {"simple_value": [], "histo": []}
        for value in event.summary.value:
            tags.setdefault(value.WhichOneof("value"), []).append(value.tag)
        time, self.step = self.layout.place(*_WALL_TIME), self.layout.place(*_STEP)
        places = [self.layout.places.get(path, []) for path in (_SIMPLE_VALUE, _HISTOGRAM)]
        if (
            time is None
            or event.WhichOneof("what") != "summary"
            or list(map(len, tags.values())) != list(map(len, places))
        ):
            raise UnusualRecordError
        self.time = time
        self.values, self.histograms = (
            [(tag, place) for tag, place in zip(names, found, strict=True) if len(tag) <= LONGEST_TAG]
            for names, found in zip(tags.values(), places, strict=True)
        )


def _parse_together(group: Alike[_SummaryLayout], rows: Bytes, scalars: Pieces, histograms: Pieces) -> None:
    """Add the points of records with the same layout, u8 [N, L]."""
    layout = group.learned
    order: Ints = np.arange(group.rows.start, group.rows.stop) if isinstance(group.rows, slice) else group.rows

    def column(place: slice, dtype: str) -> Floats:
        return floats(rows, place, dtype)[:, 0].astype(np.float64)

    times = column(layout.time, "<f8")
    steps = np.zeros(len(rows), np.int64) if layout.step is None else numbers(rows, layout.step).astype(np.int64)
    is_usable = (times >= 0) & (times < LATEST) & (steps < _LARGEST_STEP)
    for tag, place in layout.values:
        values = column(place, "<f4")
        usable = is_usable & np.isfinite(values)
        scalars[tag].append(Points(order[usable], steps[usable], times[usable], values[usable]))
    some = np.flatnonzero(is_usable)[:: max(1, -(-len(order) // _MAX_HISTOGRAMS))].tolist()
    for tag, place in layout.histograms:
        found = {}
        for i in some:
            with suppress(DecodeError):
                levels = percentiles(HistogramProto.FromString(rows[i, place].tobytes()))
                if levels is not None:
                    found[i] = levels
        if found:
            kept = np.array(list(found), np.int64)
            histograms[tag].append(Points(order[kept], steps[kept], times[kept], np.stack(list(found.values()))))


def _parse_one_by_one(
    records: Sequence[bytes], numbers: Sequence[int], scalars: Pieces, histograms: Pieces
) -> tuple[dict[int, int], int]:
    """Add the points of these records. Return the starts of resumed runs, and the number of damaged records."""
    starts: dict[int, int] = {}
    num_damaged = 0
    points: dict[str, list[Any]] = {}
    distributions: dict[str, list[Any]] = {}
    for number in numbers:
        try:
            event = Event.FromString(records[number])
        except DecodeError:
            num_damaged += 1
            continue
        if event.HasField("session_log") and event.session_log.status == SessionLog.START:
            starts[number] = max(0, min(event.step, _LARGEST_STEP))
        if not (0 <= event.step < _LARGEST_STEP and 0 <= event.wall_time < LATEST):
            continue
        for value in event.summary.value:
            if len(value.tag) > LONGEST_TAG:
                continue
            scalar = scalar_of(value)
            if scalar is not None:
                if abs(scalar) < _LARGEST_VALUE:
                    points.setdefault(value.tag, []).append((number, event.step, event.wall_time, scalar))
                continue
            levels = None
            if value.WhichOneof("value") == "histo":
                levels = percentiles(value.histo)
            elif value.HasField("tensor") and value.metadata.plugin_data.plugin_name == "histograms":
                levels = percentiles_of_tensor(value.tensor)
            if levels is not None:
                distributions.setdefault(value.tag, []).append((number, event.step, event.wall_time, levels))
    for found, pieces in ((points, scalars), (distributions, histograms)):
        for tag, rows in found.items():
            order, steps, times, values = zip(*rows, strict=True)
            columns = np.array(order, np.int64), np.array(steps, np.int64), np.array(times), np.array(values)
            pieces[tag].append(Points(*columns))
    return starts, num_damaged


def scalar_of(value: Any) -> float | None:
    """Return the scalar in a ``Summary.Value``, or None if it holds no scalar.

    The scalar is a ``simple_value`` (which trajtrainer and ML-Agents write) or a tensor with one element.
    """
    kind = value.WhichOneof("value")
    if kind == "simple_value":
        return float(value.simple_value)
    if kind == "tensor" and value.metadata.plugin_data.plugin_name == "scalars":
        try:
            numbers = np.ravel(make_ndarray(value.tensor))
            return float(numbers[0]) if numbers.size == 1 else None
        except (TypeError, ValueError):
            return None
    return None


def percentiles(histogram: Any) -> Floats | None:
    """Return the percentiles ``LEVELS`` of a ``HistogramProto``, f64 [7], or None if it is empty or damaged.

    This assumes that values are evenly distributed within each bucket.
    """
    counts = np.array(histogram.bucket, np.float64)
    borders = np.concatenate([[histogram.min], np.array(histogram.bucket_limit, np.float64)])
    return _interpolated(borders, counts, histogram.min, histogram.max)


def percentiles_of_tensor(tensor: Any) -> Floats | None:
    """Return the percentiles of a tensor histogram, whose rows contain left edge, right edge and count."""
    try:
        rows = np.asarray(make_ndarray(tensor), np.float64)
    except (TypeError, ValueError):
        return None
    if rows.ndim != 2 or rows.shape[1] != 3 or not len(rows):
        return None
    filled = np.flatnonzero(rows[:, 2] > 0)
    if not len(filled):
        return None
    rows = rows[filled[0] : filled[-1] + 1]
    return _interpolated(np.append(rows[0, 0], rows[:, 1]), rows[:, 2], rows[0, 0], rows[-1, 1])


def _interpolated(borders: Floats, counts: Floats, low: float, high: float) -> Floats | None:
    if len(borders) != len(counts) + 1 or not -_LARGEST_VALUE < low <= high < _LARGEST_VALUE:
        return None
    with np.errstate(over="ignore", invalid="ignore"):
        numbers = np.concatenate([[0.0], np.cumsum(counts)])
    borders = np.clip(borders, low, high)
    is_sound = np.isfinite(numbers).all() and (counts >= 0).all() and not np.isnan(borders).any()
    if not is_sound or numbers[-1] <= 0 or (np.diff(borders) < 0).any():
        return None
    found: Floats = np.interp(np.array(LEVELS) * numbers[-1], numbers, borders)
    found[0], found[-1] = low, high
    return found
