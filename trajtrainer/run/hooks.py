"""The user's callbacks, which are called between two passes of the loop after an event in the run."""

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
    """A saved checkpoint.

    Attributes:
        behavior: name of the behavior.
        step: step of its trainer.
        reward: mean return of the episodes since the last policy update; None without episodes.
        path: ``<Behavior>-<step>.pt``, which is kept while it is one of the newest ``keep_checkpoints``.
        onnx: the exported policy, which Unity can load; None if it could not be exported.
        is_last: True if it was saved at the end of the run.
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
        behavior: name of the behavior.
        step: step of its trainer when it had the evaluated policy.
        result: the results of its episodes.
    """

    behavior: str
    step: int
    result: EvaluationResult


@dataclass(frozen=True, slots=True)
class BestCheckpoint:
    """The best model of a behavior so far.

    Attributes:
        behavior: name of the behavior.
        step: step of its trainer when it had this model.
        reward: the value that models are ranked by.
        by: the source of that value: "evaluation", "training" or "elo".
        measure: a description of that value, such as "mean return of the summary of step 9000".
        path: ``best.pt``. With evaluations it is written at once, otherwise with the next checkpoint.
        onnx: ``best.onnx``, written at the same time as ``path``.
    """

    behavior: str
    step: int
    reward: float
    by: str
    measure: str
    path: Path
    onnx: Path


class Hooks:
    """Queues events, in order, until the loop's thread calls the user's functions between two passes."""

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
        """Call the functions for all queued events. After an exception, no function is called anymore."""
        while self._waiting:
            function, event = self._waiting.popleft()
            try:
                function(event)
            except BaseException:
                self._functions = dict.fromkeys(self._functions)
                self._waiting.clear()
                raise
