"""The byte layout of one agent's record, so that numpy can read many records of one layout at once.

A player writes every agent's record the same way: fields in the order of their numbers, zeros left out, floats packed.
So two agents' records differ in their values only, at the same places, unless one has a zero where the other has
none, or a longer id. A layout holds the places of the values and what all other bytes are.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trajtrainer.envs.unity.proto.communicator_pb2 import ObservationProto
from trajtrainer.envs.unity.records.wire import varint

# The tags of AgentInfoProto as bytes of the message: field number << 3 | wire type.
_RECORD = 0x0A
_REWARD = 0x3D
_DONE = 0x40
_MAX_STEP_REACHED = 0x48
_ID = 0x50
_ACTION_MASK = 0x5A
_OBSERVATION = b"\x6a"
_GROUP_ID = 0x70
_GROUP_REWARD = 0x7D
_FLOAT_DATA = b"\x22"
_FLOATS = b"\x0a"

_CONTINUED = 0x80  # the bit of a varint's byte that says that another follows
_BOOL_BITS = 0xFE  # a bool's byte is 0 or 1 where these are zero
_LENGTH_BITS = 35
_LONGEST_VARINT = 4  # 28 bits, never negative; longer ones are left to protobuf
# Values longer than this split a comparison in two, so that no picture is compared with a mask of zeros.
_LONGEST_GAP = 64
_FIRST_STEP = 16


class UnusualRecordError(Exception):
    """Not written as players write records. It may still be valid protobuf."""


class Varint(NamedTuple):
    """The place of a whole number. ``size`` 0: left out, so the number is 0."""

    offset: int
    size: int


class Segment(NamedTuple):
    """A stretch of a record where ``byte & mask == template``."""

    offset: int
    size: int
    mask: NDArray[np.uint8]
    template: bytes


class ObservationBlock(NamedTuple):
    """All observations of an agent as bytes of its record.

    Attributes:
        template: the bytes, with zeros for floats.
        mask: 255 for the bytes that are the same in every record, 0 for floats.
        floats: where each sensor's floats begin.
    """

    template: bytes
    mask: bytes
    floats: tuple[int, ...]

    @classmethod
    def of(cls, observations: Iterable[ObservationProto]) -> ObservationBlock:
        """The block of an agent whose observations are all uncompressed."""
        template, mask, floats = b"", b"", []
        for observation in observations:
            size = 4 * len(observation.float_data.data)
            before = ObservationProto(shape=observation.shape).SerializeToString()
            after = ObservationProto(
                compressed_channel_mapping=observation.compressed_channel_mapping,
                dimension_properties=observation.dimension_properties,
                observation_type=observation.observation_type,
                name=observation.name,
            ).SerializeToString()
            before += _FLOAT_DATA + varint(1 + len(varint(size)) + size) + _FLOATS + varint(size)
            before = _OBSERVATION + varint(len(before) + size + len(after)) + before
            floats.append(len(template) + len(before))
            template += before + bytes(size) + after
            mask += b"\xff" * len(before) + bytes(size) + b"\xff" * len(after)
        return cls(template, mask, tuple(floats))


@dataclass(frozen=True, slots=True, eq=False)
class RecordLayout:
    """Offsets count from the record's first byte, its tag; -1: left out, so the value is 0 or nothing is forbidden.

    Attributes:
        size: bytes of the record, with tag and length.
        reward, group_reward: offsets of one f32.
        id, group: the varints.
        done, interrupted: the same for all records of a layout.
        action_mask: offset of one bool per action.
        floats: offset of each sensor's f32s.
        segments: the bytes that make the layout.
        head_size, head_mask, head_template: the record as one number (little-endian), ``head & mask == template``;
            only its first bytes, up to the first floats, if it is long. Those distinguish layouts but prove none.
    """

    size: int
    reward: int
    group_reward: int
    id: Varint
    group: Varint
    done: bool
    interrupted: bool
    action_mask: int
    floats: tuple[int, ...]
    segments: tuple[Segment, ...]
    head_size: int
    head_mask: int
    head_template: int

    @property
    def head_is_all(self) -> bool:
        """Whether the fixed bytes are the whole record."""
        return self.head_size == self.size

    def run_length(self, data: bytes, position: int) -> int:
        """How many records of this layout follow one another from ``position`` on."""
        available = (len(data) - position) // self.size
        count, step = 0, _FIRST_STEP
        while count < available:
            # Ever longer steps: looking at the whole rest after each of many short runs would be quadratic.
            step = min(step, available - count)
            same = self._same(data, position + count * self.size, step)
            if same < step:
                return count + same
            count += step
            step *= 2
        return count

    def _same(self, data: bytes, position: int, count: int) -> int:
        """How many of the next ``count`` records are of this layout."""
        for segment in self.segments:
            shape, strides = (count, segment.size), (self.size, 1)
            found: NDArray[np.uint8] = np.ndarray(shape, np.uint8, data, position + segment.offset, strides)
            same = (found & segment.mask == np.frombuffer(segment.template, np.uint8)).all(axis=1)
            if not same.all():
                count = int(same.argmin())
        return count


def read_layout(data: bytes, position: int, block: ObservationBlock, mask_size: int) -> RecordLayout:
    """Find the layout of the record at ``position``.

    Raises:
        UnusualRecordError: the record is cut off, or not in the usual form: known fields in ascending order, each once,
            floats packed, the observations of ``block``.
    """
    try:
        return LayoutReader(data, position).layout(block, mask_size)
    except IndexError as error:
        raise UnusualRecordError from error


class LayoutReader:
    """Reads one record from its first byte to its last and notes which bits of it are fixed.

    Attributes:
        at: the place of the next byte.
        mask: of the bytes read.

    Every method raises UnusualRecordError or IndexError where the record is another or at its end.
    """

    def __init__(self, data: bytes, position: int) -> None:
        self._record = data[position:]
        self.at = 0
        self.mask = bytearray()

    def layout(self, block: ObservationBlock, mask_size: int) -> RecordLayout:
        """Read an agent's record."""
        self.expect(self.tag(_RECORD))
        length = self.varint_value()
        end = self.at + length
        self.expect(end <= len(self._record))
        self._record = self._record[:end] + b"\x00"  # not a tag, so that looking ahead stays inside
        reward = self.float32(_REWARD)
        done = self._true(_DONE)
        interrupted = self._true(_MAX_STEP_REACHED)
        agent_id = self.varint(_ID)
        action_mask = self._action_mask(mask_size)
        floats = self._observations(block)
        group = self.varint(_GROUP_ID)
        group_reward = self.float32(_GROUP_REWARD)
        self.expect(self.at == end)
        template = bytes(value & mask for value, mask in zip(self._record, self.mask, strict=False))
        segments = []  # The record is split at its long values.
        fixed = np.flatnonzero(np.frombuffer(self.mask, np.uint8))
        for part in np.split(fixed, np.flatnonzero(np.diff(fixed) > _LONGEST_GAP) + 1):
            begin, stop = int(part[0]), int(part[-1]) + 1
            mask = np.frombuffer(bytes(self.mask[begin:stop]), np.uint8)
            segments.append(Segment(begin, stop - begin, mask, template[begin:stop]))
        head_size = end if len(segments) == 1 else floats[0]
        return RecordLayout(
            size=end,
            reward=reward,
            group_reward=group_reward,
            id=agent_id,
            group=group,
            done=done,
            interrupted=interrupted,
            action_mask=action_mask,
            floats=floats,
            segments=tuple(segments),
            head_size=head_size,
            head_mask=int.from_bytes(self.mask[:head_size], "little"),
            head_template=int.from_bytes(template[:head_size], "little"),
        )

    @staticmethod
    def expect(usual: bool) -> None:
        """Reject what is not usual."""
        if not usual:
            raise UnusualRecordError

    def advance(self, count: int, mask: int) -> int:
        """Step over ``count`` bytes of which the bits of ``mask`` are fixed and return where they begin."""
        begin = self.at
        self.mask += bytes([mask]) * count
        self.at += count
        return begin

    def tag(self, tag: int) -> bool:
        """Whether a field of this tag comes, and step over the tag."""
        if self._record[self.at] != tag:
            return False
        self.advance(1, 0xFF)
        return True

    def varint_value(self) -> int:
        """Read a number that is the same in every record."""
        value = shift = 0
        while True:
            byte = self._record[self.at]
            self.advance(1, 0xFF)
            value |= byte % _CONTINUED << shift
            if byte < _CONTINUED:
                return value
            shift += 7
            self.expect(shift < _LENGTH_BITS)

    def float32(self, tag: int) -> int:
        """The place of the number of a field with this tag, -1 without one."""
        return self.advance(4, 0) if self.tag(tag) else -1

    def _true(self, tag: int) -> bool:
        if not self.tag(tag):
            return False
        self.expect(self._record[self.at] == 1)
        self.advance(1, 0xFF)
        return True

    def varint(self, tag: int) -> Varint:
        """The place of the number of a field of this tag."""
        return self.varint_number() if self.tag(tag) else Varint(self.at, 0)

    def varint_number(self) -> Varint:
        """The place of a number that differs from record to record."""
        size = 1
        while self._record[self.at + size - 1] >= _CONTINUED:
            size += 1
        self.expect(size <= _LONGEST_VARINT)
        return Varint(self.advance(size, _CONTINUED), size)

    def _action_mask(self, mask_size: int) -> int:
        if not self.tag(_ACTION_MASK):
            return -1
        self.expect(self.varint_value() == mask_size)
        self.expect(not any(value & _BOOL_BITS for value in self._record[self.at : self.at + mask_size]))
        return self.advance(mask_size, _BOOL_BITS)

    def _observations(self, block: ObservationBlock) -> tuple[int, ...]:
        begin, size = self.at, len(block.template)
        found = np.frombuffer(self._record[begin : begin + size], np.uint8)
        self.expect(len(found) == size and (found & np.frombuffer(block.mask, np.uint8)).tobytes() == block.template)
        self.mask += block.mask
        self.at += size
        return tuple(begin + offset for offset in block.floats)
