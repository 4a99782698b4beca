"""Pairs what is recorded step by step: an observation, the action that answered it, and what came of that.

A recorder writes what it knows when an agent asks for a decision: the observation, the reward since the last decision,
and, in Unity, the *last* action; the end of an episode has the final observation, reward and action. So the reward of a
step stands in the next record, and in Unity's recordings the action does, too (docs/demonstrations.md#actions).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trajtrainer.core.columns import Columns, concatenate, sensor_name
from trajtrainer.core.errors import DemonstrationError
from trajtrainer.core.spec import ActionSpec, BehaviorSpec
from trajtrainer.demos.demo_file import DemoFile
from trajtrainer.demos.step_reader import ACTED
from trajtrainer.unity import pictures


def check_spec(found: BehaviorSpec, expected: BehaviorSpec, path: Path, whose: str) -> None:
    """Refuse a recording of other observations or actions.

    Args:
        found: what is in the recording.
        expected: what it must fit in the number and shapes of the sensors and in the actions; names do not count.
        path: of the recording.
        whose: the spec is, for the message.

    Raises:
        DemonstrationError: it does not fit.
    """
    remedy = "Record it anew with the sensors and actions that the game has now."
    sensors, others = found.observation_specs, expected.observation_specs
    if len(sensors) != len(others):
        raise DemonstrationError(
            f"{path} was recorded with {len(sensors)} observations ({_shapes(found)}), {whose} has {len(others)} "
            f"({_shapes(expected)}). {remedy}"
        )
    for index, (sensor, other) in enumerate(zip(sensors, others, strict=True)):
        if tuple(sensor.shape) != tuple(other.shape):
            raise DemonstrationError(
                f"{path}: the sensor {sensor.name!r} (observation {index}) was recorded with the shape "
                f"{tuple(sensor.shape)}, in {whose} it has {tuple(other.shape)}. {remedy}"
            )
    if _sizes(found.action_spec) != _sizes(expected.action_spec):
        raise DemonstrationError(
            f"{path} was recorded with {_actions(found.action_spec)}, {whose} has {_actions(expected.action_spec)}. "
            f"{remedy}"
        )


def _shapes(spec: BehaviorSpec) -> str:
    return ", ".join(str(tuple(sensor.shape)) for sensor in spec.observation_specs) or "none"


def _sizes(actions: ActionSpec) -> tuple[int, tuple[int, ...]]:
    return actions.continuous_size, tuple(actions.discrete_branches)


def _actions(actions: ActionSpec) -> str:
    return f"{actions.continuous_size} continuous actions and the discrete branches {tuple(actions.discrete_branches)}"


_FOLLOWED = ("reward", "group_reward", "done", "interrupted")
_ACTIONS = ("continuous", "discrete")


class Piece(NamedTuple):
    """Some steps of a file, which follow those of the piece before.

    Attributes:
        steps: the columns of a packed step.
        ends: i64 [any], ascending: trajectories end before these steps, the number of steps for the last one.
        after: what was observed after each of those trajectories; all columns, of which only those of the moment of an
            observation mean something.
    """

    steps: Columns[NDArray[Any]]
    ends: NDArray[np.int64]
    after: Columns[NDArray[Any]]


def pieces(file: DemoFile, *, decode: bool = True, allow_chosen: bool = True) -> Iterator[Piece]:
    """Yield all steps of a file. The last trajectory may be cut off.

    Args:
        file: where they stand.
        decode: as of ``DemoFile.records``.
        allow_chosen: whether masks allow what was done, even where the recorded ones forbid it.

    Raises:
        DemonstrationError: one is damaged, does not fit the first, or has no action.
    """
    last: Columns[NDArray[Any]] | None = None
    num_before, is_open = 0, False
    for records in file.records(decode=decode):
        joined = records if last is None else concatenate([last, records])
        # The end of an episode is no step: nobody decided then.
        rows = np.flatnonzero(~joined["done"][:-1])
        _check_acted(file, joined, rows, num_before - (last is not None))
        steps = _steps(file, joined, rows)
        if allow_chosen:
            _allow_chosen(steps, file)
        ends = np.flatnonzero(steps["done"]) + 1
        yield Piece(steps, ends, joined.take(rows[ends - 1] + 1))
        if len(rows):
            is_open = not steps["done"][-1]
        num_before += len(records)
        last = joined.slice(len(joined) - 1, len(joined))
    if is_open and last is not None:
        yield Piece(last.slice(0, 0), np.zeros(1, np.int64), last)


class Trajectory(NamedTuple):
    """Steps up to the end of an episode, or to where a recording was cut off.

    Attributes:
        steps: the columns of a packed step; at least one.
        after: one row, what was observed after them.
    """

    steps: Columns[NDArray[Any]]
    after: Columns[NDArray[Any]]


def trajectories(file: DemoFile, *, decode: bool = True) -> Iterator[Trajectory]:
    """Yield the steps of a file one trajectory after another. Args and errors: of ``pieces``."""
    begun: list[Columns[NDArray[Any]]] = []
    for piece in pieces(file, decode=decode):
        begin = 0
        for number, end in enumerate(piece.ends.tolist()):
            steps = concatenate([*begun, piece.steps.slice(begin, end)])
            yield Trajectory(steps, piece.after.slice(number, number + 1))
            begun, begin = [], end
        if begin < len(piece.steps):
            begun.append(piece.steps.slice(begin, len(piece.steps)))


def as_dtype(column: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return a column whose pictures are of this type: u8 0 to 255, or f32 0 to 1."""
    if column.dtype == np.uint8 and dtype == np.float32:
        return column.astype(np.float32) / np.float32(255.0)
    return column


def decoded(trajectory: Trajectory, spec: BehaviorSpec) -> Trajectory:
    """Return a trajectory whose pictures are numbers, u8 or f32 [*, *O].

    Raises:
        DemonstrationError: a picture is damaged.
    """
    return Trajectory(*(_decoded(columns, spec) for columns in trajectory))


def _decoded(columns: Columns[NDArray[Any]], spec: BehaviorSpec) -> Columns[NDArray[Any]]:
    found = {}
    for number, (sensor, column) in enumerate(zip(spec.observation_specs, columns.obs, strict=True)):
        if column.dtype == object:
            try:
                numbers = [pictures.decode(data, mapping, sensor.shape) for data, mapping in column.tolist()]
            except pictures.PictureError as error:
                raise DemonstrationError(f"A recorded picture of the sensor {sensor.name!r}: {error}.") from error
            found[sensor_name(number)] = np.stack(numbers)
    return columns.with_columns(found)


def _steps(file: DemoFile, records: Columns[NDArray[Any]], rows: NDArray[np.int64]) -> Columns[NDArray[Any]]:
    """Return the steps that begin with these records."""
    delays = dict.fromkeys(_FOLLOWED, 1) | dict.fromkeys(_ACTIONS, file.action_delay)
    steps = Columns(
        {name: column.take(rows + delays.get(name, 0), axis=0) for name, column in records.items() if name != ACTED}
    )
    steps["interrupted"][:] &= steps["done"]
    return steps


def _allow_chosen(steps: Columns[NDArray[Any]], file: DemoFile) -> None:
    # Unity lets a heuristic do what is forbidden. What was done is nothing that a policy must not learn.
    begin = 0
    for branch, size in enumerate(file.behavior.spec.action_spec.discrete_branches):
        steps["mask"][np.arange(len(steps)), begin + steps["discrete"][:, branch]] = False
        begin += size


def _check_acted(file: DemoFile, records: Columns[NDArray[Any]], rows: NDArray[np.int64], num_before: int) -> None:
    deciding = rows + file.action_delay
    missing = deciding[~records[ACTED][deciding]]
    if len(missing):
        actions = file.behavior.spec.action_spec
        raise DemonstrationError(
            f"{file.path}, step {num_before + int(missing[0]) + 1}: it has no action. Expected "
            f"{actions.continuous_size} continuous and {actions.discrete_size} discrete numbers, as Unity's "
            "Demonstration Recorder writes them."
        )
