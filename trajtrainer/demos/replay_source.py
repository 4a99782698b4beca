"""The experience that an off-policy run saved (``save_replay_buffer: true``), as trajectories."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trajtrainer.core.columns import Columns, sensor_name
from trajtrainer.core.errors import CheckpointError, DemonstrationError
from trajtrainer.core.spec import BehaviorSpec
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
