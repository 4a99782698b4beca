"""Points of many records of an event file at once.

A long run has millions of records that differ in moment, step and values only. The layout of one is guessed to be that
of all that are as long as it; where every other byte is the same this is proven, and numpy takes them together. All
others are parsed one by one.

Shape legend: N records of one length L.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray
from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.histogram_pb2 import HistogramProto

from trajtrainer.report.live.histograms import percentiles, percentiles_of_tensor
from trajtrainer.rundir.series import LONGEST_TAG, scalar_of

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# From so many records of one length on it is worth it.
_FEWEST = 16
_LARGEST_STEP = 1 << 62
LATEST = 1e11
"""No file was written so many seconds after 1970: whatever says so is damaged."""
_LARGEST_VALUE = 1e300  # the sum of many is still finite
# Keys of protobuf: field number * 8 + wire type. Event: wall_time, step, summary; Summary: value; Value: tag,
# simple_value, histo.
_WALL_TIME, _STEP, _SUMMARY = 0x09, 0x10, 0x2A
_VALUE, _TAG, _SIMPLE_VALUE, _HISTOGRAM = 0x0A, 0x0A, 0x15, 0x2A
# Of one tag among records taken together: a histogram takes ten times as long as a number.
_MOST_HISTOGRAMS = 64
_LONGEST_STEP = 9  # bytes; longer ones are negative


@dataclass(slots=True)
class Points:
    """Points of one tag.

    Attributes:
        order: the number of the record of each.
        steps: of each.
        times: of each, seconds since 1970.
        values: of each, finite; of histograms f64 [P, 7], their percentiles.
    """

    order: Ints
    steps: Ints
    times: Floats
    values: Floats


@dataclass(slots=True)
class Found:
    """What stands in some records.

    Attributes:
        points: tag -> its points, in the order of the records.
        histograms: the same of tags with histograms.
        starts: number of a record -> step from which the run goes on with it, ascending.
    """

    points: dict[str, Points]
    histograms: dict[str, Points]
    starts: dict[int, int]


def find_points(records: Sequence[bytes]) -> Found:
    """Return all scalars of some records, and histograms, of very many only some. What is damaged is left out."""
    pieces = _Pieces({}, {})
    of_length: dict[int, list[int]] = {}
    for number, record in enumerate(records):
        of_length.setdefault(len(record), []).append(number)
    others: list[int] = []
    for numbers in of_length.values():
        others += numbers if len(numbers) < _FEWEST else _take_together(records, numbers, pieces)
    starts = _take_one_by_one(records, sorted(others), pieces)
    scalars, histograms = (
        {tag: _in_order(some) for tag, some in each.items()} for each in (pieces.scalars, pieces.histograms)
    )
    return Found(scalars, histograms, starts)


@dataclass(slots=True)
class _Pieces:
    scalars: dict[str, list[Points]]
    histograms: dict[str, list[Points]]


@dataclass(slots=True)
class _Layout:
    """Where everything is in a record.

    Attributes:
        step: the bytes of the step; empty where it is 0.
        values: tag -> first byte of its number.
        histograms: tag -> bytes of its histogram.
        is_fixed: which bytes have to be the same in all records of this layout, bool [L].
    """

    step: slice
    values: list[tuple[str, int]]
    histograms: list[tuple[str, slice]]
    is_fixed: NDArray[np.bool_]


def _take_together(records: Sequence[bytes], numbers: Sequence[int], pieces: _Pieces) -> list[int]:
    """Put the points of records of one length into ``pieces``; return the numbers of those of another layout."""
    layout = _layout(records[numbers[0]])
    if layout is None:
        return list(numbers)
    order = np.array(numbers, np.int64)
    rows = np.frombuffer(b"".join(records[number] for number in numbers), np.uint8).reshape(len(numbers), -1)
    step = rows[:, layout.step]
    fits = (rows[:, layout.is_fixed] == rows[0, layout.is_fixed]).all(axis=1)
    fits &= (step[:, :-1] >= 0x80).all(axis=1) & (step[:, -1:] < 0x80).all(axis=1)
    others: list[int] = order[~fits].tolist()
    order, rows = order[fits], rows[fits]
    times = _numbers(rows, 1, "<f8")
    shifts = 7 * np.arange(layout.step.stop - layout.step.start, dtype=np.int64)
    steps = ((rows[:, layout.step].astype(np.int64) & 0x7F) << shifts).sum(axis=1)
    is_usable = (times >= 0) & (times < LATEST) & (steps < _LARGEST_STEP)
    for tag, begin in layout.values:
        values = _numbers(rows, begin, "<f4")
        usable = is_usable & np.isfinite(values)
        pieces.scalars.setdefault(tag, []).append(Points(order[usable], steps[usable], times[usable], values[usable]))
    some = np.flatnonzero(is_usable)[:: max(1, -(-len(order) // _MOST_HISTOGRAMS))].tolist()
    for tag, place in layout.histograms:
        found = {i: levels for i in some if (levels := _histogram(records[order[i]][place])) is not None}
        if found:
            kept = np.array(list(found), np.int64)
            columns = order[kept], steps[kept], times[kept], np.stack(list(found.values()))
            pieces.histograms.setdefault(tag, []).append(Points(*columns))
    return others


def _histogram(content: bytes) -> Floats | None:
    try:
        return percentiles(HistogramProto.FromString(content))
    except DecodeError:
        return None


def _numbers(rows: NDArray[np.uint8], begin: int, kind: str) -> Floats:
    width = np.dtype(kind).itemsize
    return np.ascontiguousarray(rows[:, begin : begin + width]).view(kind)[:, 0].astype(np.float64)


def _layout(record: bytes) -> _Layout | None:
    """Return the layout of a record, if it is one of a summary with numbers, and histograms among them, only."""
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
            _, end = _varint(record, at + 1)
            step = slice(at + 1, end)
            is_fixed[step] = False
            at = end
        if record[at] != _SUMMARY or step.stop - step.start > _LONGEST_STEP:
            return None
        length, at = _varint(record, at + 1)
        if at + length != len(record) or not _find_values(record, at, is_fixed, values, histograms):
            return None
    except (IndexError, UnicodeDecodeError):
        return None
    return _Layout(step, values, histograms, is_fixed)


def _find_values(
    record: bytes,
    at: int,
    is_fixed: NDArray[np.bool_],
    values: list[tuple[str, int]],
    histograms: list[tuple[str, slice]],
) -> bool:
    """Find where numbers and histograms are in a summary. Return whether there is nothing else in it."""
    while at < len(record):
        if record[at] != _VALUE:
            return False
        length, at = _varint(record, at + 1)
        end = at + length
        if record[at] != _TAG or end > len(record):
            return False
        length, at = _varint(record, at + 1)
        tag = record[at : at + length].decode()
        at += length
        if record[at] == _SIMPLE_VALUE and end == at + 5:
            is_fixed[at + 1 : end] = False
            if len(tag) <= LONGEST_TAG:
                values.append((tag, at + 1))
        elif record[at] == _HISTOGRAM:
            length, inner = _varint(record, at + 1)
            if inner + length != end:
                return False
            is_fixed[inner:end] = False
            if len(tag) <= LONGEST_TAG:
                histograms.append((tag, slice(inner, end)))
        else:
            return False
        at = end
    return True


def _varint(record: bytes, at: int) -> tuple[int, int]:
    """Return a number of protobuf's variable length, and the place behind it."""
    number = shift = 0
    while record[at] >= 0x80 and shift < 63:
        number |= (record[at] & 0x7F) << shift
        shift, at = shift + 7, at + 1
    return number | record[at] << shift, at + 1


def _take_one_by_one(records: Sequence[bytes], numbers: Sequence[int], pieces: _Pieces) -> dict[int, int]:
    """Put the points of these records into ``pieces``; return where the run goes on from earlier steps."""
    starts: dict[int, int] = {}
    found: dict[str, list[tuple[int, int, float, float]]] = {}
    histograms: dict[str, list[tuple[int, int, float, Floats]]] = {}
    for number in numbers:
        try:
            event = Event.FromString(records[number])
        except DecodeError:
            continue
        if event.HasField("session_log") and event.session_log.status == SessionLog.START:
            starts[number] = max(0, min(event.step, _LARGEST_STEP))
        if not (0 <= event.step < _LARGEST_STEP and 0 <= event.wall_time < LATEST):
            continue
        for value in event.summary.value:
            scalar = scalar_of(value)
            if scalar is not None and abs(scalar) < _LARGEST_VALUE and len(value.tag) <= LONGEST_TAG:
                found.setdefault(value.tag, []).append((number, event.step, event.wall_time, scalar))
            elif scalar is None and (levels := _levels(value)) is not None and len(value.tag) <= LONGEST_TAG:
                histograms.setdefault(value.tag, []).append((number, event.step, event.wall_time, levels))
    for tag, points in found.items():
        pieces.scalars.setdefault(tag, []).append(_points(points))
    for tag, distributions in histograms.items():
        pieces.histograms.setdefault(tag, []).append(_points(distributions))
    return starts


def _points(rows: Sequence[tuple[int, int, float, Any]]) -> Points:
    order, steps, times, values = zip(*rows, strict=True)
    return Points(np.array(order, np.int64), np.array(steps, np.int64), np.array(times), np.array(values))


def _levels(value: Any) -> Floats | None:
    """Return the percentiles of a ``Summary.Value``; None if it is no histogram."""
    kind = value.WhichOneof("value")
    if kind == "histo":
        return percentiles(value.histo)
    if kind == "tensor" and value.metadata.plugin_data.plugin_name == "histograms":
        return percentiles_of_tensor(value.tensor)
    return None


def _in_order(pieces: Sequence[Points]) -> Points:
    if len(pieces) == 1:
        return pieces[0]
    order = np.concatenate([piece.order for piece in pieces])
    rank = np.argsort(order, kind="stable")
    steps, times, values = (
        np.concatenate([getattr(piece, name) for piece in pieces])[rank] for name in ("steps", "times", "values")
    )
    return Points(order[rank], steps, times, values)
