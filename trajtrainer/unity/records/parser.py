"""The general way to read a behaviour's agents: protobuf and one agent at a time. For PNG and for unusual senders."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from trajtrainer.core.errors import InvalidDataError
from trajtrainer.core.steps import ObservationArray, StepBatch
from trajtrainer.unity import pictures
from trajtrainer.unity.behaviors import Behavior, Sensor
from trajtrainer.unity.faults import InvalidObservationError
from trajtrainer.unity.proto import columnar_pb2
from trajtrainer.unity.proto.communicator_pb2 import PNG, UnityRLOutputProto
from trajtrainer.unity.records.wire import check_records


def parse_records(data: bytes, behavior: Behavior) -> StepBatch:
    """Read a serialized ``ListAgentInfoProto`` in any form that protobuf allows. Agent ids are the player's own.

    Raises:
        InvalidDataError: not protobuf, or observations or masks that do not fit what the behaviour announced.
    """
    agents = _agents(data, behavior)
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
            _read_mask(agent, mask[row], behavior)
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


def _agents(data: bytes, behavior: Behavior) -> list[columnar_pb2.AgentInfo]:
    check_records(data, behavior.id)
    try:
        # Writing anew packs what was sent unpacked and merges what was sent in parts, as `bytes` fields need it.
        usual = UnityRLOutputProto.ListAgentInfoProto.FromString(data)
        usual.DiscardUnknownFields()
        return list(columnar_pb2.AgentInfoList.FromString(usual.SerializeToString()).value)
    except DecodeError as error:
        raise InvalidDataError(f"Behavior {behavior.id!r}: its agents are no valid protobuf ({error}).") from error


def _read_mask(agent: columnar_pb2.AgentInfo, row: NDArray[np.bool_], behavior: Behavior) -> None:
    if not agent.action_mask:
        return
    if len(agent.action_mask) != len(row):
        raise InvalidDataError(
            f"Behavior {behavior.id!r}, agent {agent.id} sent an action mask of {len(agent.action_mask)} entries; "
            f"expected none or {len(row)}, one per action of {behavior.spec.action_spec.discrete_branches}."
        )
    row[:] = np.frombuffer(agent.action_mask, np.bool_)


def _observations(agents: Sequence[columnar_pb2.AgentInfo], sensor: Sensor, behavior: Behavior) -> ObservationArray:
    """Return [N, *O] of the sensor's own type."""
    found: list[NDArray[Any]] = []
    for agent in agents:
        try:
            found.append(read_observation(agent.observations[sensor.index], sensor))
        except pictures.PictureError as error:
            raise InvalidObservationError(
                f"Behavior {behavior.id!r}, agent {agent.id}, {sensor.label}: {error}."
            ) from error
    return np.stack(found) if found else np.empty((0, *sensor.spec.shape), sensor.dtype)


def read_observation(observation: columnar_pb2.Observation, sensor: Sensor) -> ObservationArray:
    """Return one observation of one agent, [*O] of the sensor's own type.

    Raises:
        PictureError: it does not fit the sensor.
    """
    shape = tuple(observation.shape)
    if shape != sensor.wire_shape:
        raise pictures.PictureError(f"it has the shape {shape}, but the behavior announced {sensor.wire_shape}")
    if observation.compression_type == PNG:
        picture = pictures.decode(
            observation.compressed_data, observation.compressed_channel_mapping, sensor.spec.shape
        )
    else:
        picture = _floats(observation, sensor)
    if picture.dtype == sensor.dtype:
        return picture
    if picture.dtype == np.uint8:
        return picture.astype(np.float32) / np.float32(255.0)
    raise pictures.PictureError(
        "it came as PNG at first and now does not, or with another channel mapping; its compression must not change"
    )


def _floats(observation: columnar_pb2.Observation, sensor: Sensor) -> ObservationArray:
    numbers = np.frombuffer(observation.float_data.data, "<f4").astype(np.float32, copy=False)
    expected = int(np.prod(sensor.wire_shape))
    if len(numbers) != expected:
        raise pictures.PictureError(
            f"it holds {len(numbers)} numbers, but its shape {sensor.wire_shape} needs {expected}"
        )
    numbers = numbers.reshape(sensor.float_shape)
    return np.moveaxis(numbers, -1, 0) if sensor.channels_last else numbers
