"""A check of action masks that all kinds of environments share.

Shape legend: N agents, D sum of branch sizes.
"""

import logging
from collections.abc import Sequence

import numpy as np

from trajtrainer.core.steps import BoolArray

logger = logging.getLogger(__name__)


class MaskCheck:
    """Warns once about a mask that forbids all choices of a branch, which no policy can obey.

    Unity's package raises an exception in the game for such a mask.

    Args:
        where: the agents, for the message.
        branches: sizes of the discrete branches.
    """

    def __init__(self, where: str, branches: Sequence[int]) -> None:
        self._where = where
        self._branches = branches
        self._starts = np.cumsum((0, *branches[:-1]))
        self._is_done = not branches

    def __call__(self, mask: BoolArray) -> None:
        """Check masks [N, D], True = forbidden."""
        if self._is_done or not mask.any():
            return
        blocked = np.logical_and.reduceat(mask, self._starts, axis=1).any(axis=0)
        if blocked.any():
            self._is_done = True
            branch = int(blocked.argmax())
            logger.warning(
                "%s: an action mask forbids all %d choices of discrete branch %d. One of them is taken all the same. "
                "Allow at least one choice in every branch, for example one that does nothing.",
                self._where,
                self._branches[branch],
                branch,
            )
