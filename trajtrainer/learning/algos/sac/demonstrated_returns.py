"""Compares the returns of demonstrations with those of the agents."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Sequence

from trajtrainer.experience.trajectory import EpisodeSums, PackedSteps

_LATEST = 100


class DemonstratedReturns:
    """Compares the returns of recorded episodes with those of the agents' latest 100.

    Recordings that are no better than the agents only take the place of the agents' own steps in the batches. Returns
    are sums of the environment's rewards.

    Args:
        recorded: the recorded steps. Episodes that the recording cuts off do not count.

    Attributes:
        mean_return: of the recorded episodes; None if none is complete.
    """

    def __init__(self, recorded: PackedSteps) -> None:
        returns = _finished(EpisodeSums(), recorded)
        self.mean_return = statistics.fmean(returns) if returns else None
        self._latest: deque[float] = deque(maxlen=_LATEST)
        self._sums = EpisodeSums()

    @property
    def are_better(self) -> bool:
        """Whether the recorded episodes earn more. Also True while either side has no complete episode."""
        return self.mean_return is None or not self._latest or statistics.fmean(self._latest) < self.mean_return

    def add(self, packed: PackedSteps) -> None:
        """Add new steps of the agents."""
        self._latest.extend(_finished(self._sums, packed))

    def reset_worker(self, worker: int | None) -> None:
        """Forget the unfinished episodes of one worker's agents, or of all."""
        self._sums.reset_worker(worker)

    def state(self) -> list[float]:
        """The returns of the agents' latest episodes."""
        return list(self._latest)

    def load_state(self, state: Sequence[float]) -> None:
        """Restore what ``state`` returned."""
        self._latest = deque(map(float, state), _LATEST)


def _finished(sums: EpisodeSums, packed: PackedSteps) -> list[float]:
    """The returns of the episodes that these steps complete."""
    rewards = (packed["reward"] + packed["group_reward"])[None]
    found: list[float] = sums.add(rewards, packed.offset, packed.agent, packed.ended)[0].tolist()
    return found
