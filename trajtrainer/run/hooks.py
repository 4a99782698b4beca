"""The user's functions that are called between two passes of the loop, after something has happened in a run."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trajtrainer.policies.play.result import EvaluationResult


@dataclass(frozen=True, slots=True)
class SavedCheckpoint:
    """A checkpoint that was saved.

    Attributes:
        behavior: its name.
        step: of its trainer.
        reward: mean return of the episodes since the last policy update; None without any.
        path: ``<Behavior>-<step>.pt``, which is kept while it is one of the newest ``keep_checkpoints``.
        onnx: the policy as Unity loads it; None if it could not be exported.
        is_last: it was saved at the end of the run.
    """

    behavior: str
    step: int
    reward: float | None
    path: Path
    onnx: Path | None
    is_last: bool


@dataclass(frozen=True, slots=True)
class Evaluation:
    """An evaluation of a behavior during its training.

    Attributes:
        behavior: its name.
        step: of its trainer, at which the policy was the one that was evaluated.
        result: the episodes.
    """

    behavior: str
    step: int
    result: EvaluationResult


@dataclass(frozen=True, slots=True)
class BestCheckpoint:
    """The best model of a behavior so far.

    Attributes:
        behavior: its name.
        step: of its trainer, at which it was the model that was trained.
        reward: the value it is ranked by.
        by: the source of that value: "evaluation", "training" or "elo".
        measure: the same in words, such as "mean return of the summary of step 9000".
        path: ``best.pt``. With evaluations it is written at once, otherwise with the next checkpoint.
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
    """Queues events, in order, until the loop's thread calls the user's functions: no trainer is at work then."""

    def __init__(
        self,
        *,
        on_checkpoint: Callable[[SavedCheckpoint], object] | None = None,
        on_evaluation: Callable[[Evaluation], object] | None = None,
        on_best: Callable[[BestCheckpoint], object] | None = None,
    ) -> None:
        self._functions: dict[type, Callable[[Any], object] | None] = {
            SavedCheckpoint: on_checkpoint,
            Evaluation: on_evaluation,
            BestCheckpoint: on_best,
        }
        self._waiting: deque[tuple[Callable[[Any], object], object]] = deque()

    def add(self, event: SavedCheckpoint | Evaluation | BestCheckpoint) -> None:
        """Queue an event. Safe in any thread."""
        function = self._functions[type(event)]
        if function is not None:
            self._waiting.append((function, event))

    def call(self) -> None:
        """Call the functions for all queued events. If one raises, none is called any more."""
        while self._waiting:
            function, event = self._waiting.popleft()
            try:
                function(event)
            except BaseException:
                self._functions = dict.fromkeys(self._functions)
                self._waiting.clear()
                raise
