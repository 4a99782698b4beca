"""Reads serialized protobuf without creating an object per message: single fields, or many records at once.

A program writes all records of a kind in the same way: it keeps the order of fields, omits zeros, and packs numbers.
Therefore, most records of the same length differ only in their values. The *layout* of a record describes where its
values are, and which bits are not values: tags, lengths, and everything that is not read. If another record has the
same bits there, its values are in the same places. These bits are always compared, so a layout is never applied to a
record that does not match it, and numpy reads all matching records together. Records that match no layout are left to
protobuf's own parser.

Shape legend: N records of one layout, L bytes per record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from trajtrainer.core.columns import run_or_rows

Bytes = NDArray[np.uint8]
Ints = NDArray[np.int64]

VARINT, FIXED64, DELIMITED, FIXED32 = 0, 1, 2, 5
_SIZES = {FIXED64: 8, FIXED32: 4}
_CONTINUED = 0x80  # the bit in a byte of a varint that indicates that another byte follows
_LONGEST_VARINT = 10
# A value with more bytes than this is skipped in comparisons instead of being masked with zeros, which is faster for
# images.
_LONGEST_GAP = 64
_MOST_LAYOUTS = 256
_MOST_PATTERNS = 64
_MOST_RECORDS = 100_000
_ENTRY = 0x0A  # the tag of field 1 with wire type DELIMITED: a record in a list
Schema = Mapping[int, "Kind | Schema"]
"""Field number -> type of its values, or schema of the message in it. Other fields must be equal within a layout."""
T = TypeVar("T", bound="HasLayout")


def varint(value: int) -> bytes:
    """Encode a non-negative integer as a varint: 7 bits per byte, lowest bits first."""
    encoded = bytearray()
    while value >= _CONTINUED:
        encoded.append(value % _CONTINUED | _CONTINUED)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def read_varint(data: bytes, position: int) -> tuple[int, int]:
    """Return the varint at ``position``, and the position after it.

    Raises:
        IndexError: the varint is incomplete or too long.
    """
    value = 0
    for index in range(_LONGEST_VARINT):
        byte = data[position + index]
        value |= byte % _CONTINUED << 7 * index
        if byte < _CONTINUED:
            return value, position + index + 1
    raise IndexError


def key(number: int, wire_type: int) -> bytes:
    """Encode the key that precedes the value of field ``number``."""
    return varint(number << 3 | wire_type)


def delimited(number: int, payload: bytes) -> bytes:
    """Encode field ``number`` with a payload of bytes, text or a message."""
    return key(number, DELIMITED) + varint(len(payload)) + payload


class Field(NamedTuple):
    """A field of a message: its number, the start and end of its content, and its wire type."""

    number: int
    start: int
    stop: int
    wire_type: int


def fields(data: bytes, start: int = 0, stop: int | None = None) -> Iterator[Field]:
    """Yield the fields of the message in ``data[start:stop]``, up to the first invalid one."""
    end = len(data) if stop is None else stop
    try:
        while start < end:
            tag, begin = read_varint(data, start)
            wire_type = tag & 7
            if wire_type == DELIMITED:
                size, begin = read_varint(data, begin)
                start = begin + size
            elif wire_type == VARINT:
                start = read_varint(data, begin)[1]
            elif wire_type in _SIZES:
                start = begin + _SIZES[wire_type]
            else:
                return
            if start > end:
                return
            yield Field(tag >> 3, begin, start, wire_type)
    except IndexError:
        return


def frames(data: bytes, tag: int | None = None, most: int = _MOST_RECORDS) -> tuple[list[int], list[int], int]:
    """Find consecutive pieces, each preceded by its length and, if given, by a tag.

    Returns:
        Starts and sizes of the first ``most`` complete pieces, and the end of the last one.
    """
    starts: list[int] = []
    sizes: list[int] = []
    end = 0
    try:
        while len(starts) < most and (tag is None or data[end] == tag):
            begin = end + (tag is not None)
            size, start = data[begin], begin + 1
            if size >= _CONTINUED:
                size, start = read_varint(data, begin)
            if start + size > len(data):
                break
            starts.append(start)
            sizes.append(size)
            end = start + size
    except IndexError:
        pass
    return starts, sizes, end


class UnusualRecordError(Exception):
    """A record that numpy cannot read. It may still be valid protobuf."""


class Kind(NamedTuple):
    """The type of a field's values: the wire type, and a mask of the bits that are equal in all records of a layout."""

    wire_type: int
    fixed: int


FLOAT, DOUBLE = Kind(FIXED32, 0), Kind(FIXED64, 0)
RAW = Kind(DELIMITED, 0)
"""For packed floats, and for bytes that other code decodes."""
NUMBER, NUMBERS = Kind(VARINT, _CONTINUED), Kind(DELIMITED, _CONTINUED)
BOOLS = Kind(DELIMITED, 0xFE)


class _Segment(NamedTuple):
    """A range of bytes in a record that must satisfy ``byte & mask == template``."""

    place: slice
    mask: Bytes
    template: bytes


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """The places of the values in a record.

    Attributes:
        size: L.
        places: path of field numbers, from the outermost message -> the bytes of each value of the field.
    """

    size: int
    places: Mapping[tuple[int, ...], list[slice]]
    _segments: tuple[_Segment, ...]

    @classmethod
    def of(cls, record: bytes, schema: Schema, longest_number: int = 4) -> Layout:
        """Find the layout of a record.

        Args:
            record: the record.
            schema: schema of the record.
            longest_number: maximum number of bytes in a varint. With 4, it has at most 28 bits and is never negative.

        Raises:
            UnusualRecordError: the record is invalid, or encodes values in a way that the schema does not expect.
        """
        mask = np.full(len(record), 0xFF, np.uint8)
        places: dict[tuple[int, ...], list[slice]] = {}

        def visit(schema: Schema, start: int, stop: int, path: tuple[int, ...]) -> None:
            for number, begin, end, wire_type in fields(record, start, stop):
                start, kind, name = end, schema.get(number), (*path, number)
                if kind is None:
                    continue
                if wire_type != (kind.wire_type if isinstance(kind, Kind) else DELIMITED):
                    raise UnusualRecordError
                if not isinstance(kind, Kind):
                    visit(kind, begin, end, name)
                    continue
                mask[begin:end] = kind.fixed
                if kind.fixed != _CONTINUED:
                    places.setdefault(name, []).append(slice(begin, end))
                    continue
                for place in range(begin, end):
                    if record[place] < _CONTINUED:
                        places.setdefault(name, []).append(slice(begin, place + 1))
                        begin = place + 1
                    elif place - begin == longest_number - 1:
                        raise UnusualRecordError
                if begin != end:
                    raise UnusualRecordError
            if start != stop:
                raise UnusualRecordError

        visit(schema, 0, len(record), ())
        content = np.frombuffer(record, np.uint8)
        if (content[mask == BOOLS.fixed] > 1).any():
            raise UnusualRecordError
        segments = []
        fixed = np.flatnonzero(mask)
        parts = np.split(fixed, np.flatnonzero(np.diff(fixed) > _LONGEST_GAP) + 1)
        for part in parts if len(fixed) else ():
            place = slice(int(part[0]), int(part[-1]) + 1)
            segments.append(_Segment(place, mask[place], (content[place] & mask[place]).tobytes()))
        return cls(len(record), places, tuple(segments))

    def place(self, *path: int) -> slice | None:
        """Return the place of the only value of a field; None if the record does not have the field.

        Raises:
            UnusualRecordError: the record contains several values.
        """
        found = self.places.get(path, ())
        if len(found) > 1:
            raise UnusualRecordError
        return found[0] if found else None

    def fit(self, records: Bytes) -> NDArray[np.bool_]:
        """Return which of the records u8 [n, L] have this layout."""
        fits = np.ones(len(records), np.bool_)
        for place, mask, template in self._segments:
            fits &= (records[:, place] & mask == np.frombuffer(template, np.uint8)).all(axis=1)
        return fits

    def fit_all(self, records: Bytes) -> bool:
        """Return whether all of the records u8 [n, L] have this layout."""
        for place, mask, template in self._segments:
            if (records[:, place] & mask).tobytes() != template * len(records):
                return False
        return True


def floats(records: Bytes, place: slice, dtype: str = "<f4") -> NDArray[Any]:
    """Return the packed numbers at a place in each record, [N, any]."""
    return records[:, place].view(dtype)


def numbers(records: Bytes, place: slice) -> NDArray[Any]:
    """Return the varint at a place in each record, integers [N]."""
    digits = records[:, place]
    if digits.shape[1] == 1:
        return digits[:, 0]
    shifts = 7 * np.arange(digits.shape[1], dtype=np.int64)
    found: Ints = ((digits & np.uint8(0x7F)).astype(np.int64) << shifts).sum(axis=1)
    return found


class HasLayout(Protocol):
    """Information learned from a record: its layout, and anything else that its reader needs."""

    @property
    def layout(self) -> Layout: ...


class Alike(NamedTuple, Generic[T]):
    """N records of one layout.

    Attributes:
        learned: information learned from one of the records.
        rows: indices of the records, ascending: i64 [N], or a slice if they are consecutive.
        starts: start of each record in the data, i64 [N].
        first: start of the first record if the records follow one another without gaps; -1 otherwise.
    """

    learned: T
    rows: Ints | slice
    starts: Ints
    first: int

    @classmethod
    def of(cls, learned: T, rows: Ints, starts: Ints) -> Alike[T]:
        """Build a group from the ascending indices (at least one) and the starts of its records."""
        first, last = int(starts[0]), int(starts[-1])
        is_run = last - first == (len(starts) - 1) * learned.layout.size
        return cls(learned, run_or_rows(rows), starts, first if is_run else -1)

    def records(self, data: bytes) -> Bytes:
        """Return the bytes of the records, u8 [N, L]; a view of the data if they follow one another without gaps."""
        size = self.learned.layout.size
        if self.first >= 0:
            return np.ndarray((len(self.starts), size), np.uint8, data, self.first)
        windows: Bytes = np.ndarray((len(data) - size + 1, size), np.uint8, data, 0, (1, 1))
        return windows[self.starts]


Found = list[tuple[Alike[T], Bytes]]
"""The records of each layout, and their bytes."""


class LayoutSorter(Generic[T]):
    """Sorts records by their layouts, which it learns from the records.

    Args:
        learn: called with a record; returns what it learned, or raises UnusualRecordError if numpy cannot read it.
    """

    def __init__(self, learn: Callable[[bytes], T]) -> None:
        self._learn = learn
        self._known: dict[int, list[T]] = {}
        self._num_known = 0

    def sort(self, data: bytes, starts: Ints, sizes: Ints, fewest: int = 1) -> tuple[Found[T], Ints]:
        """Sort the records in ``data`` by their layouts.

        Args:
            data: the bytes that contain the records.
            starts: start of each record, i64 [n].
            sizes: size of each record in bytes, i64 [n].
            fewest: skip records if there are fewer than this many of the same size.

        Returns:
            The records of each layout, and the indices of the skipped records, ascending.
        """
        found: Found[T] = []
        others = [np.zeros(0, np.int64)]
        for size in sorted(set(sizes.tolist())):
            rows = np.flatnonzero(sizes == size)
            known = self._known.setdefault(size, [])
            tried = 0 if len(rows) >= fewest else len(known)
            while len(rows):
                if tried == len(known) and (len(rows) < fewest or not self._add(data, int(starts[rows[0]]), size)):
                    others.append(rows)
                    break
                group = Alike.of(known[tried], rows, starts[rows])
                records = group.records(data)
                tried += 1
                if group.learned.layout.fit_all(records):
                    found.append((group, records))
                    break
                fits = group.learned.layout.fit(records)
                if fits.any():
                    found.append((Alike.of(group.learned, rows[fits], group.starts[fits]), records[fits]))
                    rows = rows[~fits]
        return found, np.sort(np.concatenate(others)) if len(others) > 1 else others[0]

    def _add(self, data: bytes, start: int, size: int) -> bool:
        """Add the layout of a record. Return False if numpy cannot read it, or if there are too many layouts."""
        if self._num_known == _MOST_LAYOUTS:
            return False
        try:
            self._known[size].append(self._learn(data[start : start + size]))
        except UnusualRecordError:
            return False
        self._num_known += 1
        return True


class RecordList(Generic[T]):
    """Reads messages that are lists of records, all in field 1. Most messages have the same pattern as an earlier one.

    Args:
        learn: see ``LayoutSorter``. The records include their tag and length.
        is_first: called with what was learned from a record; returns True for records to be placed before all others.
            By default, records keep their order.
    """

    def __init__(self, learn: Callable[[bytes], T], is_first: Callable[[T], bool] = lambda _: False) -> None:
        self._sorter = LayoutSorter(learn)
        self._is_first = is_first
        self._patterns: dict[int, list[Alike[T]]] = {}

    def read(self, data: bytes) -> Found[T]:
        """Return all records of a message by layout, with their bytes u8 [N, L].

        Raises:
            UnusualRecordError: numpy cannot read all records.
        """
        pattern = self._patterns.get(len(data))
        if pattern is not None:
            found = [(group, group.records(data)) for group in pattern]
            if all(group.learned.layout.fit_all(records) for group, records in found):
                return found
        found = self._find(data)
        if len(self._patterns) >= _MOST_PATTERNS:
            self._patterns.clear()
        self._patterns[len(data)] = [group for group, _ in found]
        return found

    def _find(self, data: bytes) -> Found[T]:
        starts, sizes, end = frames(data, _ENTRY)
        if end != len(data) or not starts:
            raise UnusualRecordError
        bounds = np.zeros(len(starts) + 1, np.int64)
        bounds[1:] = np.array(starts, np.int64) + sizes
        found, others = self._sorter.sort(data, bounds[:-1], bounds[1:] - bounds[:-1])
        if len(others):
            raise UnusualRecordError
        first = [group.rows for group, _ in found if self._is_first(group.learned)]
        if not first:
            return found
        is_later = np.ones(len(starts), np.bool_)
        for rows in first:
            is_later[rows] = False
        rank = np.empty(len(starts), np.int64)
        rank[np.argsort(is_later, kind="stable")] = np.arange(len(starts))
        return [(group._replace(rows=run_or_rows(rank[group.rows])), records) for group, records in found]
