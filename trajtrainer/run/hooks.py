"""Functions of the user that are called when something happens in a run, between two passes of its loop."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trajtrainer.play.result import EvaluationResult


@dataclass(frozen=True, slots=True)
class SavedCheckpoint:
    """A checkpoint that was written.

    Attributes:
        behavior: whose it is.
        step: of its trainer.
        reward: mean return of the episodes since the last policy update; None without any.
        path: ``<Behavior>-<step>.pt``; it stays there for as long as it is one of the newest ``keep_checkpoints``.
        onnx: the policy as Unity loads it; None if it could not be exported.
        is_last: the run ends with it.
    """

    behavior: str
    step: int
    reward: float | None
    path: Path
    onnx: Path | None
    is_last: bool


@dataclass(frozen=True, slots=True)
class Evaluation:
    """An evaluation that was made while a behaviour trained.

    Attributes:
        behavior: whose it is.
        step: of its trainer when the policy was as it was evaluated.
        result: the episodes.
    """

    behavior: str
    step: int
    result: EvaluationResult


@dataclass(frozen=True, slots=True)
class BestCheckpoint:
    """The best model of a behaviour so far.

    Attributes:
        behavior: whose it is.
        step: of its trainer when it was what was trained.
        reward: what it is measured by.
        by: where that comes from: "evaluation", "training" or "elo".
        measure: the same in words, such as "mean return of the summary of step 9000".
        path: ``best.pt``. A model by evaluation is there at once, another one from the next checkpoint on.
        onnx: ``best.onnx``, likewise.
    """

    behavior: str
    step: int
    reward: float
    by: str
    measure: str
    path: Path
    onnx: Path


class Hooks:
    """Keeps what happened, in its order, until the loop's thread tells it: trainers are at rest then."""

    def __init__(
        self,
        *,
        on_checkpoint: Callable[[SavedCheckpoint], object] | None = None,
        on_evaluation: Callable[[Evaluation], object] | None = None,
        on_best: Callable[[BestCheckpoint], object] | None = None,
    ) -> None:
        """Take the functions; None where there is none."""
        self._functions: dict[type, Callable[[Any], object] | None] = {
            SavedCheckpoint: on_checkpoint,
            Evaluation: on_evaluation,
            BestCheckpoint: on_best,
        }
        self._waiting: deque[tuple[Callable[[Any], object], object]] = deque()

    def note(self, event: SavedCheckpoint | Evaluation | BestCheckpoint) -> None:
        """Note that something happened. May be called from any thread."""
        function = self._functions[type(event)]
        if function is not None:
            self._waiting.append((function, event))

    def tell(self) -> None:
        """Call the functions for what has happened since the last call. If one fails, none is called any more."""
        while self._waiting:
            function, event = self._waiting.popleft()
            try:
                function(event)
            except BaseException:
                self._functions = dict.fromkeys(self._functions)
                self._waiting.clear()
                raise
