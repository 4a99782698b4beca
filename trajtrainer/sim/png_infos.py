"""Writes the records of agents that send pictures as PNG: slow by nature, so the messages are built plainly."""

from __future__ import annotations

import numpy as np

from trajtrainer.core.spec import BehaviorSpec, ObservationSpec
from trajtrainer.core.steps import FloatArray, LongArray, ObservationArray
from trajtrainer.sim.simulation import Observations, SimulationStep
from trajtrainer.sim.style import WireStyle
from trajtrainer.unity.pictures import channel_mapping, encode
from trajtrainer.unity.proto import communicator_pb2 as pb

COMPRESSION_LEVEL = 1


class PngInfoWriter:
    """An InfoWriter for behaviours with pictures that are compressed. Same arguments as RowInfoWriter."""

    def __init__(
        self, spec: BehaviorSpec, style: WireStyle, ids: LongArray, *, masked: bool, groups: LongArray | None = None
    ) -> None:
        self._spec = spec
        self._style = style
        self._ids = [int(i) for i in ids]
        self._groups = None if groups is None else groups.tolist()
        self._no_mask = [False] * sum(spec.action_spec.discrete_branches) if masked else []

    def write(self, step: SimulationStep) -> list[bytes]:
        """Return the pieces of the message about a step."""
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
            info.observations.append(self._observation(sensor, column[row : row + 1]))
        return info

    def _observation(self, sensor: ObservationSpec, value: ObservationArray) -> pb.ObservationProto:
        style = self._style
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
