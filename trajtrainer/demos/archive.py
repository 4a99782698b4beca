"""Trajectories as an ``.npz`` that ``numpy.load`` reads without pickle (docs/demonstrations.md#npz).

Shape legend: B steps, S trajectories, C continuous actions, D sum of branch sizes, K discrete branches, O an
observation's own shape.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trajtrainer.core.columns import Columns, entry_bytes, sensor_name
from trajtrainer.core.errors import DemonstrationError, UnsupportedError
from trajtrainer.core.spec import (
    USUAL_PROPERTIES,
    ActionSpec,
    BehaviorSpec,
    ObservationSpec,
    ObservationType,
    spec_from_plain,
    spec_to_plain,
)
from trajtrainer.data.npz import MOST_BYTES, NpzFile, explain, open_npz
from trajtrainer.data.trajectory import offsets
from trajtrainer.demos.pairing import Trajectory, as_dtype, decoded
from trajtrainer.demos.source import Source
from trajtrainer.demos.step_reader import StepError, check_steps, entries_of_steps

SUFFIX = ".npz"
_AFTER = "after"
_MOST_CHOICES = 1 << 24


def write_archive(path: Path, source: Source) -> None:
    """Write all trajectories.

    Raises:
        OSError: the file could not be written.
        DemonstrationError: a trajectory could not be read, or there is none.
    """
    parts = [decoded(trajectory, source.spec) for trajectory in source.trajectories()]
    if not parts:
        raise DemonstrationError(f"{source.path} holds no step that could be written to a {SUFFIX} file.")
    columns = {}
    for name in parts[0].steps:
        column = _joined([each.steps[name] for each in parts])
        if column[:1].size:
            columns[name] = column
    for number in range(len(source.spec.observation_specs)):
        columns[sensor_name(number, _AFTER)] = _joined([each.after[sensor_name(number)] for each in parts])
    columns["offset"] = offsets(np.array([len(each.steps) for each in parts], np.int64)).astype(np.int64)
    columns["spec"] = np.array(json.dumps({"behavior": source.name, **spec_to_plain(source.spec)}))
    with path.open("wb") as file:
        np.savez_compressed(file, allow_pickle=False, **columns)


def _joined(columns: Sequence[NDArray[Any]]) -> NDArray[Any]:
    dtype = np.result_type(*{column.dtype for column in columns})
    return np.concatenate([as_dtype(column, dtype) for column in columns])


def archive_source(path: Path) -> Source:
    """Return what an ``.npz`` file holds.

    Raises:
        DemonstrationError: it is missing or damaged, or its arrays do not fit each other.
    """
    try:
        with open_npz(path) as file:
            return _source(path, file)
    except FileNotFoundError as error:
        raise DemonstrationError(f"There is no recording {path}.") from error
    except OSError as error:
        raise DemonstrationError(f"The recording {path} cannot be read: {error.strerror or error}.") from error
    except (ValueError, UnsupportedError, MemoryError) as error:
        raise DemonstrationError(
            f"{path} is no recording as docs/demonstrations.md lays out, or damaged: {explain(error)}."
        ) from error


def _source(path: Path, file: NpzFile) -> Source:
    names, read = file.names, file.read
    obs: list[NDArray[Any]] = []
    while sensor_name(len(obs)) in names:
        obs.append(read(sensor_name(len(obs))))
    if not obs or not obs[0].ndim or not len(obs[0]):
        raise ValueError("it has no steps in obs.0")
    name, spec = _told_spec(read("spec")) if "spec" in names else ("", _seen_spec(obs, file))
    count = len(obs[0])
    entries = entries_of_steps(spec, [np.uint8 if each.dtype == np.uint8 else np.float32 for each in obs])
    missing = [each for each in ("reward", "done") if each not in names]
    missing += [each for each in ("continuous", "discrete") if math.prod(entries[each].shape) and each not in names]
    if missing:
        raise ValueError(f"it has no {', '.join(missing)}")
    absent = {each: entry for each, entry in entries.items() if each not in names}
    if count * entry_bytes(absent) > MOST_BYTES:
        raise ValueError(f"its {count} steps with {spec.action_spec} would take more than {MOST_BYTES:,} bytes")
    steps = {
        each: fitting(read(each), each, (count, *entry.shape), entry.dtype)
        if each in names
        else np.zeros((count, *entry.shape), entry.dtype)
        for each, entry in entries.items()
    }
    offset = _offset(read("offset") if "offset" in names else None, steps["done"])
    last = offset[1:] - 1
    after = {}
    for number, column in enumerate(obs):
        own, key = sensor_name(number), sensor_name(number, _AFTER)
        shape = (len(last), *column.shape[1:])
        # Without what was observed last, the step before is the nearest to it.
        after[own] = fitting(read(key), key, shape, steps[own].dtype) if key in names else steps[own][last]
    columns, ends = Columns(steps), Columns(after)
    try:
        check_steps(columns, spec)
    except StepError as error:
        raise ValueError(f"step {error.row + 1}: {error}") from error
    bounds = offset.tolist()

    def trajectories() -> Iterator[Trajectory]:
        for number, (start, stop) in enumerate(pairwise(bounds)):
            yield Trajectory(columns.slice(start, stop), ends.slice(number, number + 1))

    return Source(path, spec, name, trajectories)


def _told_spec(array: NDArray[Any]) -> tuple[str, BehaviorSpec]:
    """Return name and spec as the file has them, in JSON."""
    try:
        plain = json.loads(str(array))
        spec = spec_from_plain(plain)
        if sum(spec.action_spec.discrete_branches) > _MOST_CHOICES:
            raise ValueError(f"its branches have more than {_MOST_CHOICES:,} choices")
        return str(plain.get("behavior", "")), spec
    except Exception as error:  # any kind of value can be in any place
        raise ValueError(f"its spec describes no observations and actions ({explain(error)})") from error


def _seen_spec(obs: Sequence[NDArray[Any]], file: NpzFile) -> BehaviorSpec:
    """Return the spec that the arrays suggest."""
    for number, each in enumerate(obs):
        if each.ndim - 1 not in USUAL_PROPERTIES:
            raise ValueError(f"{sensor_name(number)} has the shape {each.shape}, expected one of 2 to 4 dimensions")
    sensors = [
        ObservationSpec(each.shape[1:], USUAL_PROPERTIES[each.ndim - 1], ObservationType.DEFAULT, sensor_name(number))
        for number, each in enumerate(obs)
    ]
    branches = file.read("branches") if "branches" in file.names else np.zeros(0, np.int64)
    if branches.ndim != 1 or branches.dtype.kind not in "iu" or not all(0 < each < _MOST_CHOICES for each in branches):
        raise ValueError(f"branches is {branches.tolist()}, expected the numbers of choices of each branch")
    if "discrete" in file.names and not len(branches):
        raise ValueError("it has discrete actions, but neither a spec nor branches, the numbers of choices of each")
    continuous = file.read("continuous") if "continuous" in file.names else np.zeros((0, 0))
    if continuous.ndim != 2:
        raise ValueError(f"continuous has the shape {continuous.shape}, expected [steps, actions]")
    return BehaviorSpec(sensors, ActionSpec(continuous.shape[1], tuple(map(int, branches))))


def fitting(column: NDArray[Any], name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return a column that was read as the type it shall have.

    Raises:
        ValueError: it has another shape or holds another kind of numbers.
    """
    if column.shape != shape:
        raise ValueError(f"{name} has the shape {column.shape}, expected {shape}")
    if not np.can_cast(column.dtype, dtype, "same_kind"):
        raise ValueError(f"{name} is of {column.dtype}, expected {dtype}")
    with np.errstate(over="ignore"):  # what becomes infinite is refused with its step
        return column.astype(dtype, copy=False)


def _offset(offset: NDArray[Any] | None, done: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return where trajectories begin, and B: as told, or behind each end of an episode."""
    if offset is None:
        ends = np.flatnonzero(done) + 1
        ends = ends if len(ends) and ends[-1] == len(done) else np.append(ends, len(done))
        return np.concatenate([[0], ends])
    told = offset.astype(np.int64) if offset.ndim == 1 and offset.dtype.kind in "iu" else np.zeros(0, np.int64)
    if len(told) < 2 or told[0] != 0 or told[-1] != len(done) or (np.diff(told) < 1).any():
        raise ValueError(f"offset does not go up from 0 to {len(done)}, the number of steps")
    return told
