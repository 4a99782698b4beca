"""Reads event files, ours and ML-Agents', while they grow: records, and the scalars and histograms in many of them.

TensorBoard's own reader takes everything into memory, or a random part of it, images included. A long run has millions
of records that differ only in their time, step and values. ``parse_records`` therefore guesses that records of the same
length have the same layout; where all other bytes are equal, the guess is proven and numpy reads them together. All
others are parsed one by one.

Shape legend: N records of one length L, P points.
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

from trajtrainer.envs.unity.records.wire import read_varint
from trajtrainer.policies.folder.event_file import masked_crc

logger = logging.getLogger(__name__)

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

LONGEST_TAG = 1000
LATEST = 1e11
"""Seconds since 1970 that no file can have been written at: anything later is damage."""
LEVELS = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)
"""The percentiles that are kept of a histogram."""
_LARGEST_RECORD = 1 << 24  # a larger one holds no scalar of ours or of ML-Agents
_CHUNK = 1 << 20
_HEADER = struct.Struct("<QI")  # length, and its checksum
_FOOTER_BYTES = 4
_FEWEST = 16  # records of one length; with fewer, guessing a layout does not pay
_LARGEST_STEP = 1 << 62
_LARGEST_VALUE = 1e300  # the sum of many is still finite
# Of one tag in one batch: parsing a histogram takes ten times as long as parsing a number.
_MAX_HISTOGRAMS = 64
_MAX_STEP_BYTES = 9  # longer ones are negative
# Keys of protobuf: field number * 8 + wire type. Event: wall_time, step, summary; Summary: value; Value: tag,
# simple_value, histo.
_WALL_TIME, _STEP, _SUMMARY = 0x09, 0x10, 0x2A
_VALUE, _TAG, _SIMPLE_VALUE, _HISTOGRAM = 0x0A, 0x0A, 0x15, 0x2A


class EventRecordReader:
    """Reads the records of one event file, each time from where it stopped before.

    Attributes:
        offset: bytes of whole records that were read.
        is_damaged: what follows ``offset`` can never be read.
    """

    def __init__(self, path: Path) -> None:
        """``path`` is for messages only."""
        self.offset = 0
        self.is_damaged = False
        self._path = path

    def records(self, file: BinaryIO) -> Iterator[bytes]:
        """Yield the content of whole records, up to the end of the file or to damage.

        A caller that leaves the loop early continues after the last record it got.
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
                    # Lengths chain the records together: beyond a wrong one, no record can be found.
                    logger.warning("%s is damaged at byte %d; the rest is left out.", self._path, self.offset)
                    self.is_damaged = True
                    return
                needed = _HEADER.size + length + _FOOTER_BYTES
                if at + needed > len(data):
                    break
                self.offset += needed
                yield data[at + _HEADER.size : at + needed - _FOOTER_BYTES]
                at, needed = at + needed, _HEADER.size
            if len(data) < asked:  # the file was cut in the meantime
                return
            if self.offset + needed > size:
                return  # the run was killed while it wrote, or is writing now
            if needed > _LARGEST_RECORD:
                self.offset += needed
            wanted = max(_CHUNK, min(needed, _LARGEST_RECORD))


@lru_cache(maxsize=4096)  # few lengths are different
def _length_checksum(length: bytes) -> int:
    return masked_crc(length)


@dataclass(slots=True)
class Points:
    """Points of one tag.

    Attributes:
        order: the number of each point's record in the batch, ascending, i64 [P].
        steps: i64 [P].
        times: seconds since 1970, f64 [P].
        values: finite, f64 [P]; of histograms their percentiles ``LEVELS``, f64 [P, 7].
    """

    order: Ints
    steps: Ints
    times: Floats
    values: Floats


@dataclass(slots=True)
class EventBatch:
    """The content of some records.

    Attributes:
        points: tag -> its scalars.
        histograms: tag -> its histograms.
        starts: number of a record -> step at which a resumed run starts with it, ascending.
        num_damaged: records that could not be parsed.
    """

    points: dict[str, Points]
    histograms: dict[str, Points]
    starts: dict[int, int]
    num_damaged: int


Pieces = defaultdict[str, list[Points]]


def parse_records(records: Sequence[bytes]) -> EventBatch:
    """Parse all scalars and, where there are very many, some of the histograms. Anything damaged is left out."""
    scalars, histograms = Pieces(list), Pieces(list)
    of_length: dict[int, list[int]] = {}
    for number, record in enumerate(records):
        of_length.setdefault(len(record), []).append(number)
    others: list[int] = []
    for numbers in of_length.values():
        layout = None if len(numbers) < _FEWEST else _layout(records[numbers[0]])
        others += numbers if layout is None else _parse_together(records, numbers, layout, scalars, histograms)
    starts, num_damaged = _parse_one_by_one(records, sorted(others), scalars, histograms)
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


@dataclass(slots=True)
class _Layout:
    """Where everything is in a record.

    Attributes:
        step: the bytes of the step; empty where it is 0.
        values: tag -> first byte of its number.
        histograms: tag -> bytes of its histogram.
        is_fixed: which bytes must be equal in all records of this layout, bool [L].
    """

    step: slice
    values: list[tuple[str, int]]
    histograms: list[tuple[str, slice]]
    is_fixed: NDArray[np.bool_]


def _layout(record: bytes) -> _Layout | None:
    """The layout of a record that is a summary of nothing but numbers and histograms; None of any other record."""
    is_fixed = np.ones(len(record), np.bool_)
    values: list[tuple[str, int]] = []
    histograms: list[tuple[str, slice]] = []
    try:
        if record[0] != _WALL_TIME:
            return None
        is_fixed[1:9] = False
        at = 9
        step = slice(at, at)
        if record[at] == _STEP:
            _, end = read_varint(record, at + 1)
            step = slice(at + 1, end)
            is_fixed[step] = False
            at = end
        if record[at] != _SUMMARY or step.stop - step.start > _MAX_STEP_BYTES:
            return None
        length, at = read_varint(record, at + 1)
        if at + length != len(record):
            return None
        while at < len(record):
            if record[at] != _VALUE:
                return None
            length, at = read_varint(record, at + 1)
            end = at + length
            if record[at] != _TAG or end > len(record):
                return None
            length, at = read_varint(record, at + 1)
            tag = record[at : at + length].decode()
            at += length
            if record[at] == _SIMPLE_VALUE and end == at + 5:
                is_fixed[at + 1 : end] = False
                if len(tag) <= LONGEST_TAG:
                    values.append((tag, at + 1))
            elif record[at] == _HISTOGRAM:
                length, inner = read_varint(record, at + 1)
                if inner + length != end:
                    return None
                is_fixed[inner:end] = False
                if len(tag) <= LONGEST_TAG:
                    histograms.append((tag, slice(inner, end)))
            else:
                return None
            at = end
    except (IndexError, UnicodeDecodeError):
        return None
    return _Layout(step, values, histograms, is_fixed)


def _parse_together(
    records: Sequence[bytes], numbers: Sequence[int], layout: _Layout, scalars: Pieces, histograms: Pieces
) -> list[int]:
    """Add the points of those records of one length that have this layout; return the numbers of the others."""
    order = np.array(numbers, np.int64)
    rows = np.frombuffer(b"".join(records[number] for number in numbers), np.uint8).reshape(len(numbers), -1)
    step = rows[:, layout.step]
    fits = (rows[:, layout.is_fixed] == rows[0, layout.is_fixed]).all(axis=1)
    # A step is as long as the guessed one if all bytes but its last have the continuation bit.
    fits &= (step[:, :-1] >= 0x80).all(axis=1) & (step[:, -1:] < 0x80).all(axis=1)
    others: list[int] = order[~fits].tolist()
    order, rows = order[fits], rows[fits]

    def column(begin: int, kind: str) -> Floats:
        width = np.dtype(kind).itemsize
        return np.ascontiguousarray(rows[:, begin : begin + width]).view(kind)[:, 0].astype(np.float64)

    times = column(1, "<f8")
    shifts = 7 * np.arange(layout.step.stop - layout.step.start, dtype=np.int64)
    steps = ((rows[:, layout.step].astype(np.int64) & 0x7F) << shifts).sum(axis=1)
    is_usable = (times >= 0) & (times < LATEST) & (steps < _LARGEST_STEP)
    for tag, begin in layout.values:
        values = column(begin, "<f4")
        usable = is_usable & np.isfinite(values)
        scalars[tag].append(Points(order[usable], steps[usable], times[usable], values[usable]))
    some = np.flatnonzero(is_usable)[:: max(1, -(-len(order) // _MAX_HISTOGRAMS))].tolist()
    for tag, place in layout.histograms:
        found = {}
        for i in some:
            with suppress(DecodeError):
                levels = percentiles(HistogramProto.FromString(records[order[i]][place]))
                if levels is not None:
                    found[i] = levels
        if found:
            kept = np.array(list(found), np.int64)
            histograms[tag].append(Points(order[kept], steps[kept], times[kept], np.stack(list(found.values()))))
    return others


def _parse_one_by_one(
    records: Sequence[bytes], numbers: Sequence[int], scalars: Pieces, histograms: Pieces
) -> tuple[dict[int, int], int]:
    """Add the points of these records; return where resumed runs start, and how many records are damaged."""
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
    """The number of a ``Summary.Value``: a ``simple_value``, as ours and ML-Agents', or a newer tensor of one."""
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
    """The percentiles ``LEVELS`` of a ``HistogramProto``, f64 [7]; None if it is empty or damaged.

    This assumes that values are spread evenly within a bucket.
    """
    counts = np.array(histogram.bucket, np.float64)
    borders = np.concatenate([[histogram.min], np.array(histogram.bucket_limit, np.float64)])
    return _interpolated(borders, counts, histogram.min, histogram.max)


def percentiles_of_tensor(tensor: Any) -> Floats | None:
    """The same of a newer histogram: a tensor of rows of left border, right border and count."""
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
