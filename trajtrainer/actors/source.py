"""The learner's end of the experience of one behaviour, from all actors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from trajtrainer.core.columns import Columns
from trajtrainer.core.queues import TrajectoryQueue
from trajtrainer.core.steps import IntArray
from trajtrainer.data.source import QueueSource
from trajtrainer.data.trajectory import PackedSteps, join_packed


@dataclass(frozen=True, slots=True)
class Chunk:
    """Trajectories that an actor has handed over.

    Attributes:
        packed: the steps, where the actor has put them.
        rows: of the learner's buffer that they take.
        release: gives their place back to the actor.
    """

    packed: PackedSteps
    rows: int
    release: Callable[[], None]

    @property
    def num_steps(self) -> int:
        """B."""
        return len(self.packed)

    @property
    def lengths(self) -> IntArray:
        """i32 [S], steps of each trajectory."""
        return self.packed.lengths


class ActorSource(QueueSource[Chunk]):
    """Chunks of actors, in order. See ``ExperienceSource``.

    Attributes:
        rows_taken: rows of all that was drained.
        rows_held: of those, what the learner has not learnt from yet; see ``drain``.
        on_progress: called when something of what is held is given back in the midst of an update.
    """

    is_elsewhere = True

    def __init__(self) -> None:
        """Begin without experience."""
        super().__init__(TrajectoryQueue())
        self.rows_taken = 0
        self.rows_held = 0.0
        self.on_progress: Callable[[], object] = _nothing
        self._rows_drained = 0  # by the last drain
        self.abort_episodes = self._queue.abort_episodes
        self.request_drain = self._queue.request_drain

    def put(self, chunk: Chunk) -> None:
        """Append what an actor has handed over."""
        self._queue.put(chunk, chunk.num_steps)

    def _pack(self, batches: Sequence[Chunk], into: Columns[NDArray[Any]] | None) -> PackedSteps:
        return join_packed([chunk.packed for chunk in batches], into)

    def _packed(self, batches: Sequence[Chunk], *, hold: bool) -> None:
        for chunk in batches:
            chunk.release()
        self.settle()
        self._rows_drained = sum(chunk.rows for chunk in batches)
        self.rows_taken += self._rows_drained
        self.rows_held = self._rows_drained if hold else 0

    def give_back(self, part: float) -> None:
        """See ``ExperienceSource``."""
        self.rows_held = min(self.rows_held, (1 - part) * self._rows_drained)
        self.on_progress()

    def settle(self) -> None:
        """See ``ExperienceSource``."""
        self.rows_held = 0

    def abandon(self) -> None:
        """See ``ExperienceSource``: actors wait for credit only, and end with the run."""


def _nothing() -> None:
    pass
