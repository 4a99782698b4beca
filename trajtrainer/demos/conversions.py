"""The experience that an off-policy run saved (``save_replay_buffer: true``), as trajectories."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trajtrainer.core.columns import Columns, entry_bytes, sensor_name
from trajtrainer.core.errors import CheckpointError, DemonstrationError, UnsupportedError
from trajtrainer.core.spec import (
    USUAL_PROPERTIES,
    ActionSpec,
    BehaviorSpec,
    ObservationSpec,
    ObservationType,
    spec_from_plain,
    spec_to_plain,
)
from trajtrainer.data.npz import MOST_BYTES, NpzFile, explain, open_npz, read_columns
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


def replay_source(path: Path, spec: BehaviorSpec, name: str) -> Source:
    """Return the steps of a saved replay.

    What one agent did up to ``time_horizon`` is a trajectory; an episode that is longer stands in several, between
    those of other agents.

    Args:
        path: of the file.
        spec: of the behavior whose it is, which the file does not tell.
        name: of the behavior.

    Raises:
        DemonstrationError: the file is missing, damaged or of another behavior.
    """
    sensors = [sensor_name(number) for number in range(len(spec.observation_specs))]
    known = [*sensors, "mask", "continuous", "discrete", "reward", "group_reward", "interrupted", "terminated"]
    try:
        saved = read_columns(path, [*known, "start", "length"])
        count = saved["reward"].shape[:1]
        dtypes = [np.uint8 if saved[each].dtype == np.uint8 else np.float32 for each in sensors]
        entries = entries_of_steps(spec, dtypes)
        entries["terminated"] = entries["done"]
        rows = Columns(
            {each: fitting(saved[each], each, (*count, *entries[each].shape), entries[each].dtype) for each in known}
        )
        sizes = saved["start"].shape[:1]
        starts = fitting(saved["start"], "start", sizes, np.dtype(np.int64))
        lengths = fitting(saved["length"], "length", sizes, np.dtype(np.int32))
        starts, stops = _trajectories(starts, lengths, len(rows))
    except (CheckpointError, ValueError, MemoryError) as error:
        raise DemonstrationError(f"The saved replay {path} cannot be used for {name!r}: {error}") from error

    def trajectories() -> Iterator[Trajectory]:
        for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
            steps = _steps(rows.slice(start, stop))
            try:
                check_steps(steps, spec)
            except StepError as error:
                raise DemonstrationError(f"The saved replay {path}, step {start + error.row + 1}: {error}.") from error
            yield Trajectory(steps, rows.slice(stop, stop + 1))

    return Source(path, spec, name, trajectories)


def _steps(rows: Columns[NDArray[Any]]) -> Columns[NDArray[Any]]:
    steps = {name: column for name, column in rows.items() if name != "terminated"}
    steps["done"] = rows["terminated"] | rows["interrupted"]
    steps["group"] = np.zeros(len(rows), np.int32)
    steps["continuous"] = np.clip(rows["continuous"], -1, 1)
    return Columns(steps)


def _trajectories(
    starts: NDArray[np.int64], lengths: NDArray[np.int32], num_rows: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return where the trajectories begin and end: a row that is none of any sequence stands between two of them."""
    stops = starts + lengths
    if len(starts) != len(lengths) or (
        len(starts) and (starts[0] < 0 or max(starts[-1], stops[-1]) >= num_rows or lengths.min() < 1)
    ):
        raise ValueError("its sequences lie outside of its rows")
    is_first = np.ones(len(starts), np.bool_)
    is_first[1:] = starts[1:] != stops[:-1]
    if (starts[1:] < stops[:-1]).any():
        raise ValueError("its sequences overlap")
    return starts[is_first], stops[np.roll(is_first, -1)]


PREFIX = "minari:"
_DATA = "data"


def minari_source(name: str) -> Source:
    """Return the episodes of a data set.

    Args:
        name: the id of a data set that was downloaded (``minari download``), or its folder.

    Raises:
        DemonstrationError: Minari is not installed, there is no such data set, or it is damaged.
        UnsupportedError: its spaces are of a kind that no sensor or action is made of.
    """
    try:
        import gymnasium  # noqa: F401 (the spaces need it)
        import minari
    except ImportError as error:
        raise DemonstrationError(
            f"{PREFIX}{name} needs Minari, which is not installed ({error}): pip install 'trajtrainer[minari]'."
        ) from error
    from trajtrainer.envs.gymnasium_agents import ActionLayout
    from trajtrainer.envs.gymnasium_observations import ObservationLayout

    folder = Path(name)
    try:
        data = folder / _DATA if (folder / _DATA).is_dir() else folder
        dataset = minari.MinariDataset(data) if folder.is_dir() else minari.load_dataset(name)
        where = f"{PREFIX}{name}"
        observations, actions = (
            ObservationLayout(dataset.observation_space, where),
            ActionLayout(dataset.action_space, where),
        )
    except (UnsupportedError, MemoryError):
        raise
    except Exception as error:
        # Whatever its storage (HDF5, Arrow) and its JSON raise.
        raise DemonstrationError(
            f"There is no data set {name!r} that Minari can read ({type(error).__name__}: {error}). Give the folder "
            "of a data set, or an id that 'minari list local' names."
        ) from error
    spec = BehaviorSpec(observations.specs, actions.spec)

    def trajectories() -> Iterator[Trajectory]:
        place = f"{PREFIX}{name}, before its first episode"
        try:
            for episode in dataset.iterate_episodes():
                place = f"{PREFIX}{name}, episode {episode.id}"
                trajectory = _trajectory(episode, observations, actions, spec)
                if trajectory is not None:
                    check_steps(trajectory.steps, spec)
                    yield trajectory
                place = f"{PREFIX}{name}, after episode {episode.id}"
        except MemoryError:
            raise
        except Exception as error:  # its storage reads episodes only now, and raises anything
            raise DemonstrationError(f"{place}: the data set is damaged ({explain(error)}).") from error

    return Source(folder, spec, str(dataset.spec.dataset_name), trajectories)


def _trajectory(episode: Any, observations: Any, actions: Any, spec: BehaviorSpec) -> Trajectory | None:
    """Return an episode; None of one without steps."""
    count = len(episode.rewards)
    if not count:
        return None
    seen = observations.columns(_rows(episode.observations, count + 1))
    entries = entries_of_steps(spec, [column.dtype for column in seen])
    steps = {name: np.zeros((count, *entry.shape), entry.dtype) for name, entry in entries.items()}
    for number, column in enumerate(seen):
        steps[sensor_name(number)] = column[:-1]
    steps["continuous"], steps["discrete"] = actions.decisions(_rows(episode.actions, count))
    steps["reward"][:] = episode.rewards
    steps["done"][-1] = episode.terminations[-1] or episode.truncations[-1]
    steps["interrupted"][-1] = steps["done"][-1] and not episode.terminations[-1]
    return Trajectory(Columns(steps), Columns({sensor_name(i): column[-1:] for i, column in enumerate(seen)}))


def _rows(values: Any, count: int) -> list[Any]:
    """Return the values of a space step by step, of which a data set holds columns."""
    if isinstance(values, Mapping):
        parts = zip(*(_rows(each, count) for each in values.values()), strict=True)
        return [dict(zip(values, row, strict=True)) for row in parts]
    if isinstance(values, tuple):
        return list(zip(*(_rows(each, count) for each in values), strict=True))
    if len(values) != count:
        raise ValueError(f"it has {len(values)} observations or actions, expected {count}")
    return list(values)
