"""The learner's end of the experience of one behaviour, from all actors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from trajtrainer.data.source import Room
from trajtrainer.data.trajectory import PackedSteps, join_packed
from trajtrainer.queues import EpisodesAborted, TrajectoryQueue
from trajtrainer.steps import IntArray

_NONE = np.zeros(0, np.int32)


@dataclass(frozen=True, slots=True)
class Shipment:
    """Trajectories that an actor has handed over.

    Attributes:
        packed: the steps, where the actor has put them.
        rows: of the learner's buffer that they take.
        release: gives their place back to the actor.
    """

    packed: PackedSteps
    rows: int
    release: Callable[[], None]


class ActorSource:
    """Shipments of actors, in order. See ``ExperienceSource``.

    Attributes:
        rows_taken: rows of all that was drained.
        rows_held: of those, what the learner has not learnt from yet; see ``drain``.
        on_progress: called when something of what is held is given back in the midst of an update.
    """

    is_elsewhere = True

    def __init__(self) -> None:
        """Begin without experience."""
        self.rows_taken = 0
        self.rows_held = 0.0
        self._queue: TrajectoryQueue[Shipment] = TrajectoryQueue()
        self.on_progress: Callable[[], None] = _nothing
        self._rows_drained = 0  # by the last drain
        self.wait = self._queue.wait
        self.close = self._queue.close
        self.abort_episodes = self._queue.abort_episodes
        self.request_drain = self._queue.request_drain

    @property
    def num_put(self) -> int:
        """See ``ExperienceSource``."""
        return self._queue.num_put

    @property
    def num_steps(self) -> int:
        """See ``ExperienceSource``."""
        return self._queue.num_steps

    @property
    def is_needed(self) -> bool:
        """See ``ExperienceSource``."""
        return self._queue.is_needed

    def __len__(self) -> int:
        return len(self._queue)

    def put(self, shipment: Shipment) -> None:
        """Append what an actor has handed over."""
        self._queue.put(shipment, len(shipment.packed))

    def lengths(self) -> IntArray:
        """See ``ExperienceSource``."""
        lengths = [shipment.packed.lengths for shipment in _shipments(self._queue.waiting())]
        return np.concatenate(lengths) if lengths else _NONE

    def drain(self, room: Room, *, hold: bool = False) -> list[PackedSteps | EpisodesAborted]:
        """See ``ExperienceSource``. What comes between two aborts is joined."""
        items = self._queue.drain()
        shipments = _shipments(items)
        into = room(sum(len(shipment.packed) for shipment in shipments)) if shipments else None
        parts: list[PackedSteps | EpisodesAborted] = []
        end = 0
        for is_aborted, group in groupby(items, lambda item: isinstance(item, EpisodesAborted)):
            found = list(group)
            if is_aborted:
                parts += [item for item in found if isinstance(item, EpisodesAborted)]
                continue
            some = [shipment.packed for shipment in _shipments(found)]
            start, end = end, end + sum(map(len, some))
            parts.append(join_packed(some, None if into is None else into.slice(start, end)))
        for shipment in shipments:
            shipment.release()
        self.settle()
        self._rows_drained = sum(shipment.rows for shipment in shipments)
        self.rows_taken += self._rows_drained
        self.rows_held = self._rows_drained if hold else 0
        return parts

    def give_back(self, part: float) -> None:
        """See ``ExperienceSource``."""
        self.rows_held = min(self.rows_held, (1 - part) * self._rows_drained)
        self.on_progress()

    def settle(self) -> None:
        """See ``ExperienceSource``."""
        self.rows_held = 0

    def abandon(self) -> None:
        """See ``ExperienceSource``: actors wait for credit only, and end with the run."""


def _shipments(items: Sequence[Shipment | EpisodesAborted]) -> list[Shipment]:
    return [item for item in items if isinstance(item, Shipment)]


def _nothing() -> None:
    pass
