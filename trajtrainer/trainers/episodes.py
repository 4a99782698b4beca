"""Sums of rewards over whole episodes, which may span many trajectories."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from trajtrainer.steps import WORKER_SHIFT, BoolArray, FloatArray, IntArray, LongArray


class EpisodeSums:
    """Adds up several kinds of reward per agent until its episode ends.

    Letters: X kinds, B packed steps, S trajectories, E of them that end an episode.
    """

    def __init__(self) -> None:
        self._sums: dict[int, list[float]] = {}

    def add(self, rewards: FloatArray, offset: IntArray, agent: LongArray, ended: BoolArray) -> NDArray[np.float64]:
        """Takes trajectories in order.

        Args:
            rewards: f32 [X, B].
            offset: i32 [S + 1].
            agent: i64 [S].
            ended: bool [S], the episode ended with this trajectory.

        Returns:
            f64 [X, E], the sums of the episodes that ended, in order.
        """
        sums = np.add.reduceat(rewards.astype(np.float64), offset[:-1], axis=1)
        finished = []
        for one, parts, is_end in zip(agent.tolist(), sums.T.tolist(), ended.tolist(), strict=True):
            earlier = self._sums.get(one)
            total = parts if earlier is None else [a + b for a, b in zip(earlier, parts, strict=True)]
            if is_end:
                self._sums.pop(one, None)
                finished.append(total)
            else:
                self._sums[one] = total
        return np.array(finished, np.float64).reshape(len(finished), len(rewards)).T

    def forget(self, worker: int | None) -> None:
        """Drops the unfinished episodes of one worker, or of all."""
        self._sums = {a: s for a, s in self._sums.items() if worker is not None and a >> WORKER_SHIFT != worker}
