"""The two queues between acting and learning: one for finished trajectories, the other for policies.

Both are generic in the type of their items, so this module does not import the code that uses them. Both are
thread-safe and wait without polling.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")
W = TypeVar("W")


class Marker:
    """An event between two batches of finished trajectories."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class EpisodesAborted(Marker):
    """A reset ended the unfinished episodes of the agents of one worker, or of all workers (None).

    Subsequent trajectories belong to new episodes.
    """

    worker: int | None


@dataclass(frozen=True, slots=True)
class LessonBegan(Marker):
    """An environment parameter moved on to its next lesson. Earlier episodes belong to the previous lesson.

    Attributes:
        number: total number of lessons that all parameters have completed.
    """

    number: int


class TrajectoryQueue(Generic[T]):
    """A queue of experience for a trainer: batches of finished trajectories, and markers between them, in order.

    The queue itself is unbounded; the allowance of each actor (``actors.pacing``) limits its size.

    Attributes:
        num_put: total number of steps in all batches that were ever put.
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
        """Number of steps in all queued batches, as counted by the callers of ``put``."""
        return self._num_steps

    @property
    def is_closed(self) -> bool:
        """True if the queue has been closed, so that no more experience is expected."""
        return self._closed

    @property
    def is_needed(self) -> bool:
        """True if the queue should be drained even if it only has a few items."""
        return self._is_needed

    def put(self, item: T | Marker, num_steps: int = 0) -> None:
        """Append a batch of ``num_steps`` steps, or a marker, and wake the waiting threads.

        This is also allowed after ``close``, so that the rows of the batch can still be released.
        """
        with self._changed:
            self._items.append(item)
            self._num_steps += num_steps
            self.num_put += num_steps
            self._changed.notify_all()

    def abort_episodes(self, worker: int | None) -> None:
        """Append ``EpisodesAborted`` and request a drain, because the actor waits until the event has been handled."""
        with self._changed:
            self._items.append(EpisodesAborted(worker))
            self._is_needed = True
            self._changed.notify_all()

    def drain(self) -> list[T | Marker]:
        """Remove and return all queued items, oldest first, without waiting."""
        with self._changed:
            items, self._items = self._items, []
            self._num_steps = 0
            self._is_needed = False
            return items

    def wait(self, timeout_s: float | None = None, enough: Callable[[], bool] | None = None) -> bool:
        """Wait until there is something to drain.

        Args:
            timeout_s: maximum time to wait; None to wait without limit.
            enough: returns whether the queued items are worth draining. Not called after ``request_drain``.

        Returns:
            True if there are queued items, False if the wait timed out or the queue was closed without any.
        """

        def is_over() -> bool:
            return self._closed or bool(self._items and (enough is None or self._is_needed or enough()))

        with self._changed:
            self._changed.wait_for(is_over, timeout_s)
            return bool(self._items)

    def request_drain(self) -> None:
        """Ask the consumer to drain the queue even if it only has a few items, because a thread is waiting for that."""
        with self._changed:
            self._is_needed = True
            self._changed.notify_all()

    def close(self) -> None:
        """Close the queue, which ends all current and future calls of ``wait``."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()


@dataclass(frozen=True)
class PolicyUpdate(Generic[W]):
    """An update of a policy's weights for the acting side.

    Attributes:
        version: version number, which increases with every policy that a behavior publishes after learning.
        weights: name -> value. A snapshot, never the arrays that are being trained.
        partial: True if the update contains only some weights, such as the normalizer's. The others stay unchanged.
    """

    version: int
    weights: Mapping[str, W]
    partial: bool = False


class PolicyQueue(Generic[W]):
    """A queue of the newest weights of each policy for the acting side, by the name of the behavior.

    Older weights are useless, so at most one update per policy is queued.
    """

    def __init__(self) -> None:
        self._pending: dict[str, PolicyUpdate[W]] = {}
        self._lock = threading.Lock()

    def put(self, policy: str, update: PolicyUpdate[W]) -> None:
        """Replace the queued update of ``policy``, or merge a partial update into it."""
        with self._lock:
            pending = self._pending.get(policy)
            if update.partial and pending is not None:
                weights = {**pending.weights, **update.weights}
                update = PolicyUpdate(update.version, weights, partial=pending.partial)
            self._pending[policy] = update

    def latest(self, policy: str) -> PolicyUpdate[W] | None:
        """Remove and return the newest weights of ``policy`` without waiting; None if there are no new ones."""
        with self._lock:
            return self._pending.pop(policy, None)
