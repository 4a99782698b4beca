"""Encodes our answers to a player. Actions are written into a template that numpy repeats for every agent."""

from __future__ import annotations

from collections.abc import Iterable

import mlagents_envs
import numpy as np

from trajtrainer.core.protobuf import VARINT, delimited, key, varint
from trajtrainer.core.spec import ActionSpec
from trajtrainer.core.steps import FloatArray, IntArray
from trajtrainer.core.version import API_VERSION
from trajtrainer.envs.unity.behaviors import capabilities
from trajtrainer.envs.unity.faults import ActionError
from trajtrainer.envs.unity.proto import communicator_pb2 as pb

_STATUS_OK = 200
_STATUS_GOODBYE = 400

# Field numbers of UnityMessageProto and the messages in it.
_UNITY_INPUT = 3
_RL_INPUT = 1
_AGENT_ACTIONS, _COMMAND, _SIDE_CHANNEL = 1, 4, 5
_KEY, _VALUE = 1, 2
_ACTION = 1
_DEPRECATED_ACTIONS, _CONTINUOUS_ACTIONS, _DISCRETE_ACTIONS = 1, 6, 7

_HEADER = pb.UnityMessageProto(header=pb.HeaderProto(status=_STATUS_OK)).SerializeToString()


def initialization(seed: int, num_areas: int) -> bytes:
    """Return the answer to the player's first message (docs/explanation/mlagents-behavior.md#handshake)."""
    return pb.UnityMessageProto(
        header=pb.HeaderProto(status=_STATUS_OK),
        unity_input=pb.UnityInputProto(
            rl_initialization_input=pb.UnityRLInitializationInputProto(
                seed=seed,
                communication_version=API_VERSION,
                # Unity compares this with the versions of mlagents-envs that it knows, and warns about others.
                package_version=mlagents_envs.__version__,
                capabilities=capabilities(),
                num_areas=num_areas,
            )
        ),
    ).SerializeToString()


def goodbye() -> bytes:
    """Return a message that makes the player quit, or makes the Editor leave play mode."""
    return pb.UnityMessageProto(header=pb.HeaderProto(status=_STATUS_GOODBYE)).SerializeToString()


def reset(side_channel: bytes) -> bytes:
    """Return a message that asks the player to reset the scene, which starts a new episode for every agent."""
    return _message(key(_COMMAND, VARINT) + varint(pb.RESET) + _side_channel(side_channel))


def step(behaviors: Iterable[bytes], side_channel: bytes) -> bytes:
    """Return a message that asks the player to continue. ``behaviors`` are results of ``ActionEncoder.encode``."""
    return _message(b"".join(behaviors) + _side_channel(side_channel))


def _side_channel(side_channel: bytes) -> bytes:
    return delimited(_SIDE_CHANNEL, side_channel) if side_channel else b""


def _message(rl_input: bytes) -> bytes:
    return _HEADER + delimited(_UNITY_INPUT, delimited(_RL_INPUT, rl_input))


class ActionEncoder:
    """Encodes the actions of one behavior's agents.

    As in ML-Agents, actions are sent twice: in the current fields, and as floats in the field that packages before 2.0
    read. Each discrete action is a varint padded to the length of the branch's largest action, so that all agents'
    actions have the same length. All protobuf readers accept padded varints.
    """

    def __init__(self, behavior_id: str, action_spec: ActionSpec) -> None:
        self._name = behavior_id
        self._key = delimited(_KEY, behavior_id.encode())
        self._continuous_size = action_spec.continuous_size
        self._branches = np.array(action_spec.discrete_branches, np.int32)
        self._widths = [len(varint(branch - 1)) for branch in action_spec.discrete_branches]
        sizes = 4 * self._continuous_size, 4 * len(self._widths), sum(self._widths)
        continuous, floats_of_discrete, discrete = sizes
        action, self._deprecated = _zeros(b"", _DEPRECATED_ACTIONS, continuous + floats_of_discrete)
        action, self._continuous = _zeros(action, _CONTINUOUS_ACTIONS, continuous)
        action, self._discrete = _zeros(action, _DISCRETE_ACTIONS, discrete)
        record = delimited(_ACTION, action)
        self._template = np.frombuffer(record, np.uint8)
        head = len(record) - len(action)
        self._deprecated += head
        self._continuous += head
        self._discrete += head

    def encode(self, continuous: FloatArray, discrete: IntArray) -> bytes:
        """Return an entry of the map ``agent_actions``.

        Args:
            continuous: f32 [N, C].
            discrete: i32 [N, K], each from 0 to the size of its branch - 1.

        Raises:
            ActionError: a shape is wrong, or a choice is outside its branch.
        """
        count, size = len(continuous), 4 * self._continuous_size
        expected = (count, self._continuous_size), (count, len(self._widths))
        if (continuous.shape, discrete.shape) != expected:
            raise ActionError(
                f"Behavior {self._name!r}: found continuous actions of shape {continuous.shape} and discrete actions "
                f"of shape {discrete.shape}, expected {expected[0]} and {expected[1]}."
            )
        if self._widths and count and ((discrete < 0) | (discrete >= self._branches)).any():
            raise ActionError(
                f"Behavior {self._name!r}: found discrete actions from {discrete.min(axis=0).tolist()} to "
                f"{discrete.max(axis=0).tolist()}, but its branches have {self._branches.tolist()} choices, "
                "counted from 0."
            )
        actions = np.empty((count, len(self._template)), np.uint8)
        actions[:] = self._template
        if self._continuous_size:
            floats = actions[:, self._continuous : self._continuous + size]
            floats[:] = np.ascontiguousarray(continuous, "<f4").view(np.uint8)
            actions[:, self._deprecated : self._deprecated + size] = floats
        if self._widths:
            begin = self._deprecated + size
            floats = np.ascontiguousarray(discrete, "<f4").view(np.uint8)
            actions[:, begin : begin + floats.shape[1]] = floats
            place = self._discrete
            for branch, width in enumerate(self._widths):
                for digit in range(width):
                    more = 0x80 if digit < width - 1 else 0
                    actions[:, place] = (discrete[:, branch] >> 7 * digit) & 0x7F | more
                    place += 1
        return delimited(_AGENT_ACTIONS, self._key + delimited(_VALUE, actions.tobytes()))


def _zeros(message: bytes, number: int, size: int) -> tuple[bytes, int]:
    """Append a field of ``size`` zeros, or nothing for 0. Also return the position of the first zero."""
    message += delimited(number, bytes(size)) if size else b""
    return message, len(message) - size
