"""PPO's loss as a function of what the networks say, and its gradient, in numpy.

Shapes: b rows, C continuous actions, K branches, V reward signals.
"""

from __future__ import annotations

import numpy as np
from torch import Tensor

from trajtrainer.core.steps import FloatArray
from trajtrainer.nn.fast.decisions import RowWeight


def row_weight(num_rows: int, mask: Tensor | None) -> RowWeight:
    """Return what each row counts in a mean over the real ones (mask [b], 0 in padding): a number, or [b, 1]."""
    if mask is None:
        return 1.0 / num_rows
    real: FloatArray = mask.numpy()
    weight: FloatArray = real / np.maximum(real.sum(), np.float32(1.0))
    return weight[:, None]


def policy_loss(
    ratio: FloatArray, advantage: FloatArray, epsilon: float, weight: RowWeight
) -> tuple[np.float32, FloatArray]:
    """Return the clipped surrogate loss, and its gradient with respect to the log-probabilities [b, C + K].

    Twin of ``trajtrainer.algos.ppo.losses.clipped_policy_loss``.

    Args:
        ratio: [b, C + K], new probability over old.
        advantage: [b].
        epsilon: half width of the clipping range.
        weight: of each row.
    """
    factor = advantage[:, None]
    plain = ratio * factor
    clipped = np.minimum(np.maximum(ratio, 1.0 - epsilon), 1.0 + epsilon)
    clipped *= factor
    loss = -_mean(np.minimum(plain, clipped), weight)
    # Where the clipped one is the smaller, it is constant; inside the range both are the same.
    gradient: FloatArray = (plain <= clipped) * plain
    gradient *= weight * np.float32(-1.0 / plain.shape[1])
    return loss, gradient


def value_loss(
    values: FloatArray, returns: FloatArray, old_values: FloatArray | None, epsilon: float, weight: RowWeight
) -> tuple[np.float32, FloatArray]:
    """Return the value loss, and its gradient with respect to the values. All [b, V].

    Twin of ``trajtrainer.algos.ppo.losses.value_loss``.
    """
    error: FloatArray = values - returns
    squared = error * error
    if old_values is not None:
        moved = values - old_values
        clipped = old_values + np.clip(moved, -epsilon, epsilon) - returns
        clipped *= clipped
        # Inside the range both errors are the same, but for rounding; outside, the clipped value does not move.
        error *= (np.abs(moved) <= epsilon) | (squared >= clipped)
        squared = np.maximum(squared, clipped)
    error *= weight * np.float32(2.0 / values.shape[1])
    return _mean(squared, weight), error


def _mean(values: FloatArray, weight: RowWeight) -> np.float32:
    """Return the mean over the rows, and within a row over all columns."""
    total: np.float32 = np.add.reduce(values if isinstance(weight, float) else values * weight, None)
    return total * np.float32((weight if isinstance(weight, float) else 1.0) / values.shape[1])
