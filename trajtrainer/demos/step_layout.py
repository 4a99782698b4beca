"""The byte layout of one recorded step, so that numpy can read many of one layout at once.

A step of a ``.demo`` file is an agent's record as players send it (``unity/record_layout.py``) and the action that
answered it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trajtrainer.core.spec import ActionSpec
from trajtrainer.unity.record_layout import (
    LayoutReader,
    ObservationBlock,
    RecordLayout,
    UnusualRecordError,
    Varint,
    read_layout,
)

# The tags of AgentInfoActionPairProto and AgentActionProto: field number << 3 | wire type.
_ACTION = 0x12
_DEPRECATED_ACTIONS = 0x0A
_VALUE = 0x25
_CONTINUOUS_ACTIONS = 0x32
_DISCRETE_ACTIONS = 0x3A


class ActionPlaces(NamedTuple):
    """The places of a step's actions. Packages before 2.0 wrote discrete ones as floats.

    Attributes:
        continuous: offset of the first f32, -1 without.
        discrete: the varints.
        discrete_floats: offset of the first f32, -1 without.
    """

    continuous: int = -1
    discrete: tuple[Varint, ...] = ()
    discrete_floats: int = -1


@dataclass(frozen=True, slots=True, eq=False)
class StepLayout:
    """Offsets count from the first byte of the step.

    Attributes:
        info: the agent's record.
        action: None without one.
        mask, template: u8 [size]; a step is of this layout where ``byte & mask == template``.
    """

    info: RecordLayout
    action: ActionPlaces | None
    mask: NDArray[np.uint8]
    template: NDArray[np.uint8]

    def fits(self, steps: NDArray[np.uint8]) -> NDArray[np.bool_]:
        """Return which of some steps of this size are of this layout.

        Args:
            steps: u8 [n, size].
        """
        found: NDArray[np.bool_] = ((steps & self.mask) == self.template).all(axis=1)
        return found


def read_step_layout(step: bytes, block: ObservationBlock, actions: ActionSpec) -> StepLayout:
    """Find the layout of a step.

    Raises:
        UnusualRecordError: it is not in the usual form.
    """
    info = read_layout(step, 0, block, sum(actions.discrete_branches))
    mask = np.zeros(len(step), np.uint8)
    for segment in info.segments:
        mask[segment.offset : segment.offset + segment.size] = segment.mask
    places: ActionPlaces | None = None
    if info.size < len(step):
        # A byte more that is no tag, so that every look ahead is inside.
        reader = LayoutReader(step[info.size :] + b"\x00", 0)
        try:
            places = _places(reader, info.size, len(step) - info.size, actions)
        except IndexError as error:
            raise UnusualRecordError from error
        mask[info.size :] = np.frombuffer(bytes(reader.mask), np.uint8)
    return StepLayout(info, places, mask, np.frombuffer(step, np.uint8) & mask)


def _places(reader: LayoutReader, start: int, size: int, actions: ActionSpec) -> ActionPlaces | None:
    """Read an action that stands at ``start``, or None where it has no numbers."""
    reader.expect(reader.tag(_ACTION))
    length = reader.varint_value()
    reader.expect(reader.at + length == size)
    old, old_size = _floats(reader, _DEPRECATED_ACTIONS, size)
    reader.float32(_VALUE)
    continuous, continuous_size = _floats(reader, _CONTINUOUS_ACTIONS, size)
    discrete = []
    if reader.tag(_DISCRETE_ACTIONS):
        end = reader.varint_value() + reader.at
        while reader.at < end:
            place = reader.varint_number()
            discrete.append(Varint(start + place.offset, place.size))
        reader.expect(reader.at == end)
    reader.expect(reader.at == size)
    expected = actions.continuous_size, actions.discrete_size
    if (continuous_size, len(discrete)) == expected:
        return ActionPlaces(start + continuous, tuple(discrete))
    reader.expect(not continuous_size and not discrete)
    if not old_size:
        return None
    reader.expect(old_size == sum(expected))
    return ActionPlaces(start + old, (), start + old + 4 * expected[0])


def _floats(reader: LayoutReader, tag: int, end: int) -> tuple[int, int]:
    """Return where packed floats begin, and how many they are."""
    if not reader.tag(tag):
        return 0, 0
    size = reader.varint_value()
    reader.expect(size % 4 == 0 and reader.at + size <= end)
    return reader.advance(size, 0), size // 4
