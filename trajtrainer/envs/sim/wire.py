"""How the player's messages look: protobuf written and read by hand, and what differs between Unity's package versions.

By hand, because protobuf's own messages cost too much here. The trainer's answer (UnityRLInputProto) becomes arrays of
actions without touching the agents one by one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trajtrainer.core.spec import ActionSpec, ObservationSpec
from trajtrainer.core.steps import ObservationArray
from trajtrainer.envs.sim.simulation import SimulatedActions
from trajtrainer.envs.unity.proto import communicator_pb2 as pb
from trajtrainer.envs.unity.proto.communicator_pb2 import UnityRLCapabilitiesProto
from trajtrainer.envs.unity.records.wire import varint

VARINT = 0
FIXED64 = 1
DELIMITED = 2
FIXED32 = 5

API_VERSION = "1.5.0"
PACKAGE_VERSION = "3.0.0"
CHANNELS_FIRST_PACKAGE = 3  # older packages announce pictures as height, width, channels
# What u8 becomes on the wire; the very numbers that a receiver gets who divides the pixels of a PNG by 255.
_BYTE_TO_FLOAT: NDArray[np.float32] = np.arange(256, dtype=np.float32) / np.float32(255.0)
STATUS_OK = 200
HYBRID_API = 3  # minor version from which continuous and discrete actions have fields of their own
DEPRECATED, CONTINUOUS, DISCRETE = 1, 6, 7  # field numbers of AgentActionProto


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


class OrderError(Exception):
    """The trainer's answer cannot be followed."""


@dataclass(slots=True)
class Order:
    """One answer of the trainer.

    Attributes:
        status: 200 to continue.
        command: pb.STEP, pb.RESET or pb.QUIT.
        actions: behavior -> the bytes of its ListAgentActionProto.
        side_channel: frames of side channels.
    """

    status: int = 0
    command: int = pb.STEP
    actions: dict[str, bytes] = field(default_factory=dict)
    side_channel: bytes = b""


def read_order(data: bytes) -> Order:
    """Take an answer apart.

    Raises:
        OrderError: the bytes are not a UnityMessageProto.
    """
    order = Order()
    try:
        for number, _, start, end, _ in fields(data, 0, len(data)):
            if number == 1:
                order.status = next((value for n, _, _, _, value in fields(data, start, end) if n == 1), 0)
            elif number == 3:
                for inner, _, inner_start, inner_end, _ in fields(data, start, end):
                    if inner == 1:
                        _read_input(order, data, inner_start, inner_end)
    except ValueError as error:
        raise OrderError(f"the trainer's answer is not a message: {error}") from error
    return order


def _read_input(order: Order, data: bytes, start: int, end: int) -> None:
    for number, _, begin, stop, value in fields(data, start, end):
        if number == 1:
            behavior, actions = "", b""
            for part, _, part_start, part_end, _ in fields(data, begin, stop):
                if part == 1:
                    behavior = data[part_start:part_end].decode()
                elif part == 2:
                    actions = data[part_start:part_end]
            order.actions[behavior] = actions
        elif number == 4:
            order.command = value
        elif number == 5:
            order.side_channel = data[begin:stop]


class _Layout(NamedTuple):
    """The layout of one agent's action in the bytes.

    Trainers write all agents the same way, so it usually fits all of them, and later answers; ``same`` marks the bytes
    that show whether it does.
    """

    size: int
    same: NDArray[np.bool_]
    pattern: NDArray[np.uint8]
    continuous: int
    discrete: int


class ActionReader:
    """Reads one behavior's actions.

    Args:
        behavior: for messages.
        spec: sizes of the actions.
        num_agents: N.
        api_minor: a player before 1.3 reads the deprecated field, which holds either kind as floats.
    """

    def __init__(self, behavior: str, spec: ActionSpec, num_agents: int, api_minor: int) -> None:
        self._behavior = behavior
        self._num_agents = num_agents
        self._continuous = spec.continuous_size
        self._discrete = spec.discrete_size
        self._deprecated = api_minor < HYBRID_API
        self._layout: _Layout | None = None

    def read(self, data: bytes, waiting: int | None = None) -> SimulatedActions:
        """Actions f32 [N, C] and i32 [N, K] from the bytes of a ListAgentActionProto.

        Args:
            data: of the message.
            waiting: N of this message, if not all agents wait for an action.

        Raises:
            OrderError: an agent that waits gets no action or one of the wrong size. Unity would end there too.
        """
        n = self._num_agents if waiting is None else waiting
        layout = self._layout
        if layout is not None and len(data) == layout.size * n:
            rows = np.frombuffer(data, dtype=np.uint8).reshape(n, layout.size)
            if (rows[:, layout.same] == layout.pattern).all():
                columns = rows[:, layout.continuous : layout.continuous + 4 * self._continuous]
                floats = np.ascontiguousarray(columns).view("<f4").reshape(n, self._continuous)
                choices = rows[:, layout.discrete : layout.discrete + self._discrete].astype(np.int32)
                return SimulatedActions(floats, choices)
        try:
            received = pb.UnityRLInputProto.ListAgentActionProto.FromString(data).value
        except Exception as error:  # Not every version of protobuf has a public DecodeError.
            raise OrderError(f"the actions of {self._behavior!r} are not a message: {error}") from error
        if len(received) < n:
            raise OrderError(f"{n} agents of {self._behavior!r} wait, but the trainer sent {len(received)} actions")
        continuous = np.zeros((n, self._continuous), dtype=np.float32)
        discrete = np.zeros((n, self._discrete), dtype=np.int32)
        for row, action in enumerate(received[:n]):
            if self._continuous:
                continuous[row] = self._values(row, action, "continuous_actions", self._continuous)
            if self._discrete:
                discrete[row] = self._values(row, action, "discrete_actions", self._discrete)
        self._layout = None if self._deprecated or not n else self._learn(data)
        return SimulatedActions(continuous, discrete)

    def _values(self, row: int, action: pb.AgentActionProto, name: str, size: int) -> Sequence[float]:
        values: Sequence[float] = getattr(action, "vector_actions_deprecated" if self._deprecated else name)
        if len(values) != size:
            raise OrderError(f"action {row} of {self._behavior!r} has {len(values)} {name}; expected {size}")
        return values

    def _learn(self, data: bytes) -> _Layout | None:
        """The layout of the first action, which is known to have all values."""
        _, _, start, end, _ = next(fields(data, 0, len(data)))
        same = np.ones(end, dtype=np.bool_)
        places = {DEPRECATED: 0, CONTINUOUS: 0, DISCRETE: 0}
        for number, wire_type, begin, stop, _ in fields(data, start, end):
            if wire_type != DELIMITED:
                return None
            if number == DISCRETE and stop - begin != self._discrete:
                return None  # a choice above 127 takes two bytes
            same[begin:stop] = False
            places[number] = begin
        pattern = np.frombuffer(data[:end], dtype=np.uint8)[same]
        return _Layout(end, same, pattern, places[CONTINUOUS], places[DISCRETE])
