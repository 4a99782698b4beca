"""Rows that a learner keeps from the acting side until it has learnt from them: that is how it holds it back."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trajtrainer.data.rows import RowPool
from trajtrainer.data.trajectory import TrajectoryBatch, join
from trajtrainer.steps import IntArray

_NONE = np.zeros(0, np.int32)


class Loan:
    """Rows of trajectories that were copied already and are given back little by little.

    The pool's limit then bounds how far acting is ahead of learning, and acting that has to wait goes on as soon as as
    many updates are made as its next steps need, not only after all of them.
    """

    def __init__(self, pool: RowPool) -> None:
        self._pool = pool
        self._rows: IntArray = _NONE
        self._bootstraps: IntArray = _NONE
        self._returned = 0

    def take(self, batches: Sequence[TrajectoryBatch]) -> None:
        """Keeps the rows of these batches. Whatever was kept before must be settled."""
        batch = join(batches)
        self._rows, self._bootstraps, self._returned = batch.rows, batch.bootstrap, 0

    def give_back(self, share: float) -> None:
        """Gives rows back until ``share`` (0 to 1) of the steps is returned, the oldest first."""
        until = int(share * len(self._rows))
        if until > self._returned:
            self._pool.release(self._rows[self._returned : until])
            self._returned = until

    def settle(self) -> None:
        """Gives back all that is left."""
        rows, bootstraps = self._rows[self._returned :], self._bootstraps
        self._rows, self._bootstraps, self._returned = _NONE, _NONE, 0
        # Two calls, because a row can be a step of one trajectory and the bootstrap of the one before.
        self._pool.release(rows)
        self._pool.release(bootstraps)
