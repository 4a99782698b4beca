"""Reads a behavior's agents into columns, in two ways.

``RecordReader`` is the fast one: whole columns at once, whatever the number of agents. Records of the same layout (see
``layout``) are read together with numpy. The pattern of a message, i.e. which layout is where, is remembered: the next
message of that length usually has the same one, which a few comparisons prove, and then nothing is done per agent.
Otherwise the records are counted off, guessing each one's layout by its first bytes; the same comparisons then prove
the guess.

``parse_records`` is the general one, for PNG and for unusual senders: protobuf and one agent at a time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from trajtrainer.core.errors import InvalidDataError
from trajtrainer.core.steps import ObservationArray, StepBatch
from trajtrainer.envs.unity import pictures
from trajtrainer.envs.unity.behaviors import UnityBehavior, UnitySensor
from trajtrainer.envs.unity.faults import InvalidObservationError
from trajtrainer.envs.unity.proto import columnar_pb2
from trajtrainer.envs.unity.proto.communicator_pb2 import PNG, UnityRLOutputProto
from trajtrainer.envs.unity.records.layout import (
    ObservationBlock,
    RecordLayout,
    UnusualRecordError,
    Varint,
    read_layout,
)
from trajtrainer.envs.unity.records.wire import check_count, check_records

_FLOAT = np.dtype("<f4")
_BYTE = np.dtype(np.uint8)
_BOOL = np.dtype(np.bool_)
_LOOKED_UP = 2  # bytes of a record that layouts are looked up by: its tag and the first byte of its length
_STREAK = 8  # records of one layout in a row, after which numpy counts how many more follow
_MOST_PATTERNS = 64
_MOST_LAYOUTS = 256


def parse_records(data: bytes, behavior: UnityBehavior) -> StepBatch:
    """Read a serialized ``ListAgentInfoProto`` in any form that protobuf allows. Agent ids are the player's own.

    Raises:
        InvalidDataError: not protobuf, or observations or masks that do not fit what the behavior announced.
    """
    check_records(data, behavior.id)
    try:
        # Serializing again packs what was sent unpacked and merges what was sent in parts: `bytes` fields need both.
        usual = UnityRLOutputProto.ListAgentInfoProto.FromString(data)
        usual.DiscardUnknownFields()
        agents = list(columnar_pb2.AgentInfoList.FromString(usual.SerializeToString()).value)
    except DecodeError as error:
        raise InvalidDataError(f"Behavior {behavior.id!r}: its agents are not valid protobuf ({error}).") from error
    terminal = [agent for agent in agents if agent.done]
    agents = terminal + [agent for agent in agents if not agent.done]
    for agent in agents:
        if len(agent.observations) != len(behavior.sensors):
            raise InvalidObservationError(
                f"Behavior {behavior.id!r}, agent {agent.id} sent {len(agent.observations)} observations; the "
                f"behavior announced {len(behavior.sensors)}. All agents of a behavior need the same sensors."
            )
        if agent.id < 0:
            raise InvalidObservationError(
                f"Behavior {behavior.id!r}: an agent has the id {agent.id}. Ids count up from 0."
            )
    mask = np.zeros((len(agents), behavior.mask_size), np.bool_)
    if behavior.mask_size:
        for row, agent in enumerate(agents[len(terminal) :], start=len(terminal)):
            if len(agent.action_mask) == behavior.mask_size:
                mask[row] = np.frombuffer(agent.action_mask, np.bool_)
            elif agent.action_mask:
                raise InvalidDataError(
                    f"Behavior {behavior.id!r}, agent {agent.id} sent an action mask of {len(agent.action_mask)} "
                    f"entries; expected none or {behavior.mask_size}, one per action of "
                    f"{behavior.spec.action_spec.discrete_branches}."
                )
    return StepBatch(
        agent=np.array([agent.id for agent in agents], np.int64),
        obs=tuple(_observations(agents, sensor, behavior) for sensor in behavior.sensors),
        reward=np.array([agent.reward for agent in agents], np.float32),
        group=np.array([agent.group_id for agent in agents], np.int32),
        group_reward=np.array([agent.group_reward for agent in agents], np.float32),
        mask=mask,
        interrupted=np.array([agent.max_step_reached for agent in terminal], np.bool_),
        num_terminal=len(terminal),
    )


def _observations(
    agents: Sequence[columnar_pb2.AgentInfo], sensor: UnitySensor, behavior: UnityBehavior
) -> ObservationArray:
    """[N, *O] of the sensor's own type."""
    found: list[NDArray[Any]] = []
    for agent in agents:
        try:
            found.append(read_observation(agent.observations[sensor.index], sensor))
        except pictures.PictureError as error:
            raise InvalidObservationError(
                f"Behavior {behavior.id!r}, agent {agent.id}, {sensor.label}: {error}."
            ) from error
    return np.stack(found) if found else np.empty((0, *sensor.spec.shape), sensor.dtype)


def read_observation(observation: columnar_pb2.Observation, sensor: UnitySensor) -> ObservationArray:
    """One observation of one agent, [*O] of the sensor's own type.

    Raises:
        PictureError: it does not fit the sensor.
    """
    shape = tuple(observation.shape)
    if shape != sensor.wire_shape:
        raise pictures.PictureError(f"it has the shape {shape}, but the behavior announced {sensor.wire_shape}")
    picture: ObservationArray
    if observation.compression_type == PNG:
        picture = pictures.decode(
            observation.compressed_data, observation.compressed_channel_mapping, sensor.spec.shape
        )
    else:
        numbers = np.frombuffer(observation.float_data.data, "<f4").astype(np.float32, copy=False)
        expected = int(np.prod(sensor.wire_shape))
        if len(numbers) != expected:
            raise pictures.PictureError(
                f"it holds {len(numbers)} numbers, but its shape {sensor.wire_shape} needs {expected}"
            )
        numbers = numbers.reshape(sensor.float_shape)
        picture = np.moveaxis(numbers, -1, 0) if sensor.channels_last else numbers
    if picture.dtype == sensor.dtype:
        return picture
    if picture.dtype == np.uint8:
        return picture.astype(np.float32) / np.float32(255.0)
    raise pictures.PictureError(
        "it used to come as PNG and now does not, or with another channel mapping; its compression must not change"
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Rows:
    """All records of one layout in a message.

    Attributes:
        first: where the first record begins.
        starts: i64, where all of them begin, ascending; None where they follow one another.
        rows: their rows in the step batch.
    """

    layout: RecordLayout
    first: int
    count: int
    starts: NDArray[np.int64] | None
    rows: slice | NDArray[np.int64]

    def column(self, data: bytes, offset: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """The value at ``offset`` of each record, [count, *shape]; a view where the records follow one another."""
        inner = (dtype.itemsize,) * len(shape)
        if len(shape) > 1:  # C order. Most columns have no such shape, and this runs seven times per message.
            inner = tuple(dtype.itemsize * math.prod(shape[axis + 1 :]) for axis in range(len(shape)))
        if self.starts is None:
            return np.ndarray((self.count, *shape), dtype, data, self.first + offset, (self.layout.size, *inner))
        # One window per byte of the message, of which those that begin a record are copied.
        windows: NDArray[Any] = np.ndarray((int(self.starts[-1]) + 1, *shape), dtype, data, offset, (1, *inner))
        return windows[self.starts]

    def hold(self, data: bytes) -> bool:
        """Whether ``data`` has records of this layout at the same places."""
        for segment in self.layout.segments:
            found = self.column(data, segment.offset, (segment.size,), _BYTE)
            if (found & segment.mask).tobytes() != segment.template * self.count:
                return False
        return True

    def varints(self, data: bytes, place: Varint) -> NDArray[Any]:
        if place.size == 1:
            return self.column(data, place.offset, (), _BYTE)
        digits = self.column(data, place.offset, (place.size,), _BYTE) & np.uint8(0x7F)
        numbers = np.zeros(self.count, np.int64)
        for index in range(place.size):
            numbers |= digits[:, index].astype(np.int64) << 7 * index
        return numbers


@dataclass(frozen=True, slots=True, eq=False)
class _Pattern:
    """The places of records in a message. ``interrupted`` is bool [T]."""

    parts: tuple[_Rows, ...]
    size: int
    interrupted: NDArray[np.bool_]


@dataclass(slots=True)
class _Run:
    """Records of one layout that follow one another, and the row of the first."""

    kind: int
    position: int
    count: int = 0
    row: int = 0


class _Head(NamedTuple):
    """The first bytes of a record that suggest its layout."""

    kind: int
    record_size: int
    size: int
    mask: int
    template: int


class RecordReader:
    """Reads the lists of agents of one behavior."""

    def __init__(self, behavior: UnityBehavior, block: ObservationBlock) -> None:
        self._behavior = behavior
        self._block = block
        self._layouts: list[RecordLayout] = []
        self._heads: dict[bytes, list[_Head]] = {}
        self._patterns: dict[int, _Pattern] = {}

    def read(self, data: bytes) -> StepBatch:
        """Read a serialized ``ListAgentInfoProto``. Agent ids are the player's own.

        Raises:
            UnusualRecordError: at least one record is not in the usual form.
            InvalidDataError: there are too many.
        """
        pattern = self._patterns.get(len(data))
        if pattern is None or not all(part.hold(data) for part in pattern.parts):
            pattern = self._pattern(self._count_off(data))
            if not all(part.layout.head_is_all or part.hold(data) for part in pattern.parts):
                raise UnusualRecordError
            if len(self._patterns) >= _MOST_PATTERNS:
                self._patterns.clear()
            self._patterns[len(data)] = pattern
        return self._columns(data, pattern)

    def _count_off(self, data: bytes) -> list[_Run]:
        """The runs of records of one length that follow one another, recognized by their first bytes."""
        runs: list[_Run] = []
        run = None
        position, end = 0, len(data)
        while position < end:
            for head in self._heads.get(data[position : position + _LOOKED_UP], ()):
                kind, record_size, size, mask, template = head
                if int.from_bytes(data[position : position + size], "little") & mask == template:
                    break
            else:
                kind, record_size = self._learn(data, position)
            if run is None or run.kind != kind:
                run = _Run(kind, position)
                runs.append(run)
                check_count(len(runs), f"Behavior {self._behavior.id!r}")
            run.count += 1
            position += record_size
            if run.count == _STREAK:
                count = self._layouts[kind].run_length(data, position)
                run.count += count
                position += count * record_size
        if position != end:
            raise UnusualRecordError
        return runs

    def _learn(self, data: bytes, position: int) -> tuple[int, int]:
        """Add the layout of a record; return its number and the record's size."""
        if len(self._layouts) == _MOST_LAYOUTS:
            raise UnusualRecordError
        layout = read_layout(data, position, self._block, self._behavior.mask_size)
        kind = len(self._layouts)
        self._layouts.append(layout)
        head = _Head(kind, layout.size, layout.head_size, layout.head_mask, layout.head_template)
        self._heads.setdefault(data[position : position + _LOOKED_UP], []).append(head)
        return kind, layout.size

    def _pattern(self, runs: list[_Run]) -> _Pattern:
        """Give every record its row: terminal ones first, each sort in the order of the message."""
        check_count(sum(run.count for run in runs), f"Behavior {self._behavior.id!r}")
        num_terminal = sum(run.count for run in runs if self._layouts[run.kind].done)
        interrupted = np.zeros(num_terminal, np.bool_)
        next_terminal, next_decision = 0, num_terminal
        by_kind: dict[int, list[_Run]] = {}
        for run in runs:
            layout = self._layouts[run.kind]
            if layout.done:
                run.row = next_terminal
                next_terminal += run.count
                interrupted[run.row : next_terminal] = layout.interrupted
            else:
                run.row = next_decision
                next_decision += run.count
            by_kind.setdefault(run.kind, []).append(run)
        parts = tuple(_rows(self._layouts[kind], found) for kind, found in by_kind.items())
        return _Pattern(parts, next_decision, interrupted)

    def _columns(self, data: bytes, pattern: _Pattern) -> StepBatch:
        size, sensors, mask_size = pattern.size, self._behavior.sensors, self._behavior.mask_size
        batch = StepBatch(
            agent=np.zeros(size, np.int64),
            obs=tuple(np.empty((size, *sensor.spec.shape), np.float32) for sensor in sensors),
            reward=np.zeros(size, np.float32),
            group=np.zeros(size, np.int32),
            group_reward=np.zeros(size, np.float32),
            mask=np.zeros((size, mask_size), np.bool_),
            interrupted=pattern.interrupted.copy(),
            num_terminal=len(pattern.interrupted),
        )
        for part in pattern.parts:
            layout, rows = part.layout, part.rows
            if layout.id.size:
                batch.agent[rows] = part.varints(data, layout.id)
            if layout.reward >= 0:
                batch.reward[rows] = part.column(data, layout.reward, (), _FLOAT)
            if layout.group.size:
                batch.group[rows] = part.varints(data, layout.group)
            if layout.group_reward >= 0:
                batch.group_reward[rows] = part.column(data, layout.group_reward, (), _FLOAT)
            if layout.action_mask >= 0 and not layout.done:
                batch.mask[rows] = part.column(data, layout.action_mask, (mask_size,), _BOOL)
            for sensor, offset, observations in zip(sensors, layout.floats, batch.obs, strict=True):
                found = part.column(data, offset, sensor.float_shape, _FLOAT)
                observations[rows] = np.moveaxis(found, -1, 1) if sensor.channels_last else found
        return batch


def _rows(layout: RecordLayout, runs: list[_Run]) -> _Rows:
    first = runs[0]
    if len(runs) == 1:
        return _Rows(layout, first.position, first.count, None, slice(first.row, first.row + first.count))
    starts: list[int] = []
    rows: list[int] = []
    for run in runs:
        starts.extend(range(run.position, run.position + run.count * layout.size, layout.size))
        rows.extend(range(run.row, run.row + run.count))
    return _Rows(layout, first.position, len(rows), np.array(starts, np.int64), np.array(rows, np.int64))
