"""What a game recorded, as questions to a policy and the actions that it took.

Shape legend: N decisions, O an observation's own shape.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from trajtrainer.commands.verify.likelihood import PlayedActions
from trajtrainer.commands.verify.network import Question
from trajtrainer.core.columns import Columns, concatenate
from trajtrainer.core.errors import DemonstrationError
from trajtrainer.core.image_order import RawImageOrder
from trajtrainer.core.spec import BehaviorId, BehaviorSpec
from trajtrainer.demos.demo_file import DemoFile, demo_paths, open_demo
from trajtrainer.demos.pairing import as_dtype, check_spec, pieces

MOST_DECISIONS: Final = 2000
_FEWEST_DECISIONS: Final = 200
_MOST_NUMBERS: Final = 4_000_000  # of observations, which every change is tried on


@dataclass(frozen=True, slots=True)
class RecordedDecisions:
    """The first decisions of some recordings.

    Attributes:
        paths: of the files.
        behavior: its name, without team; empty where the file does not tell.
        spec: what was observed and done.
        question: what the policy was asked.
        actions: what was done.
        is_whole: whether these are all decisions.
    """

    paths: tuple[Path, ...]
    behavior: str
    spec: BehaviorSpec
    question: Question
    actions: PlayedActions
    is_whole: bool


def read_recording(
    paths: Sequence[str | Path], raw_image_order: RawImageOrder, most_decisions: int | None = None
) -> RecordedDecisions:
    """Read recordings of one behavior.

    Args:
        paths: ``.demo`` files, or folders of them.
        raw_image_order: as of ``open_demo``.
        most_decisions: how many to use; by default 2,000, and fewer of large pictures.

    Raises:
        DemonstrationError: one is missing, damaged, of another behavior than the first, or there is no decision.
    """
    files = [open_demo(path, raw_image_order) for path in demo_paths(paths)]
    first = files[0]
    for file in files:
        check_spec(file.behavior.spec, first.behavior.spec, file.path, str(first.path))
    spec = first.behavior.spec
    numbers = sum(math.prod(sensor.shape) for sensor in spec.observation_specs)
    usual = int(np.clip(_MOST_NUMBERS // max(1, numbers), _FEWEST_DECISIONS, MOST_DECISIONS))
    most = usual if most_decisions is None else most_decisions
    parts: list[Columns[NDArray[Any]]] = []
    starts: list[NDArray[np.bool_]] = []
    for file in files:
        count = sum(map(len, parts))
        if count <= most:
            steps, begins = _decisions(file, most + 1 - count)
            parts.append(steps)
            starts.append(begins)
    steps = concatenate(parts)
    if not len(steps):
        raise DemonstrationError(f"{first.path} contains no decision. Record at least one episode.")
    kept = steps.slice(0, most)
    obs = tuple(np.ascontiguousarray(as_dtype(column, np.dtype(np.float32))) for column in kept.obs)
    question = Question(obs, kept["mask"], np.concatenate(starts)[:most])
    actions = PlayedActions(kept["continuous"], kept["discrete"].astype(np.int64))
    name = BehaviorId.parse(first.behavior.id).name if first.behavior.id else ""
    return RecordedDecisions(tuple(file.path for file in files), name, spec, question, actions, len(kept) == len(steps))


def _decisions(file: DemoFile, most: int) -> tuple[Columns[NDArray[Any]], NDArray[np.bool_]]:
    """The first decisions of a file, and which of them begin an episode."""
    parts: list[Columns[NDArray[Any]]] = []
    starts: list[NDArray[np.bool_]] = []
    count, begins = 0, True
    for piece in pieces(file, allow_chosen=False):
        found = np.zeros(len(piece.steps) + 1, np.bool_)
        found[0] = begins
        found[piece.ends] = True
        begins = bool(found[-1])
        parts.append(piece.steps)
        starts.append(found[:-1])
        count += len(piece.steps)
        if count >= most:
            break
    steps = concatenate(parts)
    return steps.slice(0, most), np.concatenate(starts)[:most]
