"""Loads recorded steps as experience for reward signals, behavioral cloning and offline trainers.

Shape legend: B steps, S trajectories, O an observation's own shape.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trajtrainer.core.columns import Columns, concatenate, empty, entry_bytes, sensor_name
from trajtrainer.core.errors import DemonstrationError
from trajtrainer.core.image_order import RawImageOrder
from trajtrainer.core.spec import BehaviorSpec
from trajtrainer.experience.recordings import conversions
from trajtrainer.experience.recordings.demo_file import demo_paths, open_demo
from trajtrainer.experience.recordings.pairing import Piece, as_dtype, check_spec, pieces
from trajtrainer.experience.recordings.step_reader import entries_of_steps
from trajtrainer.experience.trajectory import PackedSteps


@dataclass(frozen=True, slots=True)
class Demonstrations:
    """Recorded steps of one behavior.

    Attributes:
        spec: observations and actions; images are (channels, height, width).
        packed: complete episodes as trajectories, in the order of the files. The last episode of a file may be
            incomplete. Columns that require a policy (``log_prob``, ``version``) are missing, and ``agent`` is the
            index of the file. The mask always allows the chosen action.
        sources: the files.
        name: name of the behavior in the first file.
    """

    spec: BehaviorSpec
    packed: PackedSteps
    sources: tuple[Path, ...]
    name: str = ""

    def __len__(self) -> int:
        """Return the number of steps, B."""
        return len(self.packed)


def load_demonstrations(
    paths: Sequence[str | Path],
    *,
    spec: BehaviorSpec | None = None,
    max_steps: int | None = None,
    raw_image_order: RawImageOrder | str = RawImageOrder.AUTO,
) -> Demonstrations:
    """Read recordings.

    Args:
        paths: ``.demo`` and ``.npz`` files, or folders, whose ``.demo`` files are read in alphabetical order.
        spec: the required spec. The recordings must have its actions, and its number and shapes of sensors.
        max_steps: maximum number of steps to read; None for all.
        raw_image_order: ``hwc`` or ``chw`` for all raw images from package versions since 3.0; ``auto`` determines the
            order from the images of each file.

    Raises:
        DemonstrationError: a file is missing or damaged, or does not match ``spec`` or the first file, or there are no
            steps.
    """
    order = RawImageOrder(raw_image_order)
    files = [_open(path, order) for path in demo_paths(paths)]
    for file in files:
        if spec is not None:
            check_spec(file.spec, spec, file.path, "the behavior")
        check_spec(file.spec, files[0].spec, file.path, str(files[0].path))
    most_steps = sum(file.most_steps for file in files)
    store = _Store(files, most_steps if max_steps is None else min(most_steps, max_steps))
    for number, file in enumerate(files):
        store.read(file, number)
    if not store.num_steps:
        raise DemonstrationError(
            f"There are no steps in {', '.join(str(file.path) for file in files[:3])}: a step needs two records, "
            "because its reward is in the second. Record longer episodes."
        )
    return Demonstrations(files[0].spec, store.packed(), tuple(file.path for file in files), files[0].name)


@dataclass(frozen=True, slots=True)
class _Recording:
    """An open recording in any format.

    Attributes:
        path: path of the file.
        spec: observations and actions.
        name: name of the behavior.
        dtypes: dtypes of the sensors.
        most_steps: upper bound on the number of steps.
        pieces: function that reads the steps from the start.
    """

    path: Path
    spec: BehaviorSpec
    name: str
    dtypes: tuple[np.dtype[Any], ...]
    most_steps: int
    pieces: Callable[[], Iterator[Piece]]


def _open(path: Path, raw_image_order: RawImageOrder) -> _Recording:
    if path.suffix != conversions.SUFFIX:
        file = open_demo(path, raw_image_order)
        dtypes = tuple(np.dtype(sensor.dtype) for sensor in file.behavior.sensors)
        return _Recording(path, file.behavior.spec, file.behavior.id, dtypes, file.num_records, lambda: pieces(file))
    source = conversions.archive_source(path)
    found = list(source.trajectories())

    def parts() -> Iterator[Piece]:
        for steps, after in found:
            memory = {"memory": steps["memory"][-1:]}
            yield Piece(steps, np.array([len(steps)], np.int64), after.with_columns(memory))

    dtypes = tuple(column.dtype for column in found[0].steps.obs)
    return _Recording(path, source.spec, source.name, dtypes, sum(len(each.steps) for each in found), parts)


class _Store:
    """Columns for up to ``most_steps`` steps, which are filled in order."""

    def __init__(self, files: Sequence[_Recording], most_steps: int) -> None:
        # Images stay u8 if they are u8 in all files.
        dtypes = [np.result_type(*set(each)) for each in zip(*(file.dtypes for file in files), strict=True)]
        self._entries = entries_of_steps(files[0].spec, dtypes)
        try:
            self._steps = empty(self._entries, most_steps)
        except MemoryError as error:
            raise DemonstrationError(
                f"There is not enough memory for {most_steps} recorded steps of {entry_bytes(self._entries)} bytes "
                "each. Use "
                "fewer recordings at a time."
            ) from error
        self._after = [*map(sensor_name, range(len(self._steps.obs))), "memory"]
        self.num_steps = 0
        self._most_steps = most_steps
        self._bootstrap: list[Columns[NDArray[Any]]] = []
        self._ends = [0]
        self._agent: list[int] = []

    def read(self, file: _Recording, number: int) -> None:
        """Add the steps of a file until the store is full."""
        for piece in file.pieces():
            start = self.num_steps
            kept = min(len(piece.steps), self._most_steps - start)
            for name, entry in self._entries.items():
                self._steps[name][start : start + kept] = as_dtype(piece.steps[name][:kept], entry.dtype)
            self.num_steps += kept
            ends = piece.ends[piece.ends <= kept]
            self._end(start + ends, piece.after.slice(0, len(ends)), number)
            if kept < len(piece.steps) and self._ends[-1] < self.num_steps:
                self._end(np.array([self.num_steps]), piece.steps.slice(kept, kept + 1), number)
            if self.num_steps == self._most_steps == self._ends[-1]:
                return

    def _end(self, ends: NDArray[np.int64], after: Columns[NDArray[Any]], number: int) -> None:
        """End trajectories before these steps, and store the observations ``after`` the trajectories."""
        known = {name: as_dtype(after[name], self._entries[name].dtype) for name in self._after}
        self._bootstrap.append(Columns(known))
        self._ends += ends.tolist()
        self._agent += [number] * len(ends)

    def packed(self) -> PackedSteps:
        steps = self._steps.slice(0, self.num_steps)
        offset = np.array(self._ends, np.int32)
        last = offset[1:] - 1
        ended = steps["done"][last]
        return PackedSteps(
            steps=steps,
            bootstrap=concatenate(self._bootstrap),
            offset=offset,
            terminated=ended & ~steps["interrupted"][last],
            ended=ended,
            agent=np.array(self._agent, np.int64),
        )
