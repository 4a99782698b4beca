"""PPO's loss as a function of what the networks say, and its gradient, in numpy.

Shapes: b rows, C continuous actions, K branches, D sum of branch sizes, V reward signals. A row weight is what a row
counts in a mean over the rows (``row_weight``).
"""

from __future__ import annotations

import math
from functools import cache, lru_cache

import numpy as np
from torch import Tensor

from trajtrainer.algos.minibatch import Minibatch
from trajtrainer.core.steps import BoolArray, FloatArray, LongArray
from trajtrainer.fast.distribution import GaussianScale, log_of, softmax
from trajtrainer.nn.distribution import EPSILON
from trajtrainer.nn.heads import FORBIDDEN_LOGIT

RowWeight = float | FloatArray


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


class Decisions:
    """The actions of b rows, their log-probabilities and the gradient through them.

    Twin of ``trajtrainer.nn.distribution.ActionDistribution`` of a policy whose sigma does not depend on the state.

    Args:
        outputs: of the policy: means and logits side by side [b, C + D].
        log_sigma: [1, C].
        minibatch: with what was done.
        branches: sizes of the branches.

    Attributes:
        log_prob: of what was done [b, C + K].
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
            grad_log_prob: the gradient with respect to the log-probabilities [b, C + K].
            entropy_weight: the loss has minus so much times the mean entropy.
            weight: of each row.
            entropy_columns: how often the mean entropy of the continuous actions counts.
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
    """The continuous actions: means [b, C], log sigma [1, C] and what was done, raw [b, C], with its ``log_prob``."""

    def __init__(self, mu: FloatArray, log_sigma: FloatArray, continuous: FloatArray) -> None:
        self._difference = continuous - mu
        self._scale = GaussianScale.of(log_sigma)
        self.log_prob = self._scale.log_prob(self._difference)

    def gradient(self, grad_log_prob: FloatArray, entropy_weight: float) -> tuple[FloatArray, FloatArray]:
        """Return the gradient with respect to mu [b, C] and log sigma [1, C]. Arguments as ``Decisions.gradient``."""
        sigma, double_square, double_variance, _ = self._scale
        grad_mu: FloatArray = grad_log_prob * self._difference / (0.5 * double_variance)
        grad_log_sigma = np.add.reduce(grad_mu * self._difference, 0) * (double_square / double_variance)
        grad_log_sigma -= np.add.reduce(grad_log_prob, 0) * (sigma / (sigma + EPSILON))
        full = (math.pi * math.e) * double_square
        grad_log_sigma -= (entropy_weight / sigma.shape[1]) * (full / (full + EPSILON))
        return grad_mu, grad_log_sigma


class _Branches:
    """The discrete actions: logits [b, D], masks [b, D], what was done [b, K], sizes of the branches; ``log_prob``."""

    def __init__(self, logits: FloatArray, mask: BoolArray, discrete: LongArray, sizes: tuple[int, ...]) -> None:
        self._mask = mask
        self._starts, self._of_column = _columns_of(sizes)
        self._taken = (_row_numbers(len(logits)), discrete + self._starts)
        self._probs = softmax(np.where(mask, np.float32(FORBIDDEN_LOGIT), logits), self._per_branch)
        self._log_probs = log_of(self._probs)
        self.log_prob: FloatArray = self._log_probs[self._taken]

    def gradient(self, grad_log_prob: FloatArray, entropy_weight: RowWeight) -> FloatArray:
        """Return the gradient with respect to the logits [b, D]; 0 where an action is forbidden.

        Args:
            grad_log_prob: the gradient with respect to the log-probabilities [b, K].
            entropy_weight: the loss has minus so much times each row's entropy: a number, or [b, 1].
        """
        probs = self._probs
        relative = probs / (probs + EPSILON)
        # p times the gradient by p, as softmax's gradient needs it.
        weighted: FloatArray = (self._log_probs + relative) * probs
        weighted *= entropy_weight
        weighted[self._taken] += grad_log_prob * relative[self._taken]
        weighted -= probs * self._per_branch(np.add, weighted)
        weighted[self._mask] = 0.0
        return weighted

    def _per_branch(self, reduction: np.ufunc, columns: FloatArray) -> FloatArray:
        """Reduce over each branch, for each of its columns [b, D]; over the only one once [b, 1]."""
        reduced: FloatArray = reduction.reduceat(columns, self._starts, 1)
        return reduced if len(self._starts) == 1 else reduced[:, self._of_column]


@cache
def _columns_of(sizes: tuple[int, ...]) -> tuple[LongArray, LongArray]:
    """Return the first column of each branch of these sizes, [K], and the branch of each column, [D]."""
    return np.cumsum((0, *sizes[:-1])), np.repeat(np.arange(len(sizes)), sizes)


@lru_cache(4)
def _row_numbers(count: int) -> LongArray:
    return np.arange(count)[:, None]


def _mean(values: FloatArray, weight: RowWeight) -> np.float32:
    """Return the mean over the rows, and within a row over all columns."""
    total: np.float32 = np.add.reduce(values if isinstance(weight, float) else values * weight, None)
    return total * np.float32((weight if isinstance(weight, float) else 1.0) / values.shape[1])
