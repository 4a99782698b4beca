"""Whether recordings still have something to teach."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Sequence

import numpy as np

from trajtrainer.core.steps import FloatArray
from trajtrainer.data.trajectory import PackedSteps
from trajtrainer.rewards.trained import OfAgents

_LATEST = 100


class RecordedEpisodes:
    """Compares recorded episodes with the agents' latest 100, by the sum of the environment's rewards.

    Recordings that are no better than the agents only take the place of the agents' own steps in the batches.

    Args:
        recorded: the recorded steps. Episodes that the recording cuts off do not count.

    Attributes:
        recorded: the mean return of recorded episodes; None if there is no whole one.
    """

    def __init__(self, recorded: PackedSteps) -> None:
        returns = _rewards(recorded)[recorded.ended]
        self.recorded = float(returns.mean()) if len(returns) else None
        self._latest: deque[float] = deque(maxlen=_LATEST)
        self._unfinished = OfAgents()

    @property
    def are_better(self) -> bool:
        """True until the agents earn as much. Also while one of both has no whole episode."""
        return self.recorded is None or not self._latest or statistics.fmean(self._latest) < self.recorded

    def add(self, packed: PackedSteps) -> None:
        """Add new steps of the agents."""
        parts = zip(packed.agent.tolist(), _rewards(packed).tolist(), packed.ended.tolist(), strict=True)
        for agent, part, ended in parts:
            total = self._unfinished.get(agent, 0.0) + part
            self._unfinished.keep(agent, 0.0 if ended else total)
            if ended:
                self._latest.append(total)

    def reset_worker(self, worker: int | None) -> None:
        """Forget the unfinished episodes of one worker's agents, or of all."""
        self._unfinished.reset_worker(worker)

    def state(self) -> list[float]:
        """The returns of the agents' latest episodes."""
        return list(self._latest)

    def load_state(self, state: Sequence[float]) -> None:
        """Restore what ``state`` returned."""
        self._latest = deque(map(float, state), _LATEST)


def _rewards(packed: PackedSteps) -> FloatArray:
    """The sum of each trajectory's rewards, f64 [S]."""
    rewards = packed["reward"].astype(np.float64) + packed["group_reward"]
    found: FloatArray = np.add.reduceat(rewards, packed.offset[:-1])
    return found
