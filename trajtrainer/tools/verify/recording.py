"""Reads the decisions that a game recorded.

Shape legend: N decisions, O an observation's own shape, C continuous actions, K discrete branches, D sum of their
sizes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from trajtrainer.core.columns import Columns, concatenate
from trajtrainer.core.errors import DemonstrationError
from trajtrainer.core.image_order import RawImageOrder
from trajtrainer.core.spec import BehaviorId, BehaviorSpec
from trajtrainer.core.steps import BoolArray, FloatArray
from trajtrainer.experience.recordings.demo_file import demo_paths, open_demo
from trajtrainer.experience.recordings.pairing import as_dtype, check_spec, pieces

_MOST_DECISIONS: Final = 2000
_FEWEST_DECISIONS: Final = 200
_MOST_NUMBERS: Final = 4_000_000  # maximum number of values in all observations, which limits the time per change


@dataclass(frozen=True, slots=True)
class Question:
    """The inputs of a policy in N consecutive decisions.

    Attributes:
        obs: observations per sensor, f32 [N, *O].
        mask: bool [N, D], True = forbidden.
        starts: bool [N], True for the first decision of an episode, before which the memory is cleared.
    """

    obs: tuple[FloatArray, ...]
    mask: BoolArray
    starts: BoolArray

    def __len__(self) -> int:
        return len(self.mask)

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """The shape of each sensor's observation."""
        return [values.shape[1:] for values in self.obs]

    def with_sensors(self, values: Mapping[int, FloatArray]) -> Question:
        """Return a copy of the question in which the values of some sensors (by number) are replaced."""
        contiguous = {number: np.ascontiguousarray(each, np.float32) for number, each in values.items()}
        obs = dict(enumerate(self.obs)) | contiguous
        return replace(self, obs=tuple(obs.values()))


@dataclass(frozen=True, slots=True)
class PlayedActions:
    """The actions of N decisions: f32 [N, C] within [-1, 1], i64 [N, K]."""

    continuous: FloatArray
    discrete: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.discrete)

    def at(self, rows: Any) -> PlayedActions:
        """Return the actions of some of the decisions."""
        return PlayedActions(self.continuous[rows], self.discrete[rows])


@dataclass(frozen=True, slots=True)
class RecordedDecisions:
    """The first decisions of one or more recordings.

    Attributes:
        paths: paths of the files.
        behavior: name of the behavior without its team; empty if the file does not contain it.
        spec: spec of the recorded observations and actions.
        question: the policy's inputs.
        actions: the recorded actions.
        is_whole: True if these are all decisions of the recordings.
    """

    paths: tuple[Path, ...]
    behavior: str
    spec: BehaviorSpec
    question: Question
    actions: PlayedActions
    is_whole: bool

    @property
    def labels(self) -> list[str]:
        """The names of the sensors, for messages."""
        named = enumerate(self.spec.observation_specs)
        return [f"sensor {number} ({spec.name!r})" if spec.name else f"sensor {number}" for number, spec in named]


def read_recording(
    paths: Sequence[str | Path], raw_image_order: RawImageOrder, most_decisions: int | None = None
) -> RecordedDecisions:
    """Read recordings of one behavior.

    Args:
        paths: ``.demo`` files, or folders of them.
        raw_image_order: see ``open_demo``.
        most_decisions: maximum number of decisions to use; by default 2,000, or fewer if the images are large.

    Raises:
        DemonstrationError: a recording is missing, damaged, or of a different behavior than the first one; or there are
            no decisions.
    """
    files = [open_demo(path, raw_image_order) for path in demo_paths(paths)]
    first = files[0]
    for file in files:
        check_spec(file.behavior.spec, first.behavior.spec, file.path, str(first.path))
    spec = first.behavior.spec
    numbers = sum(math.prod(sensor.shape) for sensor in spec.observation_specs)
    usual = int(np.clip(_MOST_NUMBERS // max(1, numbers), _FEWEST_DECISIONS, _MOST_DECISIONS))
    most = usual if most_decisions is None else most_decisions
    parts: list[Columns[NDArray[Any]]] = []
    begins: list[int] = []  # index of the first decision of each file
    for file in files:
        begins.append(sum(map(len, parts)))
        for piece in pieces(file, allow_chosen=False) if begins[-1] <= most else ():
            parts.append(piece.steps)
            if sum(map(len, parts)) > most:
                break
    steps = concatenate(parts)
    if not len(steps):
        raise DemonstrationError(f"{first.path} contains no decisions. Record at least one episode.")
    starts = np.append([True], steps["done"])
    starts[begins] = True
    kept = steps.slice(0, most)
    obs = tuple(np.ascontiguousarray(as_dtype(column, np.dtype(np.float32))) for column in kept.obs)
    question = Question(obs, kept["mask"], starts[: len(kept)])
    actions = PlayedActions(kept["continuous"], kept["discrete"].astype(np.int64))
    name = BehaviorId.parse(first.behavior.id).name if first.behavior.id else ""
    return RecordedDecisions(tuple(file.path for file in files), name, spec, question, actions, len(kept) == len(steps))
