"""Walks over the fields of serialized protobuf without creating objects.

For checks before protobuf parses a message: two bytes of it can become a hundred bytes of memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

from trajtrainer.core.errors import InvalidDataError

_CONTINUED = 0x80
_VARINT, _FIXED64, _DELIMITED, _FIXED32 = 0, 1, 2, 5
_SIZES = {_FIXED64: 8, _FIXED32: 4}
_LONGEST_VARINT = 10

MOST_AGENTS = 100_000
_MOST_FIELDS = 20 * MOST_AGENTS
_SMALLEST = 2  # bytes of a record or field
_RECORD = 1


class Field(NamedTuple):
    """A field of a message: its number, and where its content begins and ends."""

    number: int
    start: int
    stop: int


def fields(data: bytes, start: int = 0, stop: int | None = None) -> Iterator[Field]:
    """The fields of the message in ``data[start:stop]``, up to the first invalid one."""
    end = len(data) if stop is None else stop
    try:
        while start < end:
            tag, start = read_varint(data, start)
            kind = tag & 7
            if kind == _DELIMITED:
                size, start = read_varint(data, start)
            elif kind == _VARINT:
                size = read_varint(data, start)[1] - start
            elif kind in _SIZES:
                size = _SIZES[kind]
            else:
                return
            if start + size > end:
                return
            yield Field(tag >> 3, start, start + size)
            start += size
    except IndexError:
        return


def varint(value: int) -> bytes:
    """A number of 0 and more in groups of 7 bits, lowest first."""
    if value < _CONTINUED:
        return bytes((value,))
    encoded = bytearray()
    while value >= _CONTINUED:
        encoded.append(value % _CONTINUED | _CONTINUED)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def read_varint(data: bytes, position: int) -> tuple[int, int]:
    """The number at ``position``, and where it ends."""
    value = data[position]
    if value < _CONTINUED:
        return value, position + 1
    value &= ~_CONTINUED
    for index in range(1, _LONGEST_VARINT):
        byte = data[position + index]
        value |= (byte & ~_CONTINUED) << 7 * index
        if byte < _CONTINUED:
            return value, position + index + 1
    raise IndexError


def check_count(count: int, who: str) -> None:
    """Reject too many agents in one message.

    Raises:
        InvalidDataError: there are more than ``MOST_AGENTS``.
    """
    if count > MOST_AGENTS:
        raise InvalidDataError(f"{who} sent more than {MOST_AGENTS} agents in one message.")


def check_records(data: bytes, behavior: str) -> None:
    """Reject a serialized list of agents that protobuf would turn into millions of objects.

    Raises:
        InvalidDataError: there are too many agents, or fields in their records.
    """
    if len(data) <= _SMALLEST * MOST_AGENTS:
        return
    num_records = num_fields = 0
    for record in fields(data):
        if record.number == _RECORD:
            num_records += 1
            check_count(num_records, f"Behavior {behavior!r}")
            inside = fields(data, record.start, record.stop)
            num_fields += sum(1 for _ in islice(inside, _MOST_FIELDS + 1 - num_fields))
            if num_fields > _MOST_FIELDS:
                raise InvalidDataError(
                    f"Behavior {behavior!r}: the records of its first {num_records} agents have more than "
                    f"{_MOST_FIELDS} fields. Expected an id, a reward and the like, and one observation per sensor."
                )
