"""The check that an update has not ruined the weights."""

from __future__ import annotations

import math
from collections.abc import Mapping

from trajtrainer.algos.acting import PolicyDivergedError


def check_finite(behavior: str, step: int, means: Mapping[str, float]) -> None:
    """Looks at the statistics of an update.

    Args:
        behavior: of the trainer, for the error.
        step: likewise.
        means: statistics tag -> mean over the update.

    Raises:
        PolicyDivergedError: one of them is not a finite number.
    """
    diverged = [tag for tag, mean in means.items() if not math.isfinite(mean)]
    if diverged:
        raise PolicyDivergedError(
            f"Behavior {behavior!r}: {', '.join(diverged)} of the update at step {step} is not a finite number, so the "
            "weights have diverged. Lower learning_rate, or look for extreme rewards or observations (normalize: true "
            "limits the latter), and resume from an earlier checkpoint."
        )
