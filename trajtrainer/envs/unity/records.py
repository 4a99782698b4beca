"""Reads a behavior's agents into columns, in two ways.

``RecordReader`` is the fast one: whole columns at once, whatever the number of agents (see ``core/protobuf.py``).
``parse_records`` is the general one, for PNG and for unusual senders: protobuf and one agent at a time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
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
_SMALLEST = 2  # bytes of a record or field
_RECORD = 1
# Field numbers of AgentInfoProto and, in its observations, of ObservationProto.
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
"""What differs between agents."""


def check_count(count: int, who: str) -> None:
    """Reject too many agents in one message.

    Raises:
        InvalidDataError: there are more than ``MOST_AGENTS``.
    """
    if count > MOST_AGENTS:
        raise InvalidDataError(f"{who} sent more than {MOST_AGENTS} agents in one message.")


def check_records(data: bytes, behavior: str) -> None:
    """Reject a serialized list of agents of which protobuf would make millions of objects.

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


class _Writable(Protocol):
    """Columns by name."""

    def __contains__(self, name: object, /) -> bool: ...
    def __getitem__(self, name: str, /) -> NDArray[Any]: ...


class AgentLayout:
    """Where the values of agents are in records whose first field is an ``AgentInfoProto``.

    Args:
        layout: of a record that is valid.
        behavior: of the agent.
        done: whether the agent's episode has ended.
        interrupted: whether it reached its step limit.

    Raises:
        UnusualRecordError: an observation is not in one piece of floats, or a number comes twice.
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

    def fill(self, columns: _Writable, rows: slice | NDArray[np.int64], records: Bytes) -> None:
        """Write the values of records u8 [N, L] into these rows of the columns that there are, unless all are zero."""
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
        self._observed = {sensor_name(number): tuple(each.spec.shape) for number, each in enumerate(behavior.sensors)}
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
        """Read a serialized ``ListAgentInfoProto``. Agent ids are the player's own.

        Raises:
            UnusualRecordError: at least one record is not in the usual form.
        """
        found = self._list.read(data)
        size = num_terminal = 0
        for group, records in found:
            size += len(records)
            num_terminal += len(records) * group.learned.done
        columns: dict[str, NDArray[Any]] = {
            "agent": np.zeros(size, np.int64),
            "reward": np.zeros(size, np.float32),
            "group": np.zeros(size, np.int32),
            "group_reward": np.zeros(size, np.float32),
            "mask": np.zeros((size, self._behavior.mask_size), np.bool_),
        }
        observed = {name: np.empty((size, *shape), np.float32) for name, shape in self._observed.items()}
        interrupted = np.zeros(num_terminal, np.bool_)
        batch = StepBatch(**columns, obs=tuple(observed.values()), interrupted=interrupted, num_terminal=num_terminal)
        columns |= observed
        for group, records in found:
            group.learned.fill(columns, group.rows, records)
            if group.learned.interrupted:
                interrupted[group.rows] = True
        return batch
