"""Converts a player's messages to columns.

This creates no Python object per agent and no Python float per number, unless the player sends PNG or writes its
messages in a form that no Unity package uses.
"""

from __future__ import annotations

import contextlib
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from itertools import islice

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from trajtrainer.core.errors import InvalidDataError
from trajtrainer.core.protobuf import UnusualRecordError, fields
from trajtrainer.core.spec import BehaviorId, BehaviorSpec
from trajtrainer.core.steps import WORKER_SHIFT, StepBatch
from trajtrainer.envs.unity.behaviors import PictureOrder, UnityBehavior, announced
from trajtrainer.envs.unity.gate import Gate
from trajtrainer.envs.unity.proto import communicator_pb2 as pb
from trajtrainer.envs.unity.proto.columnar_pb2 import UnityMessage
from trajtrainer.envs.unity.records import RecordReader, check_count, check_records, parse_records

STATUS_OK = 200
# Far more than any real game needs. Parsing a larger message would take minutes, and block signal handlers meanwhile.
_MOST_BEHAVIORS = 256
_MOST_ENTRIES = 10_000
# Shorter messages are parsed without inspecting them first, because they cannot become large objects.
_LOOKED_INTO_FROM = 1 << 20
_UNITY_OUTPUT = 2
_RL_OUTPUTS = (1, 2)
_RECORD = 1


@dataclass(slots=True)
class DecodedMessage:
    """The content of a player's message.

    Attributes:
        status: status in the header; anything but 200 is a goodbye.
        steps: behavior id -> agents, in the order of the message. Behaviors without agents are left out.
        new_specs: specs of behaviors whose agents appear for the first time.
        new_raw_images: new behaviors that have uncompressed images with several channels.
        side_channel: frames of the side channels.
    """

    status: int
    steps: dict[str, StepBatch] = field(default_factory=dict)
    new_specs: dict[str, BehaviorSpec] = field(default_factory=dict)
    new_raw_images: set[str] = field(default_factory=set)
    side_channel: bytes = b""


class MessageDecoder:
    """Decodes the messages of one player in order, and learns the specs of its behaviors from them.

    Args:
        worker: number of the worker, which becomes part of the agent ids.
        order: dimension order of the player's pictures.

    Attributes:
        order: as given to the constructor or to ``start_over``.
    """

    def __init__(self, worker: int, order: PictureOrder) -> None:
        self._worker_bits = np.int64(worker << WORKER_SHIFT)
        self.order = order
        self._behaviors: dict[str, tuple[UnityBehavior, RecordReader | None]] = {}
        self._gate = Gate("The player", "in the Unity project (CollectObservations, AddReward, AddGroupReward)")
        self._announcements: dict[str, pb.BrainParametersProto] = {}

    def decode(self, data: bytes) -> DecodedMessage:
        """Decode a serialized ``UnityMessageProto``.

        Raises:
            InvalidDataError: the message is invalid, does not fit what was announced, or contains NaN or infinities.
        """
        if len(data) >= _LOOKED_INTO_FROM:
            # Reject a message that protobuf would turn into millions of objects.
            outputs = (field for field in fields(data) if field.number == _UNITY_OUTPUT)
            parts = (part for output in outputs for part in fields(data, *output[1:3]) if part.number in _RL_OUTPUTS)
            entries = (entry for part in parts for entry in fields(data, *part[1:3]))
            if len(list(islice(entries, _MOST_ENTRIES + 1))) > _MOST_ENTRIES:
                raise InvalidDataError(
                    f"The player sent a message of {len(data)} bytes with more than {_MOST_ENTRIES} entries. Expected "
                    f"one per behavior, and at most {_MOST_BEHAVIORS} behaviors."
                )
        try:
            message = UnityMessage.FromString(data)
        except DecodeError as error:
            raise InvalidDataError(
                f"The player sent {len(data)} bytes that are not a valid message ({error})."
            ) from error
        decoded = DecodedMessage(message.header.status)
        if decoded.status != STATUS_OK:
            return decoded
        output = message.unity_output
        for announcement in output.rl_initialization_output.brain_parameters:
            try:
                parameters = pb.BrainParametersProto.FromString(announcement)
            except DecodeError as error:
                raise InvalidDataError(f"The player announced a behavior in an invalid message ({error}).") from error
            self._announcements[parameters.brain_name] = parameters
            if len(self._announcements) > _MOST_BEHAVIORS:
                raise InvalidDataError(
                    f"The player announces more than {_MOST_BEHAVIORS} behaviors, the last of them "
                    f"{parameters.brain_name!r}. Agents that learn the same behavior need the same Behavior Name."
                )
        # If a key occurs twice, its last entry counts, as in every protobuf map.
        for behavior_id, agents in {entry.key: entry.value for entry in output.rl_output.agent_infos}.items():
            if agents:
                if behavior_id not in self._behaviors:
                    behavior = self._meet(behavior_id, agents)
                    decoded.new_specs[behavior_id] = behavior.spec
                    if any(sensor.is_raw_image for sensor in behavior.sensors):
                        decoded.new_raw_images.add(behavior_id)
                decoded.steps[behavior_id] = self._read_agents(behavior_id, agents)
        if len(decoded.steps) > 1:
            check_count(sum(map(len, decoded.steps.values())), "The player")
        decoded.side_channel = output.rl_output.side_channel
        return decoded

    def raw_images(self, steps: Mapping[str, StepBatch]) -> dict[Hashable, NDArray[np.float32]]:
        """Return the uncompressed images with several channels in a message: sensor -> [N, C, H, W]."""
        return {
            (behavior_id, sensor.index): batch.obs[sensor.index].astype(np.float32, copy=False)
            for behavior_id, batch in steps.items()
            for sensor in self._behaviors[behavior_id][0].sensors
            if sensor.is_raw_image
        }

    def start_over(self, order: PictureOrder) -> None:
        """Read images in this dimension order from now on, and report all behaviors as new again."""
        self.order = order
        self._behaviors.clear()

    def _meet(self, behavior_id: str, agents: bytes) -> UnityBehavior:
        """Learn the spec of a behavior from its first agent, without parsing its other agents."""
        parameters = self._announcements.get(behavior_id)
        if parameters is None:
            raise InvalidDataError(
                f"The player sent agents of the behavior {behavior_id!r}, which it has not announced. "
                f"Announced: {', '.join(map(repr, self._announcements)) or 'none'}."
            )
        BehaviorId.parse(behavior_id)  # Validate the name here: a later error could not say which player sent it.
        record = next((field for field in fields(agents) if field.number == _RECORD), None)
        if record is None:
            raise InvalidDataError(f"Behavior {behavior_id!r}: its agents are not valid protobuf (no record).")
        check_records(agents[: record.stop], behavior_id)
        try:
            first = pb.AgentInfoProto.FromString(agents[record.start : record.stop])
        except DecodeError as error:
            raise InvalidDataError(f"Behavior {behavior_id!r}: its agents are not valid protobuf ({error}).") from error
        behavior = announced(parameters, first, self.order)
        reader = None
        if not any(sensor.compressed for sensor in behavior.sensors):
            reader = RecordReader(behavior)
        self._behaviors[behavior_id] = behavior, reader
        return behavior

    def _read_agents(self, behavior_id: str, agents: bytes) -> StepBatch:
        behavior, reader = self._behaviors[behavior_id]
        batch = None
        if reader is not None:
            with contextlib.suppress(UnusualRecordError):
                batch = reader.read(agents)
        if batch is None:
            batch = parse_records(agents, behavior)
        self._gate.check(behavior_id, behavior.spec, batch)
        batch.agent |= self._worker_bits
        return batch
