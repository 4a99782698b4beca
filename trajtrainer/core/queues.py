"""The two queues between acting and learning: finished trajectories go one way, policies the other.

Both are generic in what they carry, so this module imports neither side. Both are thread-safe, and nothing polls.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")
W = TypeVar("W")


class Marker:
    """Something that happened between two batches of finished trajectories."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class EpisodesAborted(Marker):
    """A reset ended the unfinished episodes of one worker's agents, or of all workers' (None).

    Trajectories that follow belong to new episodes.
    """

    worker: int | None


@dataclass(frozen=True, slots=True)
class LessonBegan(Marker):
    """A parameter of the environment moved on to its next lesson. Episodes that ended before belong to the old one.

    Attributes:
        number: how many lessons all parameters together have completed.
    """

    number: int


class TrajectoryQueue(Generic[T]):
    """Experience on its way to a trainer, in order: batches of finished trajectories, and markers between them.

    The queue itself is unbounded: an actor's allowance (``actors.pacing``) limits what waits here.

    Attributes:
        num_put: steps of all batches that were ever put.
    """

    def __init__(self) -> None:
        self._items: list[T | Marker] = []
        self._num_steps = 0
        self.num_put = 0
        self._changed = threading.Condition()
        self._closed = False
        self._is_needed = False

    def __len__(self) -> int:
        return len(self._items)

    @property
    def num_steps(self) -> int:
        """Steps of all batches that wait, as the callers of ``put`` counted them."""
        return self._num_steps

    @property
    def is_closed(self) -> bool:
        """Whether nothing more will come."""
        return self._closed

    @property
    def is_needed(self) -> bool:
        """Whether what waits should be drained, however little it is."""
        return self._is_needed

    def put(self, item: T | Marker, num_steps: int = 0) -> None:
        """Append a batch of ``num_steps`` steps, or a marker, and wake the threads that wait.

        Allowed after ``close``, too: the rows of the batch can still be given back.
        """
        with self._changed:
            self._items.append(item)
            self._num_steps += num_steps
            self.num_put += num_steps
            self._changed.notify_all()

    def abort_episodes(self, worker: int | None) -> None:
        """Append ``EpisodesAborted`` and request a drain: the actor waits for its effect."""
        with self._changed:
            self._items.append(EpisodesAborted(worker))
            self._is_needed = True
            self._changed.notify_all()

    def drain(self) -> list[T | Marker]:
        """Take everything that is queued, oldest first, without waiting."""
        with self._changed:
            items, self._items = self._items, []
            self._num_steps = 0
            self._is_needed = False
            return items

    def wait(self, timeout_s: float | None = None, enough: Callable[[], bool] | None = None) -> bool:
        """Wait until there is something to drain.

        Args:
            timeout_s: how long to wait at most; None waits without limit.
            enough: whether what is queued is worth draining. Not called after ``request_drain``.

        Returns:
            False after a timeout, or if the queue is closed, with nothing queued.
        """

        def is_over() -> bool:
            return self._closed or bool(self._items and (enough is None or self._is_needed or enough()))

        with self._changed:
            self._changed.wait_for(is_over, timeout_s)
            return bool(self._items)

    def request_drain(self) -> None:
        """Ask for a drain of whatever is queued, because a thread waits for its effect."""
        with self._changed:
            self._is_needed = True
            self._changed.notify_all()

    def close(self) -> None:
        """End all waiting, now and in the future: nothing more will come."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()


@dataclass(frozen=True)
class PolicyUpdate(Generic[W]):
    """Weights for the acting side.

    Attributes:
        version: increases with every policy that a behavior publishes after learning.
        weights: name -> value. A snapshot, never the arrays that are being trained.
        partial: only some weights, such as the normalizer's; the others stay unchanged.
    """

    version: int
    weights: Mapping[str, W]
    partial: bool = False


class PolicyQueue(Generic[W]):
    """The newest weights of each policy on their way to the acting side, by the name of its behavior.

    Older weights are useless by then, so at most one update of each policy waits.
    """

    def __init__(self) -> None:
        self._pending: dict[str, PolicyUpdate[W]] = {}
        self._lock = threading.Lock()

    def put(self, policy: str, update: PolicyUpdate[W]) -> None:
        """Replace the waiting update of ``policy``, or merge a partial update into it."""
        with self._lock:
            pending = self._pending.get(policy)
            if update.partial and pending is not None:
                weights = {**pending.weights, **update.weights}
                update = PolicyUpdate(update.version, weights, partial=pending.partial)
            self._pending[policy] = update

    def latest(self, policy: str) -> PolicyUpdate[W] | None:
        """Take the newest weights of ``policy``; None if nothing was put since the last call. Does not wait."""
        with self._lock:
            return self._pending.pop(policy, None)
