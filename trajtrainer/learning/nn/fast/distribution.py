"""Formulas of action distributions in numpy, whose operations on few numbers take a third of the time of torch's.

Fast acting and the hand-written gradients of losses use them. The reference implementations, with sources, are in
``trajtrainer.learning.nn.distribution``.

Shapes: b rows, C continuous actions, K branches, D sum of branch sizes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, lru_cache
from typing import NamedTuple

import numpy as np

from trajtrainer.core.steps import BoolArray, FloatArray, LongArray
from trajtrainer.learning.nn.distribution import EPSILON, LOG_ROOT_TWO_PI
from trajtrainer.learning.nn.heads import FORBIDDEN_LOGIT
from trajtrainer.learning.nn.minibatch import Minibatch

RowWeight = float | FloatArray
"""The weight of each row in a mean over the rows: a single number for all rows, or [b, 1]."""


class GaussianScale(NamedTuple):
    """The standard deviation of Gaussians and values that depend only on it, [1 or b, C] each.

    Twin of ``trajtrainer.learning.nn.distribution.GaussianScale``.

    Attributes:
        sigma: the standard deviation.
        double_square: ``2 sigma^2``.
        double_variance: ``2 sigma^2 + EPSILON``.
        log_normalizer: the log-probability of the mean.
    """

    sigma: FloatArray
    double_square: FloatArray
    double_variance: FloatArray
    log_normalizer: FloatArray

    @classmethod
    def of(cls, log_sigma: FloatArray) -> GaussianScale:
        """Create the scale from log sigma [1 or b, C]."""
        sigma: FloatArray = np.exp(log_sigma)
        double_square: FloatArray = sigma * sigma
        double_square *= 2.0
        log_normalizer = np.log(sigma + EPSILON)
        log_normalizer += LOG_ROOT_TWO_PI
        return cls(sigma, double_square, double_square + EPSILON, np.negative(log_normalizer, out=log_normalizer))

    def entropy(self) -> FloatArray:
        """Return the mean of ``ln(2 pi e sigma^2 + EPSILON) / 2`` over the dimensions: [1 or b]."""
        entropies = np.log(self.double_square * (math.pi * math.e) + EPSILON)
        entropy: FloatArray = np.add.reduce(entropies, 1)
        entropy *= 0.5 / entropies.shape[1]
        return entropy

    def log_prob(self, difference: FloatArray) -> FloatArray:
        """Return the log-probability of values that differ from the mean by ``difference`` [b, C]."""
        log_prob: FloatArray = difference * difference
        log_prob /= self.double_variance
        return np.subtract(self.log_normalizer, log_prob, out=log_prob)


def softmax(logits: FloatArray, reduced: Callable[[np.ufunc, FloatArray], FloatArray]) -> FloatArray:
    """Convert logits to probabilities in place.

    Twin of ``torch.softmax``.

    Args:
        logits: logits of any shape.
        reduced: function that reduces an array like ``logits`` over each branch with ``np.maximum`` or ``np.add``. The
            result must broadcast to the shape of ``logits``.
    """
    logits -= reduced(np.maximum, logits)
    np.exp(logits, out=logits)
    logits /= reduced(np.add, logits)
    return logits


def log_of(probs: FloatArray) -> FloatArray:
    """Return ``ln(p + EPSILON)``."""
    logarithms: FloatArray = probs + EPSILON
    return np.log(logarithms, out=logarithms)


class Decisions:
    """The log-probabilities of the actions taken in b rows, and the gradient through them.

    Twin of ``trajtrainer.learning.nn.distribution.ActionDistribution`` for policies whose sigma does not depend on the
    state.

    Args:
        outputs: outputs of the policy, means and logits side by side [b, C + D].
        log_sigma: [1, C].
        minibatch: minibatch with the actions taken.
        branches: sizes of the branches.

    Attributes:
        log_prob: log-probabilities of the actions taken [b, C + K].
    """

    def __init__(
        self, outputs: FloatArray, log_sigma: FloatArray, minibatch: Minibatch, branches: tuple[int, ...]
    ) -> None:
        size = self._size = log_sigma.shape[1]
        self._log_sigma = log_sigma
        self._gaussians = self._branches = None
        log_probs = []
        if size:
            self._gaussians = _Gaussians(outputs[:, :size], log_sigma, minibatch["continuous"].numpy())
            log_probs.append(self._gaussians.log_prob)
        if branches:
            mask, discrete = minibatch["mask"].numpy(), minibatch["discrete"].numpy()
            self._branches = _Branches(outputs[:, size:], mask, discrete, branches)
            log_probs.append(self._branches.log_prob)
        self.log_prob: FloatArray = log_probs[0] if len(log_probs) == 1 else np.concatenate(log_probs, 1)

    def gradient(
        self, grad_log_prob: FloatArray, entropy_weight: float, weight: RowWeight, entropy_columns: int = 1
    ) -> tuple[FloatArray, FloatArray]:
        """Return the gradient with respect to the policy's outputs [b, C + D] and to log sigma [1, C].

        Args:
            grad_log_prob: gradient with respect to the log-probabilities [b, C + K].
            entropy_weight: coefficient of the mean entropy, which the loss subtracts.
            weight: weight of each row.
            entropy_columns: factor for the mean entropy of the continuous actions.
        """
        parts, grad_log_sigma = [], self._log_sigma
        if self._gaussians is not None:
            grad_mu, grad_log_sigma = self._gaussians.gradient(
                grad_log_prob[:, : self._size], entropy_columns * entropy_weight
            )
            parts.append(grad_mu)
        if self._branches is not None:
            parts.append(self._branches.gradient(grad_log_prob[:, self._size :], entropy_weight * weight))
        return (parts[0] if len(parts) == 1 else np.concatenate(parts, 1)), grad_log_sigma


class _Gaussians:
    """The continuous part of ``Decisions``: means [b, C], log sigma [1, C] and the raw actions taken [b, C]."""

    def __init__(self, mu: FloatArray, log_sigma: FloatArray, continuous: FloatArray) -> None:
        self._difference = continuous - mu
        self._scale = GaussianScale.of(log_sigma)
        self.log_prob = self._scale.log_prob(self._difference)

    def gradient(self, grad_log_prob: FloatArray, entropy_weight: float) -> tuple[FloatArray, FloatArray]:
        """Return the gradient with respect to mu [b, C] and log sigma [1, C].

        The arguments are those of ``Decisions.gradient``.
        """
        sigma, double_square, double_variance, _ = self._scale
        grad_mu: FloatArray = grad_log_prob * self._difference / (0.5 * double_variance)
        grad_log_sigma = np.add.reduce(grad_mu * self._difference, 0) * (double_square / double_variance)
        grad_log_sigma -= np.add.reduce(grad_log_prob, 0) * (sigma / (sigma + EPSILON))
        full = (math.pi * math.e) * double_square
        grad_log_sigma -= (entropy_weight / sigma.shape[1]) * (full / (full + EPSILON))
        return grad_mu, grad_log_sigma


class _Branches:
    """The discrete part of ``Decisions``: logits [b, D], masks [b, D], actions taken [b, K] and branch sizes."""

    def __init__(self, logits: FloatArray, mask: BoolArray, discrete: LongArray, sizes: tuple[int, ...]) -> None:
        self._mask = mask
        self._starts, self._of_column = _columns_of(sizes)
        self._taken = (_row_numbers(len(logits)), discrete + self._starts)
        self._probs = softmax(np.where(mask, np.float32(FORBIDDEN_LOGIT), logits), self._per_branch)
        self._log_probs = log_of(self._probs)
        self.log_prob: FloatArray = self._log_probs[self._taken]

    def gradient(self, grad_log_prob: FloatArray, entropy_weight: RowWeight) -> FloatArray:
        """Return the gradient with respect to the logits [b, D], which is 0 for forbidden actions.

        Args:
            grad_log_prob: gradient with respect to the log-probabilities [b, K].
            entropy_weight: coefficient of each row's entropy, which the loss subtracts: a number, or [b, 1].
        """
        probs = self._probs
        relative = probs / (probs + EPSILON)
        # The gradient of softmax needs p times the gradient with respect to p.
        weighted: FloatArray = (self._log_probs + relative) * probs
        weighted *= entropy_weight
        weighted[self._taken] += grad_log_prob * relative[self._taken]
        weighted -= probs * self._per_branch(np.add, weighted)
        weighted[self._mask] = 0.0
        return weighted

    def _per_branch(self, reduction: np.ufunc, columns: FloatArray) -> FloatArray:
        """Reduce over each branch and repeat the result for its columns [b, D]; [b, 1] with a single branch."""
        reduced: FloatArray = reduction.reduceat(columns, self._starts, 1)
        return reduced if len(self._starts) == 1 else reduced[:, self._of_column]


@cache
def _columns_of(sizes: tuple[int, ...]) -> tuple[LongArray, LongArray]:
    """Return the first column of each branch [K] and the branch of each column [D]."""
    return np.cumsum((0, *sizes[:-1])), np.repeat(np.arange(len(sizes)), sizes)


@lru_cache(4)
def _row_numbers(count: int) -> LongArray:
    return np.arange(count)[:, None]
