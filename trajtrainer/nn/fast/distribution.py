"""The formulas of distributions over actions in numpy, whose operations on few numbers cost a third of torch's.

Acting (``acting_head``) and PPO's gradient (``ppo_loss``) are made of them. The reference of each is what
``trajtrainer.nn.distribution`` computes in torch; there, too, are their sources.

Shapes: b rows, C continuous actions.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from trajtrainer.core.steps import FloatArray
from trajtrainer.nn.distribution import EPSILON, LOG_ROOT_TWO_PI


class GaussianScale(NamedTuple):
    """The standard deviation of Gaussians and what follows from it alone: [1 or b, C] each.

    Twin of ``trajtrainer.nn.distribution.GaussianScale``.

    Attributes:
        sigma: the standard deviation.
        double_square: ``2 sigma^2``.
        double_variance: ``2 sigma^2 + e``.
        log_normalizer: log-probability of the mean.
    """

    sigma: FloatArray
    double_square: FloatArray
    double_variance: FloatArray
    log_normalizer: FloatArray

    @classmethod
    def of(cls, log_sigma: FloatArray) -> GaussianScale:
        """Compute it from the logarithm of sigma [1 or b, C]."""
        sigma: FloatArray = np.exp(log_sigma)
        double_square: FloatArray = sigma * sigma
        double_square *= 2.0
        log_normalizer = np.log(sigma + EPSILON)
        log_normalizer += LOG_ROOT_TWO_PI
        return cls(sigma, double_square, double_square + EPSILON, np.negative(log_normalizer, out=log_normalizer))

    def entropy(self) -> FloatArray:
        """Return the mean over the dimensions of ``ln(2 pi e sigma^2 + e) / 2``: [1 or b]."""
        entropies = np.log(self.double_square * (math.pi * math.e) + EPSILON)
        entropy: FloatArray = np.add.reduce(entropies, 1)
        entropy *= 0.5 / entropies.shape[1]
        return entropy

    def log_prob(self, difference: FloatArray) -> FloatArray:
        """Return the log-probability of values that lie ``difference`` off the mean: [b, C]."""
        log_prob: FloatArray = difference * difference
        log_prob /= self.double_variance
        return np.subtract(self.log_normalizer, log_prob, out=log_prob)


def softmax(logits: FloatArray, reduced: Callable[[np.ufunc, FloatArray], FloatArray]) -> FloatArray:
    """Turn logits into probabilities, in place.

    Twin of ``torch.softmax``.

    Args:
        logits: any shape.
        reduced: reduces an array like ``logits`` over each branch, by ``np.maximum`` or ``np.add``, to a shape that
            broadcasts to it.
    """
    logits -= reduced(np.maximum, logits)
    np.exp(logits, out=logits)
    logits /= reduced(np.add, logits)
    return logits


def log_of(probs: FloatArray) -> FloatArray:
    """Return ``ln(p + e)``."""
    logarithms: FloatArray = probs + EPSILON
    return np.log(logarithms, out=logarithms)
