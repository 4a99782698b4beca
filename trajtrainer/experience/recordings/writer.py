"""Writes ``.demo`` files that ML-Agents can read (docs/train/demonstrations.md#files).

Unlike in Unity's recordings, a record contains the action in response to its own observation. Images are (channels,
height, width), and are stored as PNG unless they are floats.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from trajtrainer.core.columns import OBSERVATIONS, Columns
from trajtrainer.core.errors import DemonstrationError
from trajtrainer.core.printable import encodable
from trajtrainer.core.protobuf import VARINT, Layout, delimited, key, varint
from trajtrainer.core.spec import ActionSpec, BehaviorSpec, ObservationSpec
from trajtrainer.envs.unity.pictures import channel_mapping, encode
from trajtrainer.envs.unity.proto import communicator_pb2 as pb
from trajtrainer.envs.unity.records import AGENT
from trajtrainer.experience.recordings.demo_file import API_VERSION, HEADER_SIZE, MARK
from trajtrainer.experience.recordings.pairing import Trajectory
from trajtrainer.experience.recordings.step_reader import CompressedPicture

# Protobuf tags in a step: field number << 3 | wire type.
_INFO = b"\x0a"
_REWARD = b"\x3d"
_ENDED = b"\x40\x01"
_INTERRUPTED = b"\x48\x01"
_ACTION_MASK = b"\x5a"
_OBSERVATION, _FLOATS = 13, (13, 4, 1)
_GROUP_ID = b"\x70"
_GROUP_REWARD = b"\x7d"
_ACTION = b"\x12"
_CONTINUOUS_ACTIONS = b"\x32"
_DISCRETE_ACTIONS = b"\x3a"

_COMPRESSION_LEVEL = 6
_LONGEST_NAME = 16
_NOT_IN_NAMES = re.compile("[^a-zA-Z0-9 -]")
_32_BITS = 1 << 32
_ROWS_AT_ONCE = 4096

_SensorWriter = Callable[[NDArray[Any]], list[bytes]]


class _OpenEnd(NamedTuple):
    """The final record of an unfinished trajectory: ``interrupted`` if others follow, otherwise ``plain``."""

    interrupted: bytes = b""
    plain: bytes = b""


class DemoWriter:
    """Writes a recording. ``write`` appends trajectories to the file, and ``close`` completes the header.

    An unfinished trajectory is written as interrupted unless it is the last one.

    Args:
        path: path of the file. An existing file is replaced.
        spec: spec of the behavior.
        name: name of the behavior.
    """

    def __init__(self, path: Path, spec: BehaviorSpec, name: str) -> None:
        self._name = encodable(name)
        self._actions = spec.action_spec
        self._specs = spec.observation_specs
        self._are_floats: list[bool] = []
        self._sensors = list(map(_sensor_writer, spec.observation_specs))
        self.num_records = self.num_episodes = 0
        self._rewards = 0.0
        self._open_end = _OpenEnd()
        self._file = path.open("wb")
        self._file.write(_header(self._name, 0, 0, 0.0) + _framed(_parameters(self._name, self._actions)))

    def write(self, trajectory: Trajectory) -> None:
        """Append a trajectory.

        Raises:
            DemonstrationError: a sensor's images are PNGs in this trajectory but were not before, or vice versa.
        """
        steps, after = trajectory
        are_floats = [column.dtype == np.float32 for column in steps.obs]
        self._are_floats = self._are_floats or are_floats
        for sensor, is_float, was_float in zip(self._specs, are_floats, self._are_floats, strict=True):
            if is_float != was_float:
                raise DemonstrationError(
                    f"The sensor {sensor.name!r} has PNGs in one recording and floats in another, which a single .demo "
                    "file cannot contain. Convert both to .npz files and merge those."
                )
        # A record contains the rewards of the previous step.
        before = {name: np.concatenate([np.zeros(1, np.float32), steps[name]]) for name in ("reward", "group_reward")}
        recorded = steps.with_columns({name: column[:-1] for name, column in before.items()})
        end = steps.slice(len(steps) - 1, len(steps)).with_columns(
            {name: column[-1:] for name, column in before.items()}
        )
        end = end.with_columns({name: column for name, column in after.items() if name.startswith(OBSERVATIONS)})
        self._file.write(self._open_end.interrupted)
        for begin in range(0, len(steps), _ROWS_AT_ONCE):
            self._file.writelines(self._records(recorded.slice(begin, begin + _ROWS_AT_ONCE), b""))
        is_done, is_interrupted = bool(steps["done"][-1]), bool(steps["interrupted"][-1])
        (ended,) = self._records(end, _ENDED if is_done and not is_interrupted else _ENDED + _INTERRUPTED)
        if is_done:
            self._file.write(ended)
            self._open_end = _OpenEnd()
        else:
            self._open_end = _OpenEnd(ended, *self._records(end, b""))
        self.num_records += len(steps) + 1
        self.num_episodes += 1
        self._rewards += float(steps["reward"].sum(dtype=np.float64))

    def close(self) -> None:
        """Complete the file and its header."""
        self._file.write(self._open_end.plain)
        self._file.seek(0)
        mean = self._rewards / max(1, self.num_episodes)
        self._file.write(_header(self._name, self.num_records, self.num_episodes, mean))
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _records(self, columns: Columns[NDArray[Any]], flags: bytes) -> Iterator[bytes]:
        """Yield serialized records with the same flags, each preceded by its length."""
        parts = [[_REWARD + each + flags for each in _rows(columns["reward"].astype("<f4"))]]
        if not flags and columns["mask"].any():
            tag = _ACTION_MASK + varint(columns["mask"].shape[1])
            parts.append([tag + each for each in _rows(columns["mask"].astype(np.uint8))])
        parts += [write(column) for write, column in zip(self._sensors, columns.obs, strict=True)]
        if columns["group"].any() or columns["group_reward"].any():
            parts.append([_GROUP_ID + varint(group % _32_BITS) for group in columns["group"].tolist()])
            parts.append([_GROUP_REWARD + each for each in _rows(columns["group_reward"].astype("<f4"))])
        for info, action in zip(map(b"".join, zip(*parts, strict=True)), self._action_bytes(columns), strict=True):
            record = _INFO + varint(len(info)) + info + _ACTION + varint(len(action)) + action
            yield varint(len(record)) + record

    def _action_bytes(self, columns: Columns[NDArray[Any]]) -> list[bytes]:
        num_continuous, num_discrete = self._actions.continuous_size, self._actions.discrete_size
        parts = [[b""] * len(columns)]
        if num_continuous:
            tag = _CONTINUOUS_ACTIONS + varint(4 * num_continuous)
            parts.append([tag + each for each in _rows(columns["continuous"].astype("<f4"))])
        if num_discrete:
            chosen = [b"".join(map(varint, row)) for row in columns["discrete"].tolist()]
            parts.append([_DISCRETE_ACTIONS + varint(len(each)) + each for each in chosen])
        return list(map(b"".join, zip(*parts, strict=True)))


def _sensor_writer(spec: ObservationSpec) -> _SensorWriter:
    """Return a function that serializes one sensor's observations."""
    shape = tuple(spec.shape)
    proto = pb.ObservationProto(
        shape=shape,
        dimension_properties=[each.value for each in spec.dimension_property],
        observation_type=pb.ObservationTypeProto.Name(spec.observation_type.value),
        name=encodable(spec.name),
    )
    zeros = pb.ObservationProto(float_data=pb.ObservationProto.FloatData(data=[0.0] * math.prod(shape)))
    zeros.MergeFrom(proto)
    whole = delimited(_OBSERVATION, zeros.SerializeToString())
    (place,) = Layout.of(whole, AGENT).places.get(_FLOATS, [slice(len(whole), len(whole))])
    before, behind = whole[: place.start], whole[place.stop :]

    def picture(data: bytes, mapping: list[int]) -> bytes:
        each = pb.ObservationProto(compression_type=pb.PNG, compressed_data=data, compressed_channel_mapping=mapping)
        each.MergeFrom(proto)
        return delimited(_OBSERVATION, each.SerializeToString())

    def write(column: NDArray[Any]) -> list[bytes]:
        if column.dtype == object:
            kept: list[CompressedPicture] = column.tolist()
            return [picture(data, list(mapping)) for data, mapping in kept]
        if column.dtype == np.uint8:
            mapping = channel_mapping(shape[0])
            return [picture(encode(each, _COMPRESSION_LEVEL), mapping) for each in column]
        return [before + each + behind for each in _rows(column.astype("<f4"))]

    return write


def _rows(column: NDArray[Any]) -> list[bytes]:
    """Return the bytes of each row."""
    data = np.ascontiguousarray(column).tobytes()
    size = len(data) // max(1, len(column))
    return [data[begin : begin + size] for begin in range(0, len(data), size)]


def _parameters(name: str, actions: ActionSpec) -> bytes:
    """Return the serialized behavior. Like Unity, also fill the fields that package versions before 2.0 read."""
    branches = list(actions.discrete_branches)
    parameters = pb.BrainParametersProto(
        brain_name=name,
        action_spec=pb.ActionSpecProto(
            num_continuous_actions=actions.continuous_size,
            num_discrete_actions=actions.discrete_size,
            discrete_branch_sizes=branches,
        ),
    )
    if not branches:
        parameters.vector_action_size_deprecated.append(actions.continuous_size)
        parameters.vector_action_space_type_deprecated = pb.continuous
    elif not actions.continuous_size:
        parameters.vector_action_size_deprecated.extend(branches)
    return parameters.SerializeToString() + key(MARK, VARINT) + varint(1)


def _framed(message: bytes) -> bytes:
    return varint(len(message)) + message


def _header(name: str, num_records: int, num_episodes: int, mean_reward: float) -> bytes:
    """Return the header, with the name shortened so that it fits."""
    shown = _NOT_IN_NAMES.sub("", name.partition("?")[0])[:_LONGEST_NAME]
    while True:
        meta = pb.DemonstrationMetaProto(
            api_version=API_VERSION,
            demonstration_name=shown,
            number_steps=num_records,
            number_episodes=num_episodes,
            mean_reward=mean_reward,
        ).SerializeToString()
        if len(meta) < HEADER_SIZE:
            return _framed(meta).ljust(HEADER_SIZE, b"\x00")
        shown = shown[:-1]
