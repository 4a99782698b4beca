"""Reads a behavior's agents into columns, in two ways.

``RecordReader`` is fast: it reads whole columns at once, regardless of the number of agents (see ``core/protobuf.py``).
``parse_records`` is general, for PNG and for unusual senders: it uses protobuf and reads one agent at a time.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import islice
from typing import Any, Protocol

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from trajtrainer.core.columns import sensor_name
from trajtrainer.core.errors import InvalidDataError
from trajtrainer.core.protobuf import (
    BOOLS,
    FLOAT,
    NUMBER,
    RAW,
    Bytes,
    Layout,
    RecordList,
    Schema,
    UnusualRecordError,
    fields,
    floats,
    numbers,
)
from trajtrainer.core.steps import ObservationArray, StepBatch
from trajtrainer.envs.unity import pictures
from trajtrainer.envs.unity.behaviors import UnityBehavior, UnitySensor
from trajtrainer.envs.unity.faults import InvalidObservationError
from trajtrainer.envs.unity.proto import columnar_pb2
from trajtrainer.envs.unity.proto.communicator_pb2 import PNG, UnityRLOutputProto

MOST_AGENTS = 100_000
_MOST_FIELDS = 20 * MOST_AGENTS
_SMALLEST = 2  # minimum size of a record or field, in bytes
_RECORD = 1
# Field numbers of AgentInfoProto; the last one is a field of its observations (ObservationProto).
_ID, _ACTION_MASK, _OBSERVATIONS, _FLOAT_DATA = 10, 11, 13, 4
_REWARDS = {"reward": 7, "group_reward": 15}
_GROUP = 14
AGENT: Schema = {
    **dict.fromkeys(_REWARDS.values(), FLOAT),
    _ID: NUMBER,
    _ACTION_MASK: BOOLS,
    _OBSERVATIONS: {_FLOAT_DATA: {1: RAW}},
    _GROUP: NUMBER,
}
"""The fields whose values differ between agents."""


def check_count(count: int, who: str) -> None:
    """Check that one message does not contain too many agents.

    Raises:
        InvalidDataError: there are more than ``MOST_AGENTS``.
    """
    if count > MOST_AGENTS:
        raise InvalidDataError(f"{who} sent more than {MOST_AGENTS} agents in one message.")


def check_records(data: bytes, behavior: str) -> None:
    """Check that protobuf would not create millions of objects from a serialized list of agents.

    Raises:
        InvalidDataError: there are too many agents, or too many fields in their records.
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
                    f"{_MOST_FIELDS} fields. Expected one observation per sensor and a few others."
                )


class AgentColumns(Protocol):
    """The values that agents sent, by column name."""

    def __contains__(self, name: str, /) -> bool: ...
    def __getitem__(self, name: str, /) -> NDArray[Any]: ...


def parse_records(data: bytes, behavior: UnityBehavior) -> StepBatch:
    """Read a serialized ``ListAgentInfoProto`` in any form that protobuf allows. Agent ids are as the player sent them.

    Raises:
        InvalidDataError: the data is not valid protobuf, or an observation or a mask does not fit what the behavior
            announced.
    """
    check_records(data, behavior.id)
    try:
        # Serializing again packs unpacked fields and merges messages sent in parts. The `bytes` fields need both.
        usual = UnityRLOutputProto.ListAgentInfoProto.FromString(data)
        usual.DiscardUnknownFields()
        agents = list(columnar_pb2.AgentInfoList.FromString(usual.SerializeToString()).value)
    except DecodeError as error:
        raise InvalidDataError(f"Behavior {behavior.id!r}: its agents are not valid protobuf ({error}).") from error
    agents.sort(key=lambda agent: not agent.done)
    num_terminal = sum(agent.done for agent in agents)
    batch, columns = _empty(behavior, len(agents), num_terminal)
    for row, agent in enumerate(agents):
        try:
            read_agent(agent, behavior, columns, row)
        except AgentError as error:
            raise InvalidObservationError(f"Behavior {behavior.id!r}, agent {agent.id}: {error}.") from error
        if agent.id < 0:
            raise InvalidObservationError(
                f"Behavior {behavior.id!r}: an agent has the id {agent.id}. Ids count up from 0."
            )
        batch.agent[row] = agent.id
        if agent.done:
            batch.interrupted[row] = agent.max_step_reached
    return batch


def _empty(behavior: UnityBehavior, size: int, num_terminal: int) -> tuple[StepBatch, dict[str, NDArray[Any]]]:
    """Return a batch of ``size`` agents and its columns by name. All columns except the observations are zero."""
    columns: dict[str, NDArray[Any]] = {
        "agent": np.zeros(size, np.int64),
        "reward": np.zeros(size, np.float32),
        "group": np.zeros(size, np.int32),
        "group_reward": np.zeros(size, np.float32),
        "mask": np.zeros((size, behavior.mask_size), np.bool_),
    }
    obs = tuple(np.empty((size, *sensor.spec.shape), sensor.dtype) for sensor in behavior.sensors)
    batch = StepBatch(**columns, obs=obs, interrupted=np.zeros(num_terminal, np.bool_), num_terminal=num_terminal)
    columns.update((sensor_name(number), column) for number, column in enumerate(obs))
    return batch, columns


class AgentError(ValueError):
    """An agent's data does not fit its behavior. The message is worded to follow "agent 3: "."""


def read_agent(
    agent: columnar_pb2.AgentInfo,
    behavior: UnityBehavior,
    columns: AgentColumns,
    row: int,
    read: Callable[[columnar_pb2.Observation, UnitySensor], Any] | None = None,
) -> None:
    """Write one agent's data into a row of the columns.

    Args:
        agent: the agent, whose ``bytes`` fields must contain all of its numbers.
        behavior: behavior of the agent.
        columns: columns to write to, including those of every sensor. They must be all zero.
        row: row to write to.
        read: function that reads an observation; the default is ``read_observation``.

    Raises:
        AgentError: an observation or a mask does not fit.
    """
    if len(agent.observations) != behavior.num_observations:
        raise AgentError(
            f"it has {len(agent.observations)} observations, but the first agent has {behavior.num_observations}"
        )
    for number, sensor in enumerate(behavior.sensors):
        try:
            columns[sensor_name(number)][row] = (read or read_observation)(agent.observations[sensor.index], sensor)
        except pictures.PictureError as error:
            raise AgentError(f"{sensor.label}: {error}") from error
    values = {"reward": agent.reward, "group_reward": agent.group_reward, "group": agent.group_id}
    for name, value in values.items():
        columns[name][row] = value
    if behavior.mask_size and agent.action_mask and not agent.done:
        if len(agent.action_mask) != behavior.mask_size:
            raise AgentError(
                f"its action mask has {len(agent.action_mask)} entries; expected none or {behavior.mask_size}, one "
                f"per action of the branches {tuple(behavior.spec.action_spec.discrete_branches)}"
            )
        columns["mask"][row] = np.frombuffer(agent.action_mask, np.bool_)


def read_observation(observation: columnar_pb2.Observation, sensor: UnitySensor) -> ObservationArray:
    """Return one observation of one agent, [*O] of the sensor's dtype.

    Raises:
        PictureError: the observation does not fit the sensor.
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
                f"it contains {len(numbers)} numbers, but its shape {sensor.wire_shape} needs {expected}"
            )
        numbers = numbers.reshape(sensor.float_shape)
        picture = np.moveaxis(numbers, -1, 0) if sensor.channels_last else numbers
    if picture.dtype == sensor.dtype:
        return picture
    if picture.dtype == np.uint8:
        return picture.astype(np.float32) / np.float32(255.0)
    raise pictures.PictureError(
        "its compression must not change: it was sent as PNG before and no longer is, or its channel mapping differs"
    )


class AgentLayout:
    """The positions of agents' values in records whose first field is an ``AgentInfoProto``.

    Args:
        layout: layout of a valid record.
        behavior: behavior of the agent.
        done: whether the agent's episode has ended.
        interrupted: whether the episode reached its step limit.

    Raises:
        UnusualRecordError: an observation is not a single block of floats, or a number occurs twice.
    """

    def __init__(self, layout: Layout, behavior: UnityBehavior, *, done: bool, interrupted: bool) -> None:
        self.layout = layout
        self.done = done
        self.interrupted = interrupted
        self._columns: list[tuple[str, Callable[[Bytes, slice], NDArray[Any]], slice]] = []
        places = {"agent": (numbers, _ID), "group": (numbers, _GROUP), "mask": (_bools, _ACTION_MASK)}
        places |= {name: (_float, number) for name, number in _REWARDS.items()}
        for name, (read, number) in places.items():
            place = layout.place(_RECORD, number)
            if place is None or (name == "mask" and (done or place.stop - place.start != behavior.mask_size)):
                continue
            self._columns.append((name, read, place))
        found = [
            each for each in layout.places.get((_RECORD, _OBSERVATIONS, _FLOAT_DATA, 1), ()) if each.stop > each.start
        ]
        if [each.stop - each.start for each in found] != [4 * math.prod(each.float_shape) for each in behavior.sensors]:
            raise UnusualRecordError
        for number, (sensor, place) in enumerate(zip(behavior.sensors, found, strict=True)):
            self._columns.append((sensor_name(number), _observation_reader(sensor), place))

    def fill(self, columns: AgentColumns, rows: slice | NDArray[np.int64], records: Bytes) -> None:
        """Write the values of records, u8 [N, L], into these rows of ``columns``, skipping missing columns.

        Values that the records leave out are zero, and are not written.
        """
        for name, read, place in self._columns:
            if name in columns:
                columns[name][rows] = read(records, place)


def _float(records: Bytes, place: slice) -> NDArray[Any]:
    return floats(records, place)[:, 0]


def _bools(records: Bytes, place: slice) -> NDArray[Any]:
    return records[:, place].view(np.bool_)


def _observation_reader(sensor: UnitySensor) -> Callable[[Bytes, slice], NDArray[Any]]:
    shape, channels_last = sensor.float_shape, sensor.channels_last
    if len(shape) == 1:
        return floats

    def read(records: Bytes, place: slice) -> NDArray[Any]:
        found = floats(records, place).reshape(-1, *shape)
        return np.moveaxis(found, -1, 1) if channels_last else found

    return read


class RecordReader:
    """Reads the lists of agents of one behavior whose observations are uncompressed."""

    def __init__(self, behavior: UnityBehavior) -> None:
        self._behavior = behavior
        self._list = RecordList(self._learn, is_first=lambda agent: agent.done)

    def _learn(self, record: bytes) -> AgentLayout:
        layout = Layout.of(record, {_RECORD: AGENT})
        try:
            agent = parse_records(record, self._behavior)
        except InvalidDataError as error:
            raise UnusualRecordError from error
        done = agent.num_terminal == 1
        return AgentLayout(layout, self._behavior, done=done, interrupted=done and bool(agent.interrupted[0]))

    def read(self, data: bytes) -> StepBatch:
        """Read a serialized ``ListAgentInfoProto``. Agent ids are as the player sent them.

        Raises:
            UnusualRecordError: at least one record is not in the usual form.
        """
        found = self._list.read(data)
        size = num_terminal = 0
        for group, records in found:
            size += len(records)
            num_terminal += len(records) * group.learned.done
        batch, columns = _empty(self._behavior, size, num_terminal)
        for group, records in found:
            group.learned.fill(columns, group.rows, records)
            if group.learned.interrupted:
                batch.interrupted[group.rows] = True
        return batch
