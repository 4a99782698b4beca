"""Schedules of the learning rate, the clipping range and the entropy coefficient."""

from __future__ import annotations

import math
from dataclasses import dataclass

from trajtrainer.settings.components import ScheduleType

# Final values of decaying schedules (docs/explanation/mlagents-behavior.md#schedules).
MIN_LEARNING_RATE = 1e-10
MIN_EPSILON = 0.1
MIN_BETA = 1e-5
# Bounds of the adaptive learning rate.
ADAPTIVE_RANGE = (1e-5, 1e-2)
_ADAPTATION_FACTOR = 1.5


@dataclass(frozen=True, slots=True)
class Schedule:
    """The scheduled hyperparameters at one trainer step. ``beta`` is the entropy coefficient, c2 in the PPO paper."""

    learning_rate: float
    epsilon: float
    beta: float


def decayed(schedule: ScheduleType, initial: float, minimum: float, max_steps: int, step: int) -> float:
    """Return the value of a schedule at trainer step ``step``.

    ``LINEAR`` decays from ``initial`` at step 0 to ``minimum`` at ``max_steps`` and then stays constant. ``COSINE``
    decays along half a cosine (Loshchilov & Hutter 2017). ``CONSTANT`` and ``ADAPTIVE`` return ``initial``. An
    ``initial`` below ``minimum`` stays constant; in ML-Agents it *rises* to the minimum, so an epsilon of 0.05 ends at
    0.1 (docs/explanation/mlagents-behavior.md#schedules).

    >>> decayed(ScheduleType.LINEAR, 0.2, 0.1, 1000, 500)
    0.15000000000000002
    >>> decayed(ScheduleType.LINEAR, 0.05, 0.1, 1000, 500)
    0.05
    """
    if schedule not in (ScheduleType.LINEAR, ScheduleType.COSINE) or initial <= minimum:
        return initial
    left = 1 - min(step, max_steps) / max_steps
    if schedule is ScheduleType.COSINE:
        left = 0.5 * (1 - math.cos(math.pi * left))
    return (initial - minimum) * left + minimum


def adapted(learning_rate: float, kl: float, desired_kl: float) -> float:
    """Adapt the learning rate to ``kl``, the KL divergence measured just before a gradient step, as in rsl_rl.

    A divergence of 0, as in the first gradient step of an update, changes nothing.

    >>> adapted(3e-4, 0.05, 0.01)
    0.00019999999999999998
    """
    low, high = ADAPTIVE_RANGE
    if kl > 2 * desired_kl:
        return max(low, learning_rate / _ADAPTATION_FACTOR)
    return min(high, learning_rate * _ADAPTATION_FACTOR) if 0 < kl < desired_kl / 2 else learning_rate
