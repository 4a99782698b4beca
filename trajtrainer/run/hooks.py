"""Functions of the user that are called when something happens in a run, between two passes of its loop."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any


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


class Hooks:
    """Keeps what happened, in its order, until the loop's thread tells it: trainers are at rest then.

    Args:
        on_checkpoint: called with a ``SavedCheckpoint``.
    """

    def __init__(self, *, on_checkpoint: Callable[[SavedCheckpoint], object] | None = None) -> None:
        self._on_checkpoint = on_checkpoint
        self._waiting: deque[tuple[Callable[[Any], object], object]] = deque()

    def checkpoint(self, saved: SavedCheckpoint) -> None:
        """Note that a checkpoint was saved. May be called from any thread."""
        self._add(self._on_checkpoint, saved)

    def tell(self) -> None:
        """Call the functions for what has happened since the last call. If one fails, none is called any more."""
        while self._waiting:
            function, event = self._waiting.popleft()
            try:
                function(event)
            except BaseException:
                self._on_checkpoint = None
                self._waiting.clear()
                raise

    def _add(self, function: Callable[[Any], object] | None, event: object) -> None:
        if function is not None:
            self._waiting.append((function, event))
