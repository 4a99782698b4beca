"""Combines recorded data into steps: an observation, the action taken, and the reward for it.

When an agent requests a decision, the recorder writes the data available at this time: the observation, the reward
since the last decision and, in Unity, the *last* action. The record at the end of an episode has the final observation,
reward and action. The reward of a step is therefore in the next record and, in Unity's recordings, so is its action
(docs/train/demonstrations.md#actions).
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
from trajtrainer.envs.unity import pictures
from trajtrainer.experience.recordings.demo_file import DemoFile
from trajtrainer.experience.recordings.step_reader import ACTED

_FOLLOWED = ("reward", "group_reward", "done", "interrupted")
_ACTIONS = ("continuous", "discrete")


def check_spec(found: BehaviorSpec, expected: BehaviorSpec, path: Path, whose: str) -> None:
    """Check that a recording has the expected observations and actions.

    Args:
        found: spec of the recording.
        expected: the expected spec. The actions and the number and shapes of sensors must be equal; names may differ.
        path: path of the recording.
        whose: what has the expected spec, for the message.

    Raises:
        DemonstrationError: the specs differ.
    """
    remedy = "Record it again with the current sensors and actions of the game."
    sensors, others = found.observation_specs, expected.observation_specs
    if len(sensors) != len(others):
        raise DemonstrationError(
            f"{path} was recorded with {len(sensors)} observations ({_shapes(found)}), but {whose} has {len(others)} "
            f"({_shapes(expected)}). {remedy}"
        )
    for index, (sensor, other) in enumerate(zip(sensors, others, strict=True)):
        if tuple(sensor.shape) != tuple(other.shape):
            raise DemonstrationError(
                f"{path}: the sensor {sensor.name!r} (observation {index}) was recorded with the shape "
                f"{tuple(sensor.shape)}, but in {whose} it has {tuple(other.shape)}. {remedy}"
            )
    if _sizes(found.action_spec) != _sizes(expected.action_spec):
        raise DemonstrationError(
            f"{path} was recorded with {_actions(found.action_spec)}, but {whose} has "
            f"{_actions(expected.action_spec)}. {remedy}"
        )


def _shapes(spec: BehaviorSpec) -> str:
    return ", ".join(str(tuple(sensor.shape)) for sensor in spec.observation_specs) or "none"


def _sizes(actions: ActionSpec) -> tuple[int, tuple[int, ...]]:
    return actions.continuous_size, tuple(actions.discrete_branches)


def _actions(actions: ActionSpec) -> str:
    return f"{actions.continuous_size} continuous actions and the discrete branches {tuple(actions.discrete_branches)}"


class Piece(NamedTuple):
    """Consecutive steps of a file.

    Attributes:
        steps: the columns of packed steps.
        ends: i64 [any], ascending. A trajectory ends before each of these steps; the last value may be the number of
            steps.
        after: the records after these trajectories. They have all columns, but only those that are filled with the
            observation (``Moment.OBSERVED``) are valid.
    """

    steps: Columns[NDArray[Any]]
    ends: NDArray[np.int64]
    after: Columns[NDArray[Any]]


def pieces(file: DemoFile, *, decode: bool = True, allow_chosen: bool = True) -> Iterator[Piece]:
    """Yield all steps of a file. The last trajectory may be incomplete.

    Args:
        file: a recording.
        decode: as in ``DemoFile.records``.
        allow_chosen: whether to allow the chosen actions in the masks, even if the recorded masks forbid them.

    Raises:
        DemonstrationError: a step is damaged, does not match the first step, or has no action.
    """
    actions = file.behavior.spec.action_spec
    delays = dict.fromkeys(_FOLLOWED, 1) | dict.fromkeys(_ACTIONS, file.action_delay)
    last: Columns[NDArray[Any]] | None = None
    num_before, is_open = 0, False
    for records in file.records(decode=decode):
        joined = records if last is None else concatenate([last, records])
        # The record at the end of an episode is not a step, because the agent made no decision.
        rows = np.flatnonzero(~joined["done"][:-1])
        deciding = rows + file.action_delay
        missing = deciding[~joined[ACTED][deciding]]
        if len(missing):
            raise DemonstrationError(
                f"{file.path}, step {num_before - (last is not None) + int(missing[0]) + 1}: it has no action. "
                f"Expected {actions.continuous_size} continuous and {actions.discrete_size} discrete numbers, as "
                "Unity's Demonstration Recorder writes them."
            )
        steps = Columns(
            {name: column.take(rows + delays.get(name, 0), axis=0) for name, column in joined.items() if name != ACTED}
        )
        steps["interrupted"][:] &= steps["done"]
        if allow_chosen:
            # In Unity, a heuristic may choose forbidden actions. Allow them, so that a policy can learn from them.
            begin = 0
            for branch, size in enumerate(actions.discrete_branches):
                steps["mask"][np.arange(len(steps)), begin + steps["discrete"][:, branch]] = False
                begin += size
        ends = np.flatnonzero(steps["done"]) + 1
        yield Piece(steps, ends, joined.take(rows[ends - 1] + 1))
        if len(rows):
            is_open = not steps["done"][-1]
        num_before += len(records)
        last = joined.slice(len(joined) - 1, len(joined))
    if is_open and last is not None:
        yield Piece(last.slice(0, 0), np.zeros(1, np.int64), last)


class Trajectory(NamedTuple):
    """The steps up to the end of an episode, or up to the end of a recording.

    Attributes:
        steps: the columns of packed steps; at least one row.
        after: one row with the observation after the last step.
    """

    steps: Columns[NDArray[Any]]
    after: Columns[NDArray[Any]]


def trajectories(file: DemoFile, *, decode: bool = True) -> Iterator[Trajectory]:
    """Yield the trajectories of a file. Arguments and errors are the same as for ``pieces``."""
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
    """Convert images from u8 (0 to 255) to f32 (0 to 1) if ``dtype`` is f32."""
    if column.dtype == np.uint8 and dtype == np.float32:
        return column.astype(np.float32) / np.float32(255.0)
    return column


def decoded(trajectory: Trajectory, spec: BehaviorSpec) -> Trajectory:
    """Decode the compressed images of a trajectory to u8 or f32 [*, *O].

    Raises:
        DemonstrationError: an image is damaged.
    """
    parts = []
    for columns in trajectory:
        found = {}
        for number, (sensor, column) in enumerate(zip(spec.observation_specs, columns.obs, strict=True)):
            if column.dtype == object:
                try:
                    numbers = [pictures.decode(data, mapping, sensor.shape) for data, mapping in column.tolist()]
                except pictures.PictureError as error:
                    raise DemonstrationError(f"A recorded picture of the sensor {sensor.name!r}: {error}.") from error
                found[sensor_name(number)] = np.stack(numbers)
        parts.append(columns.with_columns(found))
    return Trajectory(*parts)
