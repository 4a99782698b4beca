"""Builds a player's messages with protobuf, and reads them the slow and obvious way."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trajtrainer.core.steps import StepBatch
from trajtrainer.envs.unity.proto.communicator_pb2 import (
    AgentInfoProto,
    BrainParametersProto,
    ObservationProto,
    UnityMessageProto,
)

BEHAVIOR = "Walker?team=0"


@dataclass(frozen=True)
class Agent:
    """One record. ``observations`` holds one flat list of numbers per sensor."""

    id: int = 0
    observations: tuple[tuple[float, ...], ...] = ((0.5, -1.0),)
    reward: float = 0.0
    done: bool = False
    interrupted: bool = False
    mask: tuple[bool, ...] = ()
    group: int = 0
    group_reward: float = 0.0


@dataclass(frozen=True)
class Space:
    """What the agents of a behavior see and do."""

    shapes: tuple[tuple[int, ...], ...] = ((2,),)
    continuous_size: int = 2
    branches: tuple[int, ...] = ()
    name: str = BEHAVIOR
    properties: tuple[tuple[int, ...], ...] = field(default=())

    def parameters(self) -> BrainParametersProto:
        parameters = BrainParametersProto(brain_name=self.name)
        parameters.action_spec.num_continuous_actions = self.continuous_size
        parameters.action_spec.num_discrete_actions = len(self.branches)
        parameters.action_spec.discrete_branch_sizes.extend(self.branches)
        return parameters

    def record(self, agent: Agent) -> AgentInfoProto:
        info = AgentInfoProto(
            id=agent.id,
            reward=agent.reward,
            done=agent.done,
            max_step_reached=agent.interrupted,
            action_mask=agent.mask,
            group_id=agent.group,
            group_reward=agent.group_reward,
        )
        for index, numbers in enumerate(agent.observations):
            shape = self.shapes[index]
            observation = ObservationProto(
                shape=shape, dimension_properties=[1] * len(shape), name=f"Sensor{index}_size{len(numbers)}"
            )
            observation.float_data.data.extend(numbers)
            info.observations.append(observation)
        return info


def message(space: Space, agents: Iterable[Agent], *, announce: bool = True, side_channel: bytes = b"") -> bytes:
    return message_of(
        {space.name: [space.record(agent) for agent in agents]}, [space] if announce else [], side_channel
    )


def message_of(
    records: dict[str, list[AgentInfoProto]], announced: Sequence[Space] = (), side_channel: bytes = b""
) -> bytes:
    result = UnityMessageProto()
    result.header.status = 200
    output = result.unity_output
    output.rl_output.side_channel = side_channel
    for name, infos in records.items():
        output.rl_output.agentInfos[name].value.extend(infos)
    for space in announced:
        output.rl_initialization_output.brain_parameters.append(space.parameters())
    return result.SerializeToString()


def oracle(infos: Sequence[AgentInfoProto], space: Space) -> StepBatch:
    """The agents one by one: terminal ones first, each kind in the order of the message."""
    ordered = [info for info in infos if info.done] + [info for info in infos if not info.done]
    num_terminal = sum(info.done for info in infos)
    masks = [
        list(info.action_mask)
        if info.action_mask and space.branches and not info.done
        else [False] * sum(space.branches)
        for info in ordered
    ]
    return StepBatch(
        agent=np.array([info.id for info in ordered], np.int64),
        obs=tuple(
            np.array([info.observations[index].float_data.data for info in ordered], np.float32).reshape(-1, *shape)
            for index, shape in enumerate(space.shapes)
        ),
        reward=np.array([info.reward for info in ordered], np.float32),
        group=np.array([info.group_id for info in ordered], np.int32),
        group_reward=np.array([info.group_reward for info in ordered], np.float32),
        mask=np.array(masks, np.bool_).reshape(len(ordered), sum(space.branches)),
        interrupted=np.array([info.max_step_reached for info in ordered[:num_terminal]], np.bool_),
        num_terminal=num_terminal,
    )


def assert_same(found: StepBatch, expected: StepBatch) -> None:
    """Equal values, shapes and types, bit for bit."""
    assert found.num_terminal == expected.num_terminal
    assert len(found.obs) == len(expected.obs)
    for name in ("agent", "reward", "group", "group_reward", "mask", "interrupted"):
        _assert_same_array(name, getattr(found, name), getattr(expected, name))
    for index, column in enumerate(found.obs):
        _assert_same_array(f"obs {index}", column, expected.obs[index])


def _assert_same_array(name: str, found: NDArray[Any], expected: NDArray[Any]) -> None:
    assert found.dtype == expected.dtype, name
    assert found.shape == expected.shape, name
    assert found.tobytes() == expected.tobytes(), name


def field_of(number: int, content: bytes) -> bytes:
    """A length-delimited field, written by hand."""
    return varint(number << 3 | 2) + varint(len(content)) + content


def varint(value: int) -> bytes:
    encoded = b""
    while value > 0x7F:
        encoded += bytes([value & 0x7F | 0x80])
        value >>= 7
    return encoded + bytes([value])


def unpacked(agent: Agent, space: Space) -> bytes:
    """A record as a sender writes it that packs nothing, with fields out of order and one that nobody knows."""
    record = b"".join(varint(11 << 3) + bytes([forbidden]) for forbidden in agent.mask)
    for index, numbers in enumerate(agent.observations):
        floats = b"".join(varint(1 << 3 | 5) + struct.pack("<f", number) for number in numbers)
        shape = b"".join(varint(1 << 3) + varint(size) for size in space.shapes[index])
        record += field_of(13, field_of(4, floats) + shape)
    record += varint(99 << 3) + b"\x07"
    record += varint(10 << 3) + varint(agent.id) + varint(7 << 3 | 5) + struct.pack("<f", agent.reward)
    record += varint(8 << 3) + bytes([agent.done]) + varint(9 << 3) + bytes([agent.interrupted])
    record += varint(14 << 3) + varint(agent.group) + varint(15 << 3 | 5) + struct.pack("<f", agent.group_reward)
    return record
