"""Reads recorded steps into columns: steps with the same byte layout at once, others (PNG, unusual writers) one by one.

Shape legend: N steps, C continuous actions, D sum of branch sizes, K discrete branches, O an observation's own shape.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import DTypeLike, NDArray

from trajtrainer.core.columns import ColumnEntry, Columns, Store, entries_of, entry_bytes, sensor_name, zeros
from trajtrainer.core.errors import InvalidDataError
from trajtrainer.core.numeric import first_not_finite
from trajtrainer.core.spec import ActionSpec, BehaviorSpec
from trajtrainer.envs.unity.behaviors import UnityBehavior, UnitySensor
from trajtrainer.envs.unity.pictures import PictureError, size_of
from trajtrainer.envs.unity.proto import columnar_pb2
from trajtrainer.envs.unity.proto.communicator_pb2 import AgentInfoActionPairProto
from trajtrainer.envs.unity.records.layout import (
    LayoutReader,
    ObservationBlock,
    RecordLayout,
    UnusualRecordError,
    Varint,
    read_layout,
)
from trajtrainer.envs.unity.records.reader import read_observation
from trajtrainer.envs.unity.records.wire import check_records

# The tags of AgentInfoActionPairProto and AgentActionProto: field number << 3 | wire type.
_ACTION = 0x12
_DEPRECATED_ACTIONS = 0x0A
_VALUE = 0x25
_CONTINUOUS_ACTIONS = 0x32
_DISCRETE_ACTIONS = 0x3A

ACTED = "acted"
_MOST_LAYOUTS = 256
_Bytes = NDArray[np.uint8]


class ActionPlaces(NamedTuple):
    """The places of a step's actions. Packages before 2.0 wrote discrete actions as floats.

    Attributes:
        continuous: offset of the first f32; -1 if there is none.
        discrete: places of the varints.
        discrete_floats: offset of the first f32; -1 if there is none.
    """

    continuous: int = -1
    discrete: tuple[Varint, ...] = ()
    discrete_floats: int = -1


@dataclass(frozen=True, slots=True, eq=False)
class StepLayout:
    """Where the values of a step are. Offsets count from its first byte.

    Attributes:
        info: layout of the agent's record.
        action: None if the step has no action.
        mask, template: u8 [size]; a step has this layout if ``byte & mask == template`` for all its bytes.
    """

    info: RecordLayout
    action: ActionPlaces | None
    mask: NDArray[np.uint8]
    template: NDArray[np.uint8]

    def fits(self, steps: NDArray[np.uint8]) -> NDArray[np.bool_]:
        """Which of the steps u8 [n, size] have this layout."""
        found: NDArray[np.bool_] = ((steps & self.mask) == self.template).all(axis=1)
        return found


def read_step_layout(step: bytes, block: ObservationBlock, actions: ActionSpec) -> StepLayout:
    """Find the layout of a step.

    Raises:
        UnusualRecordError: it does not have the usual form.
    """
    info = read_layout(step, 0, block, sum(actions.discrete_branches))
    mask = np.zeros(len(step), np.uint8)
    for segment in info.segments:
        mask[segment.offset : segment.offset + segment.size] = segment.mask
    places: ActionPlaces | None = None
    if info.size < len(step):
        # One more byte, which is not a tag, so that looking ahead never leaves the data.
        reader = LayoutReader(step[info.size :] + b"\x00", 0)
        try:
            places = _places(reader, info.size, len(step) - info.size, actions)
        except IndexError as error:
            raise UnusualRecordError from error
        mask[info.size :] = np.frombuffer(bytes(reader.mask), np.uint8)
    return StepLayout(info, places, mask, np.frombuffer(step, np.uint8) & mask)


def _places(reader: LayoutReader, start: int, size: int, actions: ActionSpec) -> ActionPlaces | None:
    """The places of the action at ``start``; None if it has no numbers."""
    reader.expect(reader.tag(_ACTION))
    length = reader.varint_value()
    reader.expect(reader.at + length == size)
    old, old_size = _locate_floats(reader, _DEPRECATED_ACTIONS, size)
    reader.float32(_VALUE)
    continuous, continuous_size = _locate_floats(reader, _CONTINUOUS_ACTIONS, size)
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


def _locate_floats(reader: LayoutReader, tag: int, end: int) -> tuple[int, int]:
    """Start and number of packed floats."""
    if not reader.tag(tag):
        return 0, 0
    size = reader.varint_value()
    reader.expect(size % 4 == 0 and reader.at + size <= end)
    return reader.advance(size, 0), size // 4


class StepError(Exception):
    """A recorded step that cannot be read. The message completes "NAME.demo, step 7: ...".

    Attributes:
        row: number of the step, from 0.
    """

    def __init__(self, row: int, message: str) -> None:
        super().__init__(message)
        self.row = row


class CompressedPicture(NamedTuple):
    """A picture as in the file: PNGs, and the channel that each of their channels belongs to (``pictures.decode``)."""

    data: bytes
    mapping: tuple[int, ...]


def entries_of_steps(spec: BehaviorSpec, obs_dtypes: Sequence[DTypeLike]) -> dict[str, ColumnEntry]:
    """Columns of recorded steps: those of the pool except what only a policy knows."""
    entries = entries_of(Store.POOL, spec, obs_dtypes)
    return {name: entry for name, entry in entries.items() if name not in ("log_prob", "version")}


class StepReader:
    """Reads the steps of one file.

    Args:
        behavior: of the file.
        block: the observations of the first step; None if some are compressed.
        decode: whether to decode PNGs; otherwise their columns have ``CompressedPicture``.
    """

    def __init__(self, behavior: UnityBehavior, block: ObservationBlock | None, *, decode: bool) -> None:
        self._behavior = behavior
        self._block = block
        self._actions = behavior.spec.action_spec
        self._entries = entries_of_steps(behavior.spec, [sensor.dtype for sensor in behavior.sensors])
        if not decode:
            kept = ColumnEntry(np.dtype(object), ())
            compressed = [number for number, each in enumerate(behavior.sensors) if each.compressed]
            self._entries |= {sensor_name(number): kept for number in compressed}
        self._layouts: dict[int, list[StepLayout]] = {}

    @property
    def row_bytes(self) -> int:
        """Bytes of a step in all columns."""
        return entry_bytes(self._entries)

    def read(self, data: bytes, starts: NDArray[np.int64], sizes: NDArray[np.int64]) -> Columns[NDArray[Any]]:
        """Read N records as they are in the file: rewards, ``done`` and ``interrupted`` belong to the step before.

        An additional column, ``ACTED``, says which of them have an action.

        Args:
            data: contains the records.
            starts: i64 [N].
            sizes: i64 [N].

        Raises:
            StepError: a step is damaged, does not match the first, or has numbers that no one can learn from.
        """
        steps = zeros(self._entries | {ACTED: ColumnEntry(np.dtype(np.bool_), ())}, len(starts))
        left = np.arange(len(starts))
        if self._block is not None:
            left = self._read_alike(data, starts, sizes, self._block, steps)
        for row in left.tolist():
            self._read_one(data[starts[row] : starts[row] + sizes[row]], row, steps)
        check_steps(steps, self._behavior.spec)
        return steps

    def _read_alike(
        self,
        data: bytes,
        starts: NDArray[np.int64],
        sizes: NDArray[np.int64],
        block: ObservationBlock,
        steps: Columns[NDArray[Any]],
    ) -> NDArray[np.int64]:
        """Read all steps whose layout is known or can be learned; return the rows of the others."""
        others = []
        for size in np.unique(sizes).tolist():
            rows = np.flatnonzero(sizes == size)
            windows: _Bytes = np.ndarray((len(data) - size + 1, size), np.uint8, data, 0, (1, 1))
            found = windows[starts[rows]]
            layouts = self._layouts.setdefault(size, [])
            num_tried = 0
            while len(rows):
                if num_tried == len(layouts) and not self._learn(found[0].tobytes(), block):
                    others.append(rows)
                    break
                layout = layouts[num_tried]
                num_tried += 1
                fits = layout.fits(found)
                if fits.any():
                    self._fill(layout, found[fits], rows[fits], steps)
                    rows, found = rows[~fits], found[~fits]
        return np.sort(np.concatenate(others)) if others else np.zeros(0, np.int64)

    def _learn(self, step: bytes, block: ObservationBlock) -> bool:
        """Add the layout of a step. False if it has no usual layout, or if there are too many already."""
        if sum(map(len, self._layouts.values())) == _MOST_LAYOUTS:
            return False
        try:
            self._layouts[len(step)].append(read_step_layout(step, block, self._actions))
        except UnusualRecordError:
            return False
        return True

    def _fill(self, layout: StepLayout, found: _Bytes, rows: NDArray[np.int64], steps: Columns[NDArray[Any]]) -> None:
        """Write the values of steps u8 [n, size] with one layout."""
        info, places = layout.info, layout.action
        steps["done"][rows] = info.done
        steps["interrupted"][rows] = info.interrupted
        if info.reward >= 0:
            steps["reward"][rows] = _floats(found, info.reward, 1)[:, 0]
        if info.group_reward >= 0:
            steps["group_reward"][rows] = _floats(found, info.group_reward, 1)[:, 0]
        if info.group.size:
            steps["group"][rows] = _varints(found, info.group)
        if info.action_mask >= 0 and not info.done:
            mask = found[:, info.action_mask : info.action_mask + self._behavior.mask_size]
            steps["mask"][rows] = mask.view(np.bool_)
        for sensor, column in zip(self._behavior.sensors, steps.obs, strict=True):
            values = _floats(found, info.floats[sensor.index], int(np.prod(sensor.float_shape))).reshape(
                -1, *sensor.float_shape
            )
            column[rows] = np.moveaxis(values, -1, 1) if sensor.channels_last else values
        if places is None:
            return
        steps[ACTED][rows] = True
        steps["continuous"][rows] = _floats(found, places.continuous, self._actions.continuous_size)
        for branch, place in enumerate(places.discrete):
            steps["discrete"][rows, branch] = _varints(found, place)
        if places.discrete_floats >= 0:
            floats = _floats(found, places.discrete_floats, self._actions.discrete_size)
            steps["discrete"][rows] = _whole(floats, rows)

    def _read_one(self, data: bytes, row: int, steps: Columns[NDArray[Any]]) -> None:
        """Read a step in any form that protobuf allows."""
        behavior = self._behavior
        try:
            check_records(data, behavior.id)
            # Serializing it again packs numbers that were written unpacked, and merges fields that came in parts, which
            # the columnar messages with their ``bytes`` fields need.
            usual = AgentInfoActionPairProto.FromString(data)
            usual.DiscardUnknownFields()
            step = columnar_pb2.AgentInfoActionPair.FromString(usual.SerializeToString())
        except (DecodeError, InvalidDataError) as error:
            raise StepError(row, f"its {len(data)} bytes are not a recorded step ({error})") from error
        info = step.agent_info
        if len(info.observations) != behavior.num_observations:
            raise StepError(
                row, f"it has {len(info.observations)} observations, but the first step has {behavior.num_observations}"
            )
        for sensor, column in zip(behavior.sensors, steps.obs, strict=True):
            observation = info.observations[sensor.index]
            try:
                kept = column.dtype == object
                column[row] = _undecoded(observation, sensor) if kept else read_observation(observation, sensor)
            except PictureError as error:
                raise StepError(row, f"{sensor.label}: {error}") from error
        values = {"reward": info.reward, "group_reward": info.group_reward, "group": info.group_id}
        values |= {"done": info.done, "interrupted": info.max_step_reached}
        for name, value in values.items():
            steps[name][row] = value
        if info.action_mask and not info.done:
            if len(info.action_mask) != behavior.mask_size:
                raise StepError(
                    row,
                    f"its action mask has {len(info.action_mask)} entries; expected none or {behavior.mask_size}, one "
                    f"per action of the branches {tuple(self._actions.discrete_branches)}",
                )
            steps["mask"][row] = np.frombuffer(info.action_mask, np.bool_)
        self._read_action(step.action_info, row, steps)

    def _read_action(self, action: columnar_pb2.AgentAction, row: int, steps: Columns[NDArray[Any]]) -> None:
        continuous = np.frombuffer(action.continuous_actions, "<f4")
        discrete = np.array(action.discrete_actions, np.int64)
        old = np.frombuffer(action.vector_actions_deprecated, "<f4")
        num_continuous, num_discrete = self._actions.continuous_size, self._actions.discrete_size
        if not len(continuous) and not len(discrete):
            if not len(old) and num_continuous + num_discrete:
                return
            if len(old) == num_continuous + num_discrete:
                continuous, discrete = old[:num_continuous], _whole(old[num_continuous:], np.array([row]))
        if (len(continuous), len(discrete)) != (num_continuous, num_discrete):
            raise StepError(
                row,
                f"its action has {len(continuous) or len(old)} continuous and {len(discrete)} discrete numbers, "
                f"expected {num_continuous} and {num_discrete}",
            )
        steps["continuous"][row], steps["discrete"][row], steps[ACTED][row] = continuous, discrete, True


def check_steps(steps: Columns[NDArray[Any]], spec: BehaviorSpec) -> None:
    """Reject values that would ruin a network.

    Raises:
        StepError: NaN or an infinity, or a choice outside of its branch.
    """
    labels = {"reward": "its reward", "group_reward": "its group reward", "continuous": "its action"}
    for number, sensor in enumerate(spec.observation_specs):
        labels[sensor_name(number)] = f"sensor {sensor.name!r} (observation {number})"
    place = first_not_finite(steps[name] for name in labels)
    if place is not None:
        number, row, *element = place
        name, label = list(labels.items())[number]
        raise StepError(row, f"{label} has the value {steps[name][row, *element]}. Training cannot use that")
    branches = np.array(spec.action_spec.discrete_branches, np.int64)
    chosen = steps["discrete"]
    outside = (chosen < 0) | (chosen >= branches)
    if outside.any():
        row = int(outside.any(axis=1).argmax())
        raise StepError(
            row, f"it chose {chosen[row].tolist()}, but the branches have {branches.tolist()} choices, counted from 0"
        )


def _undecoded(observation: columnar_pb2.Observation, sensor: UnitySensor) -> CompressedPicture:
    height, width = sensor.spec.shape[1:]
    if tuple(observation.shape) != sensor.wire_shape or size_of(observation.compressed_data) != (height, width):
        raise PictureError(f"it has no PNG with {height} rows, {width} columns and the shape {sensor.wire_shape}")
    return CompressedPicture(observation.compressed_data, tuple(observation.compressed_channel_mapping))


def _floats(found: _Bytes, offset: int, count: int) -> NDArray[np.float32]:
    """The f32 [n, count] at ``offset`` of each of n steps."""
    values: NDArray[np.float32] = np.ascontiguousarray(found[:, offset : offset + 4 * count]).view("<f4")
    return values


def _varints(found: _Bytes, place: Varint) -> NDArray[np.int64]:
    numbers = np.zeros(len(found), np.int64)
    for index in range(place.size):
        numbers |= (found[:, place.offset + index] & 0x7F).astype(np.int64) << 7 * index
    return numbers


def _whole(numbers: NDArray[np.float32], rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Convert choices that packages before 2.0 wrote as floats.

    Args:
        numbers: f32 [n, K] or [K].
        rows: i64 [n], for the error.
    """
    finite = np.isfinite(numbers)
    if not finite.all():
        row = rows[int((~finite).reshape(len(rows), -1).any(axis=1).argmax())]
        raise StepError(int(row), "its action is not finite")
    return np.clip(numbers, -1, 1 << 30).astype(np.int64)
