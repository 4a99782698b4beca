"""The format of the player's messages, and how it differs between versions of Unity's package.

The trainer's answer (UnityRLInputProto) is decoded into arrays of actions without a loop over the agents.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from trajtrainer.core.protobuf import (
    FLOAT,
    NUMBERS,
    RAW,
    Layout,
    RecordList,
    Schema,
    UnusualRecordError,
    floats,
    numbers,
)
from trajtrainer.core.spec import ActionSpec, ObservationSpec
from trajtrainer.core.steps import FloatArray, IntArray, ObservationArray
from trajtrainer.envs.sim.simulation import SimulatedActions
from trajtrainer.envs.unity.proto import communicator_pb2 as pb
from trajtrainer.envs.unity.proto.columnar_pb2 import UnityMessage
from trajtrainer.envs.unity.proto.communicator_pb2 import UnityRLCapabilitiesProto

API_VERSION = "1.5.0"
PACKAGE_VERSION = "3.0.0"
CHANNELS_FIRST_PACKAGE = 3  # older packages announce pictures as height, width, channels
# The floats to send for u8 pixels. They are exactly the floats that a receiver of a PNG gets when it divides by 255.
_BYTE_TO_FLOAT: NDArray[np.float32] = np.arange(256, dtype=np.float32) / np.float32(255.0)
STATUS_OK = 200
HYBRID_API = 3  # first minor version with separate fields for continuous and discrete actions
# Paths to fields of AgentActionProto: the list's field 1 (``value``), then the field in the entry.
_DEPRECATED, _CONTINUOUS, _DISCRETE, _VALUE = (1, 1), (1, 6), (1, 7), (1, 4)
_ACTION: Schema = {1: {_DEPRECATED[1]: RAW, _VALUE[1]: FLOAT, _CONTINUOUS[1]: RAW, _DISCRETE[1]: NUMBERS}}


@dataclass(frozen=True, slots=True)
class WireStyle:
    """Versions announced in the handshake, and whether pictures are compressed.

    Attributes:
        api_version: version of the wire protocol, such as "1.5.0"; it determines fields and capabilities
            (docs/explanation/mlagents-behavior.md#versions).
        package_version: version of com.unity.ml-agents, such as "3.0.0"; it determines the order of a picture's
            dimensions.
        png: True to send pictures as PNG instead of floats.
    """

    api_version: str = API_VERSION
    package_version: str = PACKAGE_VERSION
    png: bool = False

    @property
    def api_minor(self) -> int:
        """The minor version of the wire protocol."""
        parts = self.api_version.split(".")
        return int(parts[1]) if len(parts) > 1 and parts[1].isdigit() else 0

    @property
    def channels_last(self) -> bool:
        """True if pictures are announced as (height, width, channels). Their floats are always in that order."""
        major = self.package_version.split(".")[0]
        return major.isdigit() and int(major) < CHANNELS_FIRST_PACKAGE

    def capabilities(self) -> UnityRLCapabilitiesProto:
        """Return the capabilities of a package with this version of the wire protocol."""
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
        """Return the sensor's shape as it is announced."""
        shape = tuple(sensor.shape)
        if len(shape) == 3 and self.channels_last:
            return (shape[1], shape[2], shape[0])
        return shape

    def dimension_properties(self, sensor: ObservationSpec) -> tuple[int, ...]:
        """Return the sensor's dimension properties in the order of ``shape``; empty before API 1.5."""
        if self.api_minor < 5:
            return ()
        properties = tuple(int(p) for p in sensor.dimension_property)
        if len(properties) == 3 and self.channels_last:
            return (properties[1], properties[2], properties[0])
        return properties

    def observation_name(self, sensor: ObservationSpec) -> str:
        """Return the name of a sensor; empty before API 1.5."""
        return sensor.name if self.api_minor >= 5 else ""

    def floats(self, column: ObservationArray) -> NDArray[np.float32]:
        """Return an observation column [n, *O] as the floats to send, f32 [n, size]."""
        if column.ndim == 4:
            column = column.transpose(0, 2, 3, 1)
        if column.dtype == np.uint8:
            column = _BYTE_TO_FLOAT[column]
        return np.ascontiguousarray(column, dtype=np.float32).reshape(len(column), math.prod(column.shape[1:]))


class OrderError(Exception):
    """The trainer's answer is invalid."""


@dataclass(frozen=True, slots=True)
class Order:
    """One answer from the trainer.

    Attributes:
        status: 200 to continue.
        command: pb.STEP, pb.RESET or pb.QUIT.
        actions: behavior -> the bytes of its ListAgentActionProto.
        side_channel: side channel frames.
    """

    status: int
    command: int
    actions: dict[str, bytes]
    side_channel: bytes


def read_order(data: bytes) -> Order:
    """Parse an answer.

    Raises:
        OrderError: the bytes are not a UnityMessageProto.
    """
    try:
        message = UnityMessage.FromString(data)
    except DecodeError as error:
        raise OrderError(f"the trainer's answer is not a valid message: {error}") from error
    rl_input = message.unity_input.rl_input
    actions = {entry.key: entry.value for entry in rl_input.agent_actions}
    return Order(message.header.status, rl_input.command, actions, rl_input.side_channel)


@dataclass(frozen=True, slots=True)
class _ActionLayout:
    """Positions of an agent's actions in its record: one for all continuous actions, and one per discrete action."""

    layout: Layout
    continuous: slice | None
    discrete: list[slice]


class ActionReader:
    """Reads one behavior's actions.

    Args:
        behavior: name of the behavior, for error messages.
        spec: sizes of the actions.
        num_agents: N.
        api_minor: minor version of the wire protocol. Before 1.3, a player reads the deprecated field, which contains
            either kind of action as floats.
    """

    def __init__(self, behavior: str, spec: ActionSpec, num_agents: int, api_minor: int) -> None:
        self._behavior = behavior
        self._num_agents = num_agents
        self._continuous = spec.continuous_size
        self._discrete = spec.discrete_size
        self._deprecated = api_minor < HYBRID_API
        self._list = RecordList(self._learn)

    def read(self, data: bytes, waiting: int | None = None) -> SimulatedActions:
        """Return the actions in a ListAgentActionProto, f32 [N, C] and i32 [N, K].

        Args:
            data: the serialized message.
            waiting: N for this message; None if all agents wait for an action.

        Raises:
            OrderError: a waiting agent gets no action or one of the wrong size. In this case, Unity would also quit.
        """
        n = self._num_agents if waiting is None else waiting
        try:
            continuous, discrete = self._read_alike(data)
        except UnusualRecordError:
            continuous, discrete = self._read_one_by_one(data, n)
        if len(continuous) < n:
            raise OrderError(f"{n} agents of {self._behavior!r} need actions, but the trainer sent {len(continuous)}")
        return SimulatedActions(continuous[:n], discrete[:n])

    def _read_alike(self, data: bytes) -> tuple[FloatArray, IntArray]:
        found = self._list.read(data)
        continuous, discrete = self._zeros(sum(len(records) for _, records in found))
        for group, records in found:
            if group.learned.continuous is not None:
                continuous[group.rows] = floats(records, group.learned.continuous)
            for branch, place in enumerate(group.learned.discrete):
                discrete[group.rows, branch] = numbers(records, place)
        return continuous, discrete

    def _learn(self, record: bytes) -> _ActionLayout:
        layout = Layout.of(record, _ACTION)
        continuous = layout.place(*_CONTINUOUS)
        discrete = layout.places.get(_DISCRETE, [])
        size = 0 if continuous is None else continuous.stop - continuous.start
        if self._deprecated or (size, len(discrete)) != (4 * self._continuous, self._discrete):
            raise UnusualRecordError
        return _ActionLayout(layout, continuous, discrete)

    def _read_one_by_one(self, data: bytes, n: int) -> tuple[FloatArray, IntArray]:
        """Read up to ``n`` actions in any form that protobuf allows."""
        try:
            received = pb.UnityRLInputProto.ListAgentActionProto.FromString(data).value[:n]
        except DecodeError as error:
            raise OrderError(f"the actions of {self._behavior!r} are not a valid message: {error}") from error
        continuous, discrete = self._zeros(len(received))
        names = "continuous_actions", "discrete_actions"
        for row, action in enumerate(received):
            for name, column in zip(names, (continuous[row], discrete[row]), strict=True):
                if not len(column):
                    continue
                values = getattr(action, "vector_actions_deprecated" if self._deprecated else name)
                if len(values) != len(column):
                    raise OrderError(
                        f"action {row} of {self._behavior!r} has {len(values)} {name}; expected {len(column)}"
                    )
                column[:] = values
        return continuous, discrete

    def _zeros(self, n: int) -> tuple[FloatArray, IntArray]:
        return np.zeros((n, self._continuous), np.float32), np.zeros((n, self._discrete), np.int32)
