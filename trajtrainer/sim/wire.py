"""How the player's messages look: protobuf written and read by hand, and what differs between Unity's package versions.

By hand, because protobuf's own messages cost too much here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trajtrainer.core.spec import ObservationSpec
from trajtrainer.core.steps import ObservationArray
from trajtrainer.unity.proto.communicator_pb2 import UnityRLCapabilitiesProto

VARINT = 0
FIXED64 = 1
DELIMITED = 2
FIXED32 = 5


def varint(value: int) -> bytes:
    """A non-negative number in groups of 7 bits, lowest first."""
    if value < 0x80:
        return bytes((value,))
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def key(number: int, wire_type: int) -> bytes:
    """The bytes before the value of field ``number``."""
    return varint(number << 3 | wire_type)


def delimited(number: int, payload: bytes) -> bytes:
    """Field ``number`` holding bytes, text or a message."""
    return key(number, DELIMITED) + varint(len(payload)) + payload


def fields(data: bytes, start: int, end: int) -> Iterator[tuple[int, int, int, int, int]]:
    """The fields of the message in ``data[start:end]``, in their order.

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
            raise ValueError(f"field {tag >> 3} of a message extends {at - end} bytes beyond its end")
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
    raise ValueError(f"a number is truncated at byte {at} of a message")


API_VERSION = "1.5.0"
PACKAGE_VERSION = "3.0.0"
CHANNELS_FIRST_PACKAGE = 3  # older packages announce pictures as height, width, channels
# What u8 becomes on the wire; the very numbers that a receiver gets who divides the pixels of a PNG by 255.
_BYTE_TO_FLOAT: NDArray[np.float32] = np.arange(256, dtype=np.float32) / np.float32(255.0)


@dataclass(frozen=True, slots=True)
class WireStyle:
    """Versions as announced in the handshake, and whether pictures are compressed.

    Attributes:
        api_version: of the wire, "1.5.0"; decides about fields and capabilities
            (docs/explanation/mlagents-behavior.md#versions).
        package_version: of com.unity.ml-agents, "3.0.0"; decides about the order of a picture's dimensions.
        png: pictures are sent as PNG and not as floats.
    """

    api_version: str = API_VERSION
    package_version: str = PACKAGE_VERSION
    png: bool = False

    @property
    def api_minor(self) -> int:
        """The second number of the wire's version."""
        parts = self.api_version.split(".")
        return int(parts[1]) if len(parts) > 1 and parts[1].isdigit() else 0

    @property
    def channels_last(self) -> bool:
        """Whether pictures are announced as (height, width, channels). Their floats are always in that order."""
        major = self.package_version.split(".")[0]
        return major.isdigit() and int(major) < CHANNELS_FIRST_PACKAGE

    def capabilities(self) -> UnityRLCapabilitiesProto:
        """What a package that speaks this version of the wire can do."""
        minor = self.api_minor
        return UnityRLCapabilitiesProto(
            baseRLCapabilities=True,
            concatenatedPngObservations=minor >= 1,
            compressedChannelMapping=minor >= 2,
            hybridActions=minor >= 3,
            trainingAnalytics=minor >= 4,
            variableLengthObservation=minor >= 5,
            multiAgentGroups=minor >= 5,
        )

    def shape(self, sensor: ObservationSpec) -> tuple[int, ...]:
        """The sensor's shape as it is announced."""
        shape = tuple(sensor.shape)
        if len(shape) == 3 and self.channels_last:
            return (shape[1], shape[2], shape[0])
        return shape

    def dimension_properties(self, sensor: ObservationSpec) -> tuple[int, ...]:
        """The sensor's dimension properties in the order of ``shape``.

        None from packages that did not send them.
        """
        if self.api_minor < 5:
            return ()
        properties = tuple(int(p) for p in sensor.dimension_property)
        if len(properties) == 3 and self.channels_last:
            return (properties[1], properties[2], properties[0])
        return properties

    def observation_name(self, sensor: ObservationSpec) -> str:
        """The name of a sensor; packages before API 1.5 send none."""
        return sensor.name if self.api_minor >= 5 else ""

    def floats(self, column: ObservationArray) -> NDArray[np.float32]:
        """An observation column [n, *O] as the floats that are sent, f32 [n, size]."""
        if column.ndim == 4:
            column = column.transpose(0, 2, 3, 1)
        if column.dtype == np.uint8:
            column = _BYTE_TO_FLOAT[column]
        return np.ascontiguousarray(column, dtype=np.float32).reshape(len(column), math.prod(column.shape[1:]))
