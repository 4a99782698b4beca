"""The few bits of protobuf's wire format that the player writes and reads by hand, where messages cost too much."""

from __future__ import annotations

from collections.abc import Iterator

VARINT = 0
FIXED64 = 1
DELIMITED = 2
FIXED32 = 5


def varint(value: int) -> bytes:
    """Return a non-negative number in groups of 7 bits, lowest first."""
    if value < 0x80:
        return bytes((value,))
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def key(number: int, wire_type: int) -> bytes:
    """Return what stands before the value of field ``number``."""
    return varint(number << 3 | wire_type)


def delimited(number: int, payload: bytes) -> bytes:
    """Return field ``number`` holding bytes, text or a message."""
    return key(number, DELIMITED) + varint(len(payload)) + payload


def fields(data: bytes, start: int, end: int) -> Iterator[tuple[int, int, int, int, int]]:
    """Yield the fields of the message in ``data[start:end]``, in their order.

    Number, wire type, where the value begins and ends, and the value itself if it is a varint.

    Raises:
        ValueError: the bytes are not a message.
    """
    at = start
    while at < end:
        tag, at = (data[at], at + 1) if data[at] < 0x80 else _read_varint(data, at, end)
        wire_type = tag & 7
        value = 0
        if wire_type == DELIMITED:
            length, begin = _read_varint(data, at, end)
            at = begin + length
        elif wire_type == VARINT:
            begin = at
            value, at = _read_varint(data, at, end)
        elif wire_type == FIXED32:
            begin, at = at, at + 4
        elif wire_type == FIXED64:
            begin, at = at, at + 8
        else:
            raise ValueError(f"wire type {wire_type} at byte {at} of a message")
        if at > end:
            raise ValueError(f"field {tag >> 3} of a message goes on for {at - end} bytes after its end")
        yield tag >> 3, wire_type, begin, at, value


def _read_varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    value = 0
    shift = 0
    while at < end and shift < 70:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise ValueError(f"a number is cut off at byte {at} of a message")
