"""The experience that an off-policy run saved (``save_replay_buffer: true``), as trajectories."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trajtrainer.core.columns import Columns, sensor_name
from trajtrainer.core.errors import CheckpointError, DemonstrationError, UnsupportedError
from trajtrainer.core.spec import BehaviorSpec
from trajtrainer.data.npz import explain
from trajtrainer.data.replay_file import read_columns
from trajtrainer.demos.archive import fitting
from trajtrainer.demos.pairing import Trajectory
from trajtrainer.demos.source import Source
from trajtrainer.demos.step_reader import StepError, check_steps, entries_of_steps


def replay_source(path: Path, spec: BehaviorSpec, name: str) -> Source:
    """Return the steps of a saved replay.

    What one agent did up to ``time_horizon`` is a trajectory; an episode that is longer stands in several, between
    those of other agents.

    Args:
        path: of the file.
        spec: of the behaviour whose it is, which the file does not tell.
        name: of the behaviour.

    Raises:
        DemonstrationError: the file is missing, damaged or of another behaviour.
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
