"""Compares the returns of recorded episodes with those of the agents."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Sequence

from trajtrainer.experience.trajectory import EpisodeSums, PackedSteps

_LATEST = 100


class DemonstratedReturns:
    """Compares the returns of recorded episodes with those of the agents' latest 100 episodes.

    Recordings that are no better than the agents would only displace the agents' own steps in the batches. Returns are
    undiscounted sums of the environment's rewards.

    Args:
        recorded: the recorded steps. Incomplete episodes do not count.

    Attributes:
        mean_return: mean return of the recorded episodes; None if no episode is complete.
    """

    def __init__(self, recorded: PackedSteps) -> None:
        returns = _finished(EpisodeSums(), recorded)
        self.mean_return = statistics.fmean(returns) if returns else None
        self._latest: deque[float] = deque(maxlen=_LATEST)
        self._sums = EpisodeSums()

    @property
    def are_better(self) -> bool:
        """True if the recorded episodes have higher returns, or if either side has no complete episode yet."""
        return self.mean_return is None or not self._latest or statistics.fmean(self._latest) < self.mean_return

    def add(self, packed: PackedSteps) -> None:
        """Add new steps of the agents."""
        self._latest.extend(_finished(self._sums, packed))

    def reset_worker(self, worker: int | None) -> None:
        """Drop the unfinished episodes of one worker's agents, or of all agents (None)."""
        self._sums.reset_worker(worker)

    def state(self) -> list[float]:
        """Return the returns of the agents' latest episodes."""
        return list(self._latest)

    def load_state(self, state: Sequence[float]) -> None:
        """Restore the state returned by ``state``."""
        self._latest = deque(map(float, state), _LATEST)


def _finished(sums: EpisodeSums, packed: PackedSteps) -> list[float]:
    """Return the returns of the episodes that ended within these steps."""
    rewards = (packed["reward"] + packed["group_reward"])[None]
    found: list[float] = sums.add(rewards, packed.offset, packed.agent, packed.ended)[0].tolist()
    return found
