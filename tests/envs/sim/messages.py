"""Messages as protobuf builds them, to compare with those that the player writes by hand; and recorded ones."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from trajtrainer.core.spec import BehaviorSpec, ObservationType
from trajtrainer.core.steps import BoolArray, FloatArray, LongArray
from trajtrainer.envs.sim.simulation import Observations, SimulationStep
from trajtrainer.envs.sim.wire import WireStyle
from trajtrainer.envs.unity.proto import communicator_pb2 as pb

InfoList = pb.UnityRLOutputProto.ListAgentInfoProto


def built(
    spec: BehaviorSpec, style: WireStyle, ids: LongArray, step: SimulationStep, groups: LongArray | None = None
) -> InfoList:
    """What the records of a step should be, field by field."""
    n = len(ids)
    branches = 0 if step.mask is None else sum(spec.action_spec.discrete_branches)
    nothing = np.zeros((n, branches), dtype=np.bool_)
    mask = nothing if step.mask is None else step.mask
    out = InfoList()

    def add_group(info: pb.AgentInfoProto, agent: int, row: int, reward: FloatArray | None) -> None:
        if groups is not None:
            info.group_id = groups[agent]
            info.group_reward = 0.0 if reward is None else reward[row]

    for row, agent in enumerate(step.ended.tolist()):
        info = _info(spec, style, int(ids[agent]), row, step.ended_observations, nothing[agent])
        info.reward, info.done, info.max_step_reached = step.ended_reward[row], True, bool(step.interrupted[row])
        add_group(info, agent, row, step.ended_group_reward)
        out.value.append(info)
    for row, agent in enumerate(range(n) if step.deciding is None else step.deciding.tolist()):
        info = _info(spec, style, int(ids[agent]), row, step.observations, mask[row])
        info.reward = step.reward[row]
        add_group(info, agent, row, step.group_reward)
        out.value.append(info)
    return out


def _info(
    spec: BehaviorSpec, style: WireStyle, identity: int, row: int, columns: Observations, mask: BoolArray
) -> pb.AgentInfoProto:
    info = pb.AgentInfoProto(id=identity, action_mask=mask.tolist())
    for sensor, column in zip(spec.observation_specs, columns, strict=True):
        value = column[row]
        if value.dtype == np.uint8:
            value = value.astype(np.float32) / np.float32(255.0)
        shape = value.shape
        if value.ndim == 3:  # the floats of every package stand so, whatever it announces
            value = value.transpose(1, 2, 0)
            shape = value.shape if style.channels_last else shape
        observation = info.observations.add(shape=shape)
        observation.float_data.data.extend(value.ravel().tolist())
        if style.api_minor >= 5:
            properties = [int(p) for p in sensor.dimension_property]
            if value.ndim == 3 and style.channels_last:
                properties = [*properties[1:], properties[0]]
            observation.dimension_properties.extend(properties)
            observation.name = sensor.name
        if sensor.observation_type is ObservationType.GOAL_SIGNAL:
            observation.observation_type = pb.GOAL_SIGNAL
    return info


def recorded(path: Path) -> Iterator[tuple[bytes, bytes]]:
    """The messages of a recording: ``b"<"`` from Unity or ``b">"`` to Unity, and the bytes."""
    data = path.read_bytes()
    at = 0
    while at < len(data):
        direction = data[at : at + 1]
        (size,) = struct.unpack_from("<I", data, at + 1)
        at += 5 + size
        yield direction, data[at - size : at]
