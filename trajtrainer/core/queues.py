"""The two queues between acting and learning: finished trajectories one way, policies the other.

Generic in what they carry, so that neither side is imported here. Both are safe to use from several threads; nothing
polls.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")
W = TypeVar("W")


@dataclass(frozen=True, slots=True)
class EpisodesAborted:
    """The end of unfinished episodes of one worker's agents, or of all (None): it was reset.

    Trajectories that follow are of new episodes.
    """

    worker: int | None


class TrajectoryQueue(Generic[T]):
    """The experience on its way to a trainer, in order.

    Batches of finished trajectories, and where unfinished episodes were aborted.

    Unbounded: an actor's allowance (``actors.pacing``) bounds what waits here.

    Attributes:
        num_put: steps of all batches that ever came.
    """

    def __init__(self) -> None:
        self._items: list[T | EpisodesAborted] = []
        self._num_steps = 0
        self.num_put = 0
        self._changed = threading.Condition()
        self._closed = False
        self._is_needed = False

    def __len__(self) -> int:
        return len(self._items)

    @property
    def num_steps(self) -> int:
        """Steps of all batches that wait, as told to ``put``."""
        return self._num_steps

    @property
    def is_needed(self) -> bool:
        """Whether what waits should be drained, however little it is."""
        return self._is_needed

    def put(self, item: T, num_steps: int = 0) -> None:
        """Append a batch of so many steps and wake who waits.

        Allowed after ``close`` too: its rows can still be given back.
        """
        with self._changed:
            self._items.append(item)
            self._num_steps += num_steps
            self.num_put += num_steps
            self._changed.notify_all()

    def abort_episodes(self, worker: int | None) -> None:
        """Append ``EpisodesAborted``, which is needed at once (``request_drain``)."""
        with self._changed:
            self._items.append(EpisodesAborted(worker))
            self._is_needed = True
            self._changed.notify_all()

    def drain(self) -> list[T | EpisodesAborted]:
        """Take all there are, oldest first; an empty list if there are none. Does not wait."""
        with self._changed:
            items, self._items = self._items, []
            self._num_steps = 0
            self._is_needed = False
            return items

    def wait(self, timeout_s: float | None = None, enough: Callable[[], bool] | None = None) -> bool:
        """Wait until there is something to drain.

        Args:
            timeout_s: at most so long; None for as long as it takes.
            enough: whether what there is, is worth draining. Not asked after ``request_drain``.

        Returns:
            True if there is something. False after the timeout, or if the queue is closed and empty.
        """

        def is_over() -> bool:
            return self._closed or bool(self._items and (enough is None or self._is_needed or enough()))

        with self._changed:
            self._changed.wait_for(is_over, timeout_s)
            return bool(self._items)

    def request_drain(self) -> None:
        """Tell that somebody waits for what is in here to be drained, however little it is."""
        with self._changed:
            self._is_needed = True
            self._changed.notify_all()

    def close(self) -> None:
        """End all waiting, now and later: nothing more will come."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()


@dataclass(frozen=True)
class PolicyUpdate(Generic[W]):
    """Weights for the acting side.

    Attributes:
        version: grows with every published policy of a behavior that has learned.
        weights: name -> value, a snapshot: never the arrays that are being trained.
        partial: only some weights (say, the normalizer's); the others stay as they were.
    """

    version: int
    weights: Mapping[str, W]
    partial: bool = False


class PolicyQueue(Generic[W]):
    """The newest weights of each policy on their way to the acting side.

    Older ones are of no use, so there is at most one update of each.

    A behavior has the policy of its name; teams that play different ones could have one by their behavior id each.
    """

    def __init__(self) -> None:
        self._pending: dict[str, PolicyUpdate[W]] = {}
        self._lock = threading.Lock()

    def put(self, policy: str, update: PolicyUpdate[W]) -> None:
        """Replace what waits of ``policy``; a partial update is merged into it."""
        with self._lock:
            pending = self._pending.get(policy)
            if update.partial and pending is not None:
                weights = {**pending.weights, **update.weights}
                update = PolicyUpdate(update.version, weights, partial=pending.partial)
            self._pending[policy] = update

    def latest(self, policy: str) -> PolicyUpdate[W] | None:
        """Take the newest weights of ``policy``, or None if there are none since the last call. Does not wait."""
        with self._lock:
            return self._pending.pop(policy, None)
