"""Leaves out what was acted by policies that are too old to learn from.

Shape legend: B packed steps.
"""

from __future__ import annotations

from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trajtrainer.core.steps import LongArray
from trajtrainer.data.trajectory import PackedSteps, join_packed


class Recent(NamedTuple):
    """The trajectories that are left.

    Attributes:
        packed: their steps; None without any.
        steps: i64, which these were among those before.
    """

    packed: PackedSteps | None
    steps: LongArray


def without_old(packed: PackedSteps, lag: NDArray[Any], limit: int) -> Recent | None:
    """Return the trajectories whose last steps are recent; None if all are.

    The last step counts: in a run without actors, too, a trajectory that is long for the buffer begins some policies
    before it is learnt from.

    Args:
        packed: B steps.
        lag: [B], how many policies have followed on the one that decided each.
        limit: up to which it is recent.
    """
    is_recent = lag[packed.offset[1:] - 1] <= limit
    if is_recent.all():
        return None
    parts = []
    for kept, group in groupby(range(len(is_recent)), lambda number: bool(is_recent[number])):
        numbers = list(group)
        if kept:
            parts.append(packed.trajectories(numbers[0], numbers[-1] + 1))
    steps = np.flatnonzero(np.repeat(is_recent, packed.lengths))
    return Recent(join_packed(parts) if parts else None, steps)
