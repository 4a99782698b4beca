"""Sources of trajectories other than ``.demo`` files: ``.npz`` files, saved replays, and Minari data sets.

``numpy.load`` can read the ``.npz`` files without pickle (docs/train/demonstrations.md#npz). A saved replay contains
the experience of an off-policy run with ``save_replay_buffer: true``.

Shape legend: B steps, S trajectories, C continuous actions, D sum of branch sizes, K discrete branches, O an
observation's own shape.
"""

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
    spec_from_plain,
    spec_to_plain,
    usual_sensor,
)
from trajtrainer.experience.npz import MOST_BYTES, NpzFile, explain, open_npz, read_columns
from trajtrainer.experience.recordings.pairing import Trajectory, as_dtype, decoded
from trajtrainer.experience.recordings.source import DemonstrationSource
from trajtrainer.experience.recordings.step_reader import (
    StepError,
    check_steps,
    complete_steps,
    entries_of_steps,
    fitting,
)
from trajtrainer.experience.trajectory import offsets

SUFFIX = ".npz"
MINARI_PREFIX = "minari:"
_AFTER = "after"
_DATA = "data"  # subfolder of a data set downloaded by Minari
_MOST_CHOICES = 1 << 24


def write_archive(path: Path, source: DemonstrationSource) -> None:
    """Write all trajectories to an ``.npz`` file.

    Raises:
        OSError: the file could not be written.
        DemonstrationError: a trajectory could not be read, or there are no trajectories.
    """
    parts = [decoded(trajectory, source.spec) for trajectory in source.trajectories()]
    if not parts:
        raise DemonstrationError(f"{source.path} has no steps to write to a {SUFFIX} file.")
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


def archive_source(path: Path) -> DemonstrationSource:
    """Return the source for an ``.npz`` file. The whole file is read into memory.

    Raises:
        DemonstrationError: the file is missing or damaged, or its arrays do not match each other.
    """
    try:
        with open_npz(path) as file:
            return _read_archive(path, file)
    except FileNotFoundError as error:
        raise DemonstrationError(f"The recording {path} does not exist.") from error
    except OSError as error:
        raise DemonstrationError(f"The recording {path} cannot be read: {error.strerror or error}.") from error
    except (ValueError, UnsupportedError, MemoryError) as error:
        raise DemonstrationError(
            f"{path} is not a valid recording, as described in docs/train/demonstrations.md: {explain(error)}."
        ) from error


def _read_archive(path: Path, file: NpzFile) -> DemonstrationSource:
    names, read = file.names, file.read
    obs: list[NDArray[Any]] = []
    while sensor_name(len(obs)) in names:
        obs.append(read(sensor_name(len(obs))))
    if not obs or not obs[0].ndim or not len(obs[0]):
        raise ValueError("it has no steps in obs.0")
    name, spec = _read_spec(read("spec")) if "spec" in names else ("", _infer_spec(obs, file))
    count = len(obs[0])
    entries = entries_of_steps(spec, [np.uint8 if each.dtype == np.uint8 else np.float32 for each in obs])
    missing = [each for each in ("reward", "done") if each not in names]
    missing += [each for each in ("continuous", "discrete") if math.prod(entries[each].shape) and each not in names]
    if missing:
        raise ValueError(f"it has no {', '.join(missing)}")
    absent = {each: entry for each, entry in entries.items() if each not in names}
    if count * entry_bytes(absent) > MOST_BYTES:
        raise ValueError(f"its {count} steps with {spec.action_spec} would need more than {MOST_BYTES:,} bytes")
    try:
        steps = complete_steps({each: read(each) for each in entries if each in names}, count, spec)
    except StepError as error:
        raise ValueError(f"step {error.row + 1}: {error}") from error
    offset = _offset(read("offset") if "offset" in names else None, steps["done"])
    last = offset[1:] - 1
    after = {}
    for number, column in enumerate(obs):
        own, key = sensor_name(number), sensor_name(number, _AFTER)
        shape = (len(last), *column.shape[1:])
        # If the final observation is missing, approximate it with the observation before it.
        after[own] = fitting(read(key), key, shape, steps[own].dtype) if key in names else steps[own][last]
    ends = Columns(after)

    def trajectories() -> Iterator[Trajectory]:
        for number, (start, stop) in enumerate(pairwise(offset.tolist())):
            yield Trajectory(steps.slice(start, stop), ends.slice(number, number + 1))

    return DemonstrationSource(path, spec, name, trajectories)


def _read_spec(array: NDArray[Any]) -> tuple[str, BehaviorSpec]:
    """Return the behavior's name and spec from the JSON text in the file."""
    try:
        plain = json.loads(str(array))
        spec = spec_from_plain(plain)
        if sum(spec.action_spec.discrete_branches) > _MOST_CHOICES:
            raise ValueError(f"its branches have more than {_MOST_CHOICES:,} choices")
        return str(plain.get("behavior", "")), spec
    except Exception as error:  # any value in the JSON may have an unexpected type
        raise ValueError(f"its spec does not describe observations and actions ({explain(error)})") from error


def _infer_spec(obs: Sequence[NDArray[Any]], file: NpzFile) -> BehaviorSpec:
    """Infer the spec from the shapes of the arrays."""
    for number, each in enumerate(obs):
        if each.ndim - 1 not in USUAL_PROPERTIES:
            raise ValueError(f"{sensor_name(number)} has the shape {each.shape}, expected 2 to 4 dimensions")
    sensors = [usual_sensor(each.shape[1:], sensor_name(number)) for number, each in enumerate(obs)]
    branches = file.read("branches") if "branches" in file.names else np.zeros(0, np.int64)
    if branches.ndim != 1 or branches.dtype.kind not in "iu" or not all(0 < each < _MOST_CHOICES for each in branches):
        raise ValueError(f"branches is {branches.tolist()}, expected the number of choices in each branch")
    if "discrete" in file.names and not len(branches):
        raise ValueError("it has discrete actions, but neither a spec nor branches (the number of choices in each)")
    continuous = file.read("continuous") if "continuous" in file.names else np.zeros((0, 0))
    if continuous.ndim != 2:
        raise ValueError(f"continuous has the shape {continuous.shape}, expected [steps, actions]")
    return BehaviorSpec(sensors, ActionSpec(continuous.shape[1], tuple(map(int, branches))))


def _offset(offset: NDArray[Any] | None, done: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return the starts of the trajectories, followed by B. If the file has no ``offset``, use the ends of episodes."""
    if offset is None:
        ends = np.flatnonzero(done) + 1
        ends = ends if len(ends) and ends[-1] == len(done) else np.append(ends, len(done))
        return np.concatenate([[0], ends])
    given = offset.astype(np.int64) if offset.ndim == 1 and offset.dtype.kind in "iu" else np.zeros(0, np.int64)
    if len(given) < 2 or given[0] != 0 or given[-1] != len(done) or (np.diff(given) < 1).any():
        raise ValueError(f"offset does not increase from 0 to {len(done)}, the number of steps")
    return given


def replay_source(path: Path, spec: BehaviorSpec, name: str) -> DemonstrationSource:
    """Return the source for a saved replay.

    A trajectory has up to ``time_horizon`` steps of one agent. A longer episode is split into several trajectories, and
    trajectories of other agents may be between them.

    Args:
        path: path of the file.
        spec: spec of the behavior, which the file does not contain.
        name: name of the behavior.

    Raises:
        DemonstrationError: the file is missing, damaged or from another behavior.
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
        starts, stops = _trajectory_bounds(starts, lengths, len(rows))
    except (CheckpointError, ValueError, MemoryError) as error:
        raise DemonstrationError(f"The saved replay {path} cannot be used for {name!r}: {error}") from error

    def trajectories() -> Iterator[Trajectory]:
        for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
            found = rows.slice(start, stop)
            columns = {each: column for each, column in found.items() if each != "terminated"}
            columns["done"] = found["terminated"] | found["interrupted"]
            columns["group"] = np.zeros(len(found), np.int32)
            columns["continuous"] = np.clip(found["continuous"], -1, 1)
            steps = Columns(columns)
            try:
                check_steps(steps, spec)
            except StepError as error:
                raise DemonstrationError(f"The saved replay {path}, step {start + error.row + 1}: {error}.") from error
            yield Trajectory(steps, rows.slice(stop, stop + 1))

    return DemonstrationSource(path, spec, name, trajectories)


def _trajectory_bounds(
    starts: NDArray[np.int64], lengths: NDArray[np.int32], num_rows: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the starts and ends of trajectories, which are separated by a row that is not in any sequence."""
    stops = starts + lengths
    if len(starts) != len(lengths) or (
        len(starts) and (starts[0] < 0 or max(starts[-1], stops[-1]) >= num_rows or lengths.min() < 1)
    ):
        raise ValueError("its sequences are outside of its rows")
    is_first = np.ones(len(starts), np.bool_)
    is_first[1:] = starts[1:] != stops[:-1]
    if (starts[1:] < stops[:-1]).any():
        raise ValueError("its sequences overlap")
    return starts[is_first], stops[np.roll(is_first, -1)]


def minari_source(name: str) -> DemonstrationSource:
    """Return the source for a Minari data set, with one trajectory per episode.

    Args:
        name: id of a downloaded data set (``minari download``), or its folder.

    Raises:
        DemonstrationError: Minari is not installed, or the data set does not exist or is damaged.
        UnsupportedError: the data set's spaces cannot be converted to sensors and actions.
    """
    try:
        import gymnasium  # noqa: F401 (the spaces need it)
        import minari
    except ImportError as error:
        raise DemonstrationError(
            f"{MINARI_PREFIX}{name} needs Minari, which is not installed ({error}): pip install 'trajtrainer[minari]'."
        ) from error
    from trajtrainer.envs.python.gymnasium_agents import ActionLayout, AgentSpaces

    folder = Path(name)
    try:
        data = folder / _DATA if (folder / _DATA).is_dir() else folder
        dataset = minari.MinariDataset(data) if folder.is_dir() else minari.load_dataset(name)
        where = f"{MINARI_PREFIX}{name}"
        agents = AgentSpaces(dataset.observation_space, dataset.action_space, where)
        actions = ActionLayout(dataset.action_space, where)
    except (UnsupportedError, MemoryError):
        raise
    except Exception as error:
        # Minari's storage (HDF5, Arrow) and JSON parser can raise any exception.
        raise DemonstrationError(
            f"Minari cannot read the data set {name!r} ({type(error).__name__}: {error}). Expected the "
            "folder of a data set, or an id from 'minari list local'."
        ) from error

    def trajectories() -> Iterator[Trajectory]:
        place = f"{MINARI_PREFIX}{name}, before its first episode"
        try:
            for episode in dataset.iterate_episodes():
                place = f"{MINARI_PREFIX}{name}, episode {episode.id}"
                trajectory = _of_episode(episode, agents, actions)
                if trajectory is not None:
                    yield trajectory
                place = f"{MINARI_PREFIX}{name}, after episode {episode.id}"
        except MemoryError:
            raise
        except Exception as error:  # episodes are read lazily, and the storage can raise any exception
            raise DemonstrationError(f"{place}: the data set is damaged ({explain(error)}).") from error

    return DemonstrationSource(folder, agents.spec, str(dataset.spec.dataset_name), trajectories)


def _of_episode(episode: Any, agents: Any, actions: Any) -> Trajectory | None:
    """Return the trajectory of an episode, or None if the episode has no steps."""
    count = len(episode.rewards)
    if not count:
        return None
    observations = _rows(episode.observations, count + 1)
    seen = agents.finite_columns(observations)
    continuous, discrete = actions.decisions(_rows(episode.actions, count))
    done, interrupted = np.zeros((2, count), np.bool_)
    done[-1] = episode.terminations[-1] or episode.truncations[-1]
    interrupted[-1] = done[-1] and not episode.terminations[-1]
    known = {
        **{sensor_name(number): column[:-1] for number, column in enumerate(seen)},
        "mask": agents.masks.rows(observations[:-1], [{}] * count),
        "continuous": continuous,
        "discrete": discrete,
        "reward": np.asarray(episode.rewards),
        "done": done,
        "interrupted": interrupted,
    }
    steps = complete_steps(known, count, agents.spec)
    return Trajectory(steps, Columns({sensor_name(number): column[-1:] for number, column in enumerate(seen)}))


def _rows(values: Any, count: int) -> list[Any]:
    """Convert a space's values from columns, as in the data set, to a list with one value per step."""
    if isinstance(values, Mapping):
        parts = zip(*(_rows(each, count) for each in values.values()), strict=True)
        return [dict(zip(values, row, strict=True)) for row in parts]
    if isinstance(values, tuple):
        return list(zip(*(_rows(each, count) for each in values), strict=True))
    if len(values) != count:
        raise ValueError(f"it has {len(values)} observations or actions, expected {count}")
    return list(values)
