"""Writers for the observations of a behavior's agents. They write the same bytes as Unity, but not agent by agent.

Protobuf omits fields that are zero, so records have different lengths only if a reward or an id is zero. Records are
rows of a byte matrix. Observations are in fixed columns. The fields before and after them are written in one operation
for each run of adjacent agents whose records have the same fields.
"""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from trajtrainer.core.protobuf import VARINT, Layout, key, varint
from trajtrainer.core.spec import BehaviorSpec, ObservationSpec
from trajtrainer.core.steps import BoolArray, FloatArray, LongArray, ObservationArray
from trajtrainer.envs.sim.simulation import ALL, Agents, Observations, SimulationStep
from trajtrainer.envs.sim.wire import WireStyle
from trajtrainer.envs.unity.pictures import channel_mapping, encode
from trajtrainer.envs.unity.proto import communicator_pb2 as pb
from trajtrainer.envs.unity.records import AGENT

# Field numbers of AgentInfoProto and ObservationProto (docs/explanation/mlagents-behavior.md#messages).
REWARD_KEY = b"\x3d"
DONE = b"\x40\x01"
MAX_STEP_REACHED = b"\x48\x01"
ID = 10
ACTION_MASK = (11,)
FLOATS = (13, 4, 1)
GROUP_ID = 14
GROUP_REWARD_KEY = b"\x7d"
INFO_KEY = b"\x0a"  # key of ListAgentInfoProto.value
COMPRESSION_LEVEL = 1  # PNG compression level
LONGEST_HEAD = 1 + 5 + 5 + len(DONE) + len(MAX_STEP_REACHED)

_Bytes = NDArray[np.uint8]


class InfoWriter(Protocol):
    """Writes the records (AgentInfoProto) of one behavior's agents."""

    def write(self, step: SimulationStep) -> list[bytes]:
        """Return the ``value`` entries of a ListAgentInfoProto as pieces of bytes.

        The agents whose episode ended come first, then all agents that decide, with their current observation.
        """


class _Run(NamedTuple):
    """Adjacent rows with the same fields: the row range, the column range, and the reward columns (or -1)."""

    start: int
    stop: int
    first: int
    last: int
    reward: int
    group_reward: int


class RowInfoWriter:
    """Writer for observations of fixed size: vectors, entities, and pictures sent as floats.

    Args:
        spec: observations and actions of the behavior.
        style: format of the messages.
        ids: i64 [N], agent ids, unique within the player.
        masked: whether steps have masks. As in Unity, a behavior that never masks actions sends no masks.
        groups: i64 [N], group ids, unique within the player and greater than 0; None for agents without groups.
    """

    def __init__(
        self, spec: BehaviorSpec, style: WireStyle, ids: LongArray, *, masked: bool, groups: LongArray | None = None
    ) -> None:
        self._style = style
        id_fields = [key(ID, VARINT) + varint(int(i)) if i else b"" for i in ids]
        group_fields = [b""] * len(ids) if groups is None else [key(GROUP_ID, VARINT) + varint(int(g)) for g in groups]
        self._head = LONGEST_HEAD + max(len(field) for field in id_fields)
        mask_size = sum(spec.action_spec.discrete_branches) if masked else 0
        tail = _tail(spec, style, mask_size)
        places = Layout.of(tail, AGENT).places

        def slots(path: tuple[int, ...]) -> list[slice]:
            return [slice(self._head + each.start, self._head + each.stop) for each in places.get(path, ())]

        self._mask_slots, self._slots = slots(ACTION_MASK), slots(FLOATS)
        self._grouped = groups is not None
        self._end = self._head + len(tail)
        width = self._end + max(len(field) for field in group_fields) + 5 * self._grouped
        self._rows: _Bytes = np.zeros((len(ids), width), dtype=np.uint8)
        self._rows[:, self._head : self._end] = np.frombuffer(tail, dtype=np.uint8)
        for row, field, group in zip(self._rows, id_fields, group_fields, strict=True):
            row[self._head - len(field) : self._head] = np.frombuffer(field, dtype=np.uint8)
            row[self._end : self._end + len(group)] = np.frombuffer(group, dtype=np.uint8)
        self._id_width: LongArray = np.array([len(field) for field in id_fields], dtype=np.int64)
        self._group_width: LongArray = np.array([len(field) for field in group_fields], dtype=np.int64)
        self._widths = 64 * self._id_width + 8 * self._group_width
        self._runs: list[_Run] = []
        self._rewarded = b"not yet"

    def write(self, step: SimulationStep) -> list[bytes]:
        pieces: list[bytes] = []
        if len(step.ended):
            rows = self._rows[step.ended]
            self._fill(rows, step.ended_observations, None)
            rewarded = self._kinds(step.ended_reward, step.ended_group_reward)
            runs = self._heads(rows, step.ended, rewarded, DONE, step.interrupted)
            pieces += _cut(rows, runs, step.ended_reward, step.ended_group_reward)
        rewarded = self._kinds(step.reward, step.group_reward)
        if step.deciding is not None:
            rows = self._rows[step.deciding]
            self._fill(rows, step.observations, step.mask)
            runs = self._heads(rows, step.deciding, rewarded, b"", None)
            return pieces + _cut(rows, runs, step.reward, step.group_reward)
        self._fill(self._rows, step.observations, step.mask)
        if rewarded.tobytes() != self._rewarded:
            self._rewarded = rewarded.tobytes()
            self._runs = self._heads(self._rows, ALL, rewarded, b"", None)
        pieces += _cut(self._rows, self._runs, step.reward, step.group_reward)
        return pieces

    def _kinds(self, reward: FloatArray, group_reward: FloatArray | None) -> NDArray[np.int8]:
        """Return which rewards to send in each row: 0 none, 1 the agent's, 2 the group's, 3 both."""
        kinds: NDArray[np.int8] = (reward != 0.0).view(np.int8)
        if self._grouped and group_reward is not None:
            kinds = kinds + 2 * (group_reward != 0.0).view(np.int8)
        return kinds

    def _fill(self, rows: _Bytes, observations: Observations, mask: BoolArray | None) -> None:
        for slot in self._mask_slots:
            rows[:, slot] = 0 if mask is None else mask
        for slot, column in zip(self._slots, observations, strict=True):
            rows[:, slot] = self._style.floats(column).view(np.uint8)

    def _heads(
        self, rows: _Bytes, agents: Agents, rewarded: NDArray[np.int8], flags: bytes, interrupted: BoolArray | None
    ) -> list[_Run]:
        """Write the fields around the fixed columns, without reward values; return runs with the same fields."""
        id_width, group_width = self._id_width[agents], self._group_width[agents]
        kinds = self._widths[agents] + 2 * rewarded
        if interrupted is not None:
            kinds += interrupted
        edges = [0, *(np.flatnonzero(kinds[1:] != kinds[:-1]) + 1).tolist(), len(rows)]
        runs = []
        for start, stop in pairwise(edges) if len(rows) else ():
            fields = (REWARD_KEY + bytes(4) if rewarded[start] & 1 else b"") + flags
            if interrupted is not None and interrupted[start]:
                fields += MAX_STEP_REACHED
            head = self._head - int(id_width[start])
            last = group_end = self._end + int(group_width[start])
            if rewarded[start] & 2:
                rows[start:stop, group_end] = GROUP_REWARD_KEY[0]
                last += 5
            prefix = INFO_KEY + varint(len(fields) + last - head)
            first = head - len(prefix) - len(fields)
            rows[start:stop, first:head] = np.frombuffer(prefix + fields, dtype=np.uint8)
            reward = first + len(prefix) + 1 if rewarded[start] & 1 else -1
            runs.append(_Run(start, stop, first, last, reward, group_end + 1 if last > group_end else -1))
        return runs


def _cut(rows: _Bytes, runs: list[_Run], reward: FloatArray, group_reward: FloatArray | None) -> list[bytes]:
    """Write the rewards into the matrix, and return the bytes of each run."""
    reward_bytes = _bytes(reward)
    group_bytes = reward_bytes if group_reward is None else _bytes(group_reward)
    pieces = []
    for start, stop, first, last, reward_column, group_column in runs:
        if reward_column >= 0:
            rows[start:stop, reward_column : reward_column + 4] = reward_bytes[start:stop]
        if group_column >= 0:
            rows[start:stop, group_column : group_column + 4] = group_bytes[start:stop]
        pieces.append(rows[start:stop, first:last].tobytes())
    return pieces


def _bytes(column: FloatArray) -> _Bytes:
    """Return the floats of a column as bytes, u8 [n, 4]."""
    return np.ascontiguousarray(column, dtype=np.float32).view(np.uint8).reshape(-1, 4)


def _tail(spec: BehaviorSpec, style: WireStyle, mask_size: int) -> bytes:
    """Return the part of a record between the id and the group id, with zeros for the mask and the observations."""
    zeros = [np.zeros((1, *sensor.shape), np.float32) for sensor in spec.observation_specs]
    observations = map(partial(_observation, style), spec.observation_specs, zeros)
    return pb.AgentInfoProto(action_mask=[False] * mask_size, observations=observations).SerializeToString()


def _observation(style: WireStyle, sensor: ObservationSpec, value: ObservationArray) -> pb.ObservationProto:
    """Return the message for one observation [1, *O]. u8 pictures are compressed as PNG."""
    observation = pb.ObservationProto(
        shape=style.shape(sensor),
        dimension_properties=style.dimension_properties(sensor),
        observation_type=pb.ObservationTypeProto.Name(sensor.observation_type.value),
        name=style.observation_name(sensor),
    )
    if value.dtype == np.uint8 and value.ndim == 4:
        observation.compression_type = pb.PNG
        observation.compressed_data = encode(value[0], COMPRESSION_LEVEL)
        observation.compressed_channel_mapping.extend(channel_mapping(len(value[0])))
    else:
        observation.float_data.data.extend(style.floats(value)[0].tolist())
    return observation


class PngInfoWriter:
    """Writer for behaviors with compressed pictures. It takes the same arguments as ``RowInfoWriter``."""

    def __init__(
        self, spec: BehaviorSpec, style: WireStyle, ids: LongArray, *, masked: bool, groups: LongArray | None = None
    ) -> None:
        self._spec = spec
        self._style = style
        self._ids = [int(i) for i in ids]
        self._groups = None if groups is None else groups.tolist()
        self._no_mask = [False] * sum(spec.action_spec.discrete_branches) if masked else []

    def write(self, step: SimulationStep) -> list[bytes]:
        infos = pb.UnityRLOutputProto.ListAgentInfoProto()
        for row, agent in enumerate(step.ended.tolist()):
            info = self._info(agent, row, step.ended_observations, self._no_mask)
            info.reward = step.ended_reward[row]
            info.done = True
            info.max_step_reached = bool(step.interrupted[row])
            self._add_group(info, agent, row, step.ended_group_reward)
            infos.value.append(info)
        for row, agent in enumerate(range(len(self._ids)) if step.deciding is None else step.deciding.tolist()):
            mask = self._no_mask if step.mask is None else step.mask[row].tolist()
            info = self._info(agent, row, step.observations, mask)
            info.reward = step.reward[row]
            self._add_group(info, agent, row, step.group_reward)
            infos.value.append(info)
        return [infos.SerializeToString()]

    def _add_group(self, info: pb.AgentInfoProto, agent: int, row: int, reward: FloatArray | None) -> None:
        if self._groups is not None:
            info.group_id = self._groups[agent]
            info.group_reward = 0.0 if reward is None else reward[row]

    def _info(self, agent: int, row: int, observations: Observations, mask: list[bool]) -> pb.AgentInfoProto:
        info = pb.AgentInfoProto(id=self._ids[agent], action_mask=mask)
        for sensor, column in zip(self._spec.observation_specs, observations, strict=True):
            info.observations.append(_observation(self._style, sensor, column[row : row + 1]))
        return info
