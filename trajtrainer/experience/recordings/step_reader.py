"""Reads recorded steps into columns: all steps with the same byte layout at once, others (such as PNGs) one by one.

Shape legend: N steps, C continuous actions, D sum of branch sizes, K discrete branches, O an observation's own shape.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import DTypeLike, NDArray

from trajtrainer.core.columns import ColumnEntry, Columns, Store, entries_of, entry_bytes, sensor_name, zeros
from trajtrainer.core.errors import InvalidDataError
from trajtrainer.core.numeric import first_not_finite
from trajtrainer.core.protobuf import (
    FLOAT,
    NUMBERS,
    RAW,
    Bytes,
    Layout,
    LayoutSorter,
    Schema,
    UnusualRecordError,
    floats,
    numbers,
)
from trajtrainer.core.spec import BehaviorSpec
from trajtrainer.core.steps import ObservationArray
from trajtrainer.envs.unity.behaviors import UnityBehavior, UnitySensor
from trajtrainer.envs.unity.pictures import PictureError, size_of
from trajtrainer.envs.unity.proto import columnar_pb2
from trajtrainer.envs.unity.proto.communicator_pb2 import AgentInfoActionPairProto
from trajtrainer.envs.unity.records import AGENT, AgentError, AgentLayout, check_records, read_agent, read_observation

# Field numbers of AgentInfoActionPairProto and of the AgentActionProto in its second field.
_OLD_ACTIONS, _VALUE, _CONTINUOUS_ACTIONS, _DISCRETE_ACTIONS = (2, 1), (2, 4), (2, 6), (2, 7)
_STEP: Schema = {
    1: AGENT,
    2: {_OLD_ACTIONS[1]: RAW, _VALUE[1]: FLOAT, _CONTINUOUS_ACTIONS[1]: RAW, _DISCRETE_ACTIONS[1]: NUMBERS},
}

ACTED = "acted"


@dataclass(frozen=True, slots=True)
class _StepLayout:
    """The positions of a step's values. Versions before 2.0 wrote all actions as one list of floats, ``old``."""

    layout: Layout
    agent: AgentLayout
    acted: bool
    continuous: slice | None
    discrete: list[slice]
    old: slice | None


class StepError(Exception):
    """A recorded step that cannot be read. The message completes "NAME.demo, step 7: ...".

    Attributes:
        row: index of the step, starting at 0.
    """

    def __init__(self, row: int, message: str) -> None:
        super().__init__(message)
        self.row = row


class CompressedPicture(NamedTuple):
    """An image as stored in the file: PNGs, and the mapping of their channels for ``pictures.decode``."""

    data: bytes
    mapping: tuple[int, ...]


def entries_of_steps(spec: BehaviorSpec, obs_dtypes: Sequence[DTypeLike]) -> dict[str, ColumnEntry]:
    """Return the columns of recorded steps: the pool's columns, except those that require a policy."""
    entries = entries_of(Store.POOL, spec, obs_dtypes)
    return {name: entry for name, entry in entries.items() if name not in ("log_prob", "version")}


class StepReader:
    """Reads the steps of one file.

    Args:
        behavior: the file's behavior.
        decode: whether to decode PNGs. Otherwise, their columns contain ``CompressedPicture`` objects.
    """

    def __init__(self, behavior: UnityBehavior, *, decode: bool) -> None:
        self._behavior = behavior
        self._actions = behavior.spec.action_spec
        entries = entries_of_steps(behavior.spec, [sensor.dtype for sensor in behavior.sensors])
        compressed = [number for number, each in enumerate(behavior.sensors) if each.compressed]
        if not decode:
            entries |= {sensor_name(number): ColumnEntry(np.dtype(object), ()) for number in compressed}
        self._entries = entries | {ACTED: ColumnEntry(np.dtype(np.bool_), ())}
        self._observation = read_observation if decode else _kept
        self._sorter = None if compressed else LayoutSorter(self._learn)

    @property
    def row_bytes(self) -> int:
        """The size of a step in bytes, over all columns."""
        return entry_bytes(self._entries)

    def read(self, data: bytes, starts: NDArray[np.int64], sizes: NDArray[np.int64]) -> Columns[NDArray[Any]]:
        """Read N records as stored: a record's rewards, ``done`` and ``interrupted`` belong to the previous step.

        An additional column, ``ACTED``, marks the records that have an action.

        Args:
            data: the bytes that contain the records.
            starts: i64 [N], the start of each record in ``data``.
            sizes: i64 [N], the size of each record.

        Raises:
            StepError: a step is damaged, does not match the first step, or has values that cannot be used for training.
        """
        steps = zeros(self._entries, len(starts))
        left = np.arange(len(starts))
        if self._sorter is not None:
            found, left = self._sorter.sort(data, starts, sizes)
            for group, records in found:
                self._fill(group.learned, records, group.rows, steps)
        for row in left.tolist():
            self._read_one(data[starts[row] : starts[row] + sizes[row]], row, steps)
        check_steps(steps, self._behavior.spec)
        return steps

    def _learn(self, step: bytes) -> _StepLayout:
        layout = Layout.of(step, _STEP)
        read = zeros(self._entries, 1)
        try:
            self._read_one(step, 0, read)
        except StepError as error:
            raise UnusualRecordError from error
        agent = AgentLayout(
            layout, self._behavior, done=bool(read["done"][0]), interrupted=bool(read["interrupted"][0])
        )
        acted = bool(read[ACTED][0])
        continuous, old = layout.place(*_CONTINUOUS_ACTIONS), layout.place(*_OLD_ACTIONS)
        discrete = layout.places.get(_DISCRETE_ACTIONS, [])
        is_new = bool(discrete) or (continuous is not None and continuous.stop > continuous.start)
        return _StepLayout(layout, agent, acted, continuous, discrete, None if is_new or not acted else old)

    def _fill(
        self, learned: _StepLayout, found: Bytes, rows: slice | NDArray[np.int64], steps: Columns[NDArray[Any]]
    ) -> None:
        """Write the values of steps with the same layout, u8 [n, size], to the columns."""
        steps["done"][rows] = learned.agent.done
        steps["interrupted"][rows] = learned.agent.interrupted
        steps[ACTED][rows] = learned.acted
        learned.agent.fill(steps, rows, found)
        size = self._actions.continuous_size
        if learned.old is not None:
            old = floats(found, learned.old)
            steps["continuous"][rows] = old[:, :size]
            steps["discrete"][rows] = _whole(old[:, size:], np.arange(len(steps))[rows])
            return
        if learned.continuous is not None:
            steps["continuous"][rows] = floats(found, learned.continuous)
        for branch, place in enumerate(learned.discrete):
            steps["discrete"][rows, branch] = numbers(found, place)

    def _read_one(self, data: bytes, row: int, steps: Columns[NDArray[Any]]) -> None:
        """Read a step with protobuf's parser, in any valid encoding."""
        behavior = self._behavior
        try:
            check_records(data, behavior.id)
            # Serialize the step again, which packs unpacked numbers and merges fields that were written in parts. The
            # columnar messages need this, because they define these fields as ``bytes``.
            usual = AgentInfoActionPairProto.FromString(data)
            usual.DiscardUnknownFields()
            step = columnar_pb2.AgentInfoActionPair.FromString(usual.SerializeToString())
        except (DecodeError, InvalidDataError) as error:
            raise StepError(row, f"its {len(data)} bytes are not a valid step ({error})") from error
        try:
            read_agent(step.agent_info, behavior, steps, row, self._observation)
        except AgentError as error:
            raise StepError(row, str(error)) from error
        steps["done"][row], steps["interrupted"][row] = step.agent_info.done, step.agent_info.max_step_reached
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
    """Reject values that would damage a network.

    Raises:
        StepError: a value is NaN or infinite, or a choice is out of range for its branch.
    """
    labels = {"reward": "its reward", "group_reward": "its group reward", "continuous": "its action"}
    for number, sensor in enumerate(spec.observation_specs):
        labels[sensor_name(number)] = f"sensor {sensor.name!r} (observation {number})"
    place = first_not_finite(steps[name] for name in labels)
    if place is not None:
        number, row, *element = place
        name, label = list(labels.items())[number]
        raise StepError(row, f"{label} has the value {steps[name][row, *element]}. Training cannot use this value")
    branches = np.array(spec.action_spec.discrete_branches, np.int64)
    chosen = steps["discrete"]
    outside = (chosen < 0) | (chosen >= branches)
    if outside.any():
        row = int(outside.any(axis=1).argmax())
        raise StepError(
            row, f"it chose {chosen[row].tolist()}, but the branches have {branches.tolist()} choices, counted from 0"
        )


def complete_steps(known: Mapping[str, NDArray[Any]], count: int, spec: BehaviorSpec) -> Columns[NDArray[Any]]:
    """Add the columns that were not recorded, filled with zeros.

    Raises:
        StepError: as in ``check_steps``.
        ValueError: a column has the wrong shape or an incompatible dtype.
    """
    obs = [known[sensor_name(number)] for number in range(len(spec.observation_specs))]
    entries = entries_of_steps(spec, [np.uint8 if each.dtype == np.uint8 else np.float32 for each in obs])
    steps = Columns(
        {
            name: fitting(known[name], name, (count, *entry.shape), entry.dtype)
            if name in known
            else np.zeros((count, *entry.shape), entry.dtype)
            for name, entry in entries.items()
        }
    )
    check_steps(steps, spec)
    return steps


def fitting(column: NDArray[Any], name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Convert a column from a file to the expected dtype.

    Raises:
        ValueError: the column has the wrong shape or an incompatible dtype.
    """
    if column.shape != shape:
        raise ValueError(f"{name} has the shape {column.shape}, expected {shape}")
    if not np.can_cast(column.dtype, dtype, "same_kind"):
        raise ValueError(f"{name} has the type {column.dtype}, expected {dtype}")
    with np.errstate(over="ignore"):  # ``check_steps`` reports values that overflow to infinity
        return column.astype(dtype, copy=False)


def _kept(observation: columnar_pb2.Observation, sensor: UnitySensor) -> CompressedPicture | ObservationArray:
    """Return an observation without decoding its PNG."""
    if not sensor.compressed:
        return read_observation(observation, sensor)
    height, width = sensor.spec.shape[1:]
    if tuple(observation.shape) != sensor.wire_shape or size_of(observation.compressed_data) != (height, width):
        raise PictureError(f"it has no PNG with {height} rows, {width} columns and the shape {sensor.wire_shape}")
    return CompressedPicture(observation.compressed_data, tuple(observation.compressed_channel_mapping))


def _whole(numbers: NDArray[np.float32], rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Convert choices from package versions before 2.0, which wrote them as floats.

    Args:
        numbers: choices, f32 [n, K] or [K].
        rows: i64 [n], indices of the steps for the error.
    """
    finite = np.isfinite(numbers)
    if not finite.all():
        row = rows[int((~finite).reshape(len(rows), -1).any(axis=1).argmax())]
        raise StepError(int(row), "its action is not finite")
    return np.clip(numbers, -1, 1 << 30).astype(np.int64)
