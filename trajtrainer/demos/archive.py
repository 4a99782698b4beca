"""Trajectories as an ``.npz`` that ``numpy.load`` reads without pickle (docs/demonstrations.md#npz).

Shape legend: B steps, S trajectories, C continuous actions, D sum of branch sizes, K discrete branches, O an
observation's own shape.
"""

from __future__ import annotations

import json
import math
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trajtrainer.columns import Columns, sensor_name
from trajtrainer.data.trajectory import offsets
from trajtrainer.demos.pairing import Trajectory, as_dtype, decoded
from trajtrainer.demos.source import Source
from trajtrainer.demos.step_reader import StepError, check_steps, entries_of_steps
from trajtrainer.errors import DemonstrationError
from trajtrainer.spec import (
    USUAL_PROPERTIES,
    ActionSpec,
    BehaviorSpec,
    ObservationSpec,
    ObservationType,
    spec_from_plain,
    spec_to_plain,
)

SUFFIX = ".npz"
_AFTER = "after"
_LARGEST = 1 << 34
_NO_ARCHIVE = (OSError, ValueError, KeyError, TypeError, EOFError, MemoryError, NotImplementedError)
# The last two are numpy's, whose header of an array is a Python literal.
_DAMAGED = (*_NO_ARCHIVE, AttributeError, zipfile.BadZipFile, zlib.error, SyntaxError, tokenize.TokenError)


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
        with zipfile.ZipFile(path) as archive:
            return _source(path, {name.removesuffix(".npy") for name in archive.namelist()}, _reader(archive))
    except FileNotFoundError as error:
        raise DemonstrationError(f"There is no recording {path}.") from error
    except _DAMAGED as error:
        raise DemonstrationError(
            f"{path} is no recording as docs/demonstrations.md lays out, or damaged ({type(error).__name__}: {error})."
        ) from error


def _reader(archive: zipfile.ZipFile) -> Callable[[str], NDArray[Any]]:
    """Return the function that reads an array; one that is not as long as its header says takes no memory."""

    def read(name: str) -> NDArray[Any]:
        size = archive.getinfo(f"{name}.npy").file_size
        with archive.open(f"{name}.npy") as file:
            is_old = np.lib.format.read_magic(file) == (1, 0)
            read_header = np.lib.format.read_array_header_1_0 if is_old else np.lib.format.read_array_header_2_0
            shape, fortran_order, dtype = read_header(file)
            if dtype.hasobject:
                raise ValueError(
                    f"{name} holds Python objects (pickle), which are not read: they could run any program"
                )
            if math.prod(shape) * dtype.itemsize != size - file.tell():
                raise ValueError(f"{name} has {size} bytes, but its header names the shape {shape} of {dtype}")
            data = np.frombuffer(file.read(), dtype)
        array: NDArray[Any] = data.reshape(shape, order="F" if fortran_order else "C")
        return array

    return read


def _source(path: Path, names: set[str], read: Callable[[str], NDArray[Any]]) -> Source:
    obs: list[NDArray[Any]] = []
    while sensor_name(len(obs)) in names:
        obs.append(read(sensor_name(len(obs))))
    if not obs or not len(obs[0]):
        raise ValueError("it has no steps in obs.0")
    name, spec = _spec(obs, names, read)
    count = len(obs[0])
    entries = entries_of_steps(spec, [np.uint8 if each.dtype == np.uint8 else np.float32 for each in obs])
    steps = {
        each: _fitting(read(each), each, (count, *entry.shape), entry.dtype)
        if each in names
        else np.zeros((count, *entry.shape), entry.dtype)
        for each, entry in entries.items()
    }
    missing = [each for each in ("reward", "done") if each not in names]
    missing += [each for each in ("continuous", "discrete") if steps[each].size and each not in names]
    if missing:
        raise KeyError(f"it has no {', '.join(missing)}")
    offset = _offset(read("offset") if "offset" in names else None, steps["done"])
    last = offset[1:] - 1
    after = {}
    for number, column in enumerate(obs):
        own, key = sensor_name(number), sensor_name(number, _AFTER)
        shape = (len(last), *column.shape[1:])
        # Without what was observed last, the step before is the nearest to it.
        after[own] = _fitting(read(key), key, shape, steps[own].dtype) if key in names else steps[own][last]
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


def _spec(obs: list[NDArray[Any]], names: set[str], read: Callable[[str], NDArray[Any]]) -> tuple[str, BehaviorSpec]:
    """Return name and spec, as they are told or as the arrays look."""
    if "spec" in names:
        plain = json.loads(str(read("spec")))
        return str(plain.get("behavior", "")), spec_from_plain(plain)
    sensors = [
        ObservationSpec(each.shape[1:], USUAL_PROPERTIES[each.ndim - 1], ObservationType.DEFAULT, sensor_name(number))
        for number, each in enumerate(obs)
    ]
    branches = tuple(int(each) for each in read("branches")) if "branches" in names else ()
    size = read("continuous").shape[1] if "continuous" in names else 0
    if "discrete" in names and not branches:
        raise KeyError("it has discrete actions, but neither a spec nor branches, the numbers of choices of each")
    return "", BehaviorSpec(sensors, ActionSpec(size, branches))


def _fitting(column: NDArray[Any], name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    if column.shape != shape:
        raise ValueError(f"{name} has the shape {column.shape}, expected {shape}")
    if not np.can_cast(column.dtype, dtype, "same_kind"):
        raise TypeError(f"{name} is of {column.dtype}, expected {dtype}")
    with np.errstate(over="ignore"):  # what becomes infinite is refused with its step
        return column.astype(dtype, copy=False)


def _offset(offset: NDArray[Any] | None, done: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return where trajectories begin, and B: as told, or behind each end of an episode."""
    if offset is None:
        ends = np.flatnonzero(done) + 1
        ends = ends if len(ends) and ends[-1] == len(done) else np.append(ends, len(done))
        return np.concatenate([[0], ends])
    if offset.ndim != 1 or len(offset) < 2 or offset[0] != 0 or offset[-1] != len(done) or (np.diff(offset) < 1).any():
        raise ValueError(f"offset does not go up from 0 to {len(done)}, the number of steps")
    return offset.astype(np.int64)
