"""The check that an update has not ruined the weights."""

from __future__ import annotations

from collections.abc import Container

import numpy as np

from trajtrainer.algos.acting import PolicyDivergedError
from trajtrainer.algos.algorithm import Statistics


def check_finite(behavior: str, step: int, statistics: Statistics, may_be_nan: Container[str]) -> None:
    """Look at the statistics of an update.

    Args:
        behavior: of the trainer, for the error.
        step: likewise.
        statistics: of the update.
        may_be_nan: tags that need not have a value.

    Raises:
        PolicyDivergedError: the mean of one of them is not a finite number.
    """
    means = {tag: values.mean() for tag, values in statistics.items() if len(values) and tag not in may_be_nan}
    diverged = [tag for tag, mean in means.items() if not np.isfinite(mean)]
    if diverged:
        raise PolicyDivergedError(
            f"Behavior {behavior!r}: {', '.join(diverged)} of the update at step {step} is not a finite number, so the "
            "weights have diverged. Lower learning_rate, or look for extreme rewards or observations (normalize: true "
            "limits the latter), and resume from an earlier checkpoint."
        )
