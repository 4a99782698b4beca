"""Values that fall over training: learning rate, clipping range, entropy weight."""

from __future__ import annotations

from dataclasses import dataclass

from trajtrainer.settings.trainer import ScheduleType

# The values that a linear schedule ends at (docs/mlagents-behavior.md#schedules).
MIN_LEARNING_RATE = 1e-10
MIN_EPSILON = 0.1
MIN_BETA = 1e-5


@dataclass(frozen=True, slots=True)
class Coefficients:
    """Values of the schedules at one trainer step."""

    learning_rate: float
    epsilon: float
    beta: float


def decayed(schedule: ScheduleType, initial: float, minimum: float, max_steps: int, step: int) -> float:
    """Return the value of a schedule at trainer step ``step``.

    ``LINEAR`` goes from ``initial`` at step 0 to ``minimum`` at ``max_steps`` and stays there; ``CONSTANT`` is
    ``initial``. An ``initial`` below ``minimum`` stays as it is: ML-Agents lets it *rise* to the minimum, so that an
    epsilon of 0.05 ends as 0.1 (docs/mlagents-behavior.md#schedules).

    >>> decayed(ScheduleType.LINEAR, 0.2, 0.1, 1000, 500)
    0.15000000000000002
    >>> decayed(ScheduleType.LINEAR, 0.05, 0.1, 1000, 500)
    0.05
    """
    if schedule is ScheduleType.CONSTANT or initial <= minimum:
        return initial
    return (initial - minimum) * (1 - min(step, max_steps) / max_steps) + minimum
