"""The user's callbacks for events in a run, which are called between two iterations of the loop."""

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
        step: trainer step.
        reward: mean return of the episodes since the last policy update; None if there were no episodes.
        path: ``<Behavior>-<step>.pt``. Only the newest ``keep_checkpoints`` files are kept.
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
        step: trainer step of the evaluated policy.
        result: the results of the episodes.
    """

    behavior: str
    step: int
    result: EvaluationResult


@dataclass(frozen=True, slots=True)
class BestCheckpoint:
    """The best model of a behavior so far.

    Attributes:
        behavior: name of the behavior.
        step: trainer step of the model.
        reward: the value that models are ranked by.
        by: the source of that value: "evaluation", "training" or "elo".
        measure: a description of that value, such as "mean return of the summary of step 9000".
        path: ``best.pt``. With evaluations, it is written immediately; otherwise, with the next checkpoint.
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
    """Queues events until the loop calls the user's functions for them."""

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
        """Queue an event. Can be called from any thread."""
        function = self._functions[type(event)]
        if function is not None:
            self._waiting.append((function, event))

    def call(self) -> None:
        """Call the functions for all queued events. After an exception, no more functions are called."""
        while self._waiting:
            function, event = self._waiting.popleft()
            try:
                function(event)
            except BaseException:
                self._functions = dict.fromkeys(self._functions)
                self._waiting.clear()
                raise
