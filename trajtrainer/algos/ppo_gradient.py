"""PPO's loss as a function of what the networks say, and its gradient, written out (see ``stacked_networks``).

``PPO.loss`` says the same by autograd. In numpy, because what this costs is the number of calls, and numpy's on so few
numbers cost a third of torch's.

Letters: b rows, C continuous actions, K branches, D sum of branch sizes, V reward signals. ``share`` is what a row
counts in a mean over the rows (``row_share``).
"""

from __future__ import annotations

import math

import numpy as np
from torch import Tensor

from trajtrainer.algos.minibatch import Minibatch
from trajtrainer.nn.distribution import EPSILON, LOG_ROOT_TWO_PI
from trajtrainer.nn.heads import FORBIDDEN_LOGIT
from trajtrainer.steps import BoolArray, FloatArray, LongArray

Share = float | FloatArray


def row_share(num_rows: int, mask: Tensor | None) -> Share:
    """What each row counts in a mean over the real ones (mask [b], 0 in padding): a number, or [b, 1]."""
    if mask is None:
        return 1.0 / num_rows
    real: FloatArray = mask.numpy()
    share: FloatArray = real / np.maximum(real.sum(), np.float32(1.0))
    return share[:, None]


def of_policy_loss(
    ratio: FloatArray, advantage: FloatArray, epsilon: float, share: Share
) -> tuple[np.float32, FloatArray]:
    """The clipped surrogate loss, and its gradient with respect to the log-probabilities [b, C + K].

    Args:
        ratio: [b, C + K], new probability over old.
        advantage: [b].
        epsilon: half width of the clipping range.
        share: of each row.
    """
    weight = advantage[:, None]
    plain = ratio * weight
    clipped = np.minimum(np.maximum(ratio, 1.0 - epsilon), 1.0 + epsilon)
    clipped *= weight
    loss = -_mean(np.minimum(plain, clipped), share)
    # Where the clipped one is the smaller, it is constant; inside the range both are the same.
    gradient: FloatArray = (plain <= clipped) * plain
    gradient *= share * np.float32(-1.0 / plain.shape[1])
    return loss, gradient


def of_value_loss(
    values: FloatArray, returns: FloatArray, old_values: FloatArray | None, epsilon: float, share: Share
) -> tuple[np.float32, FloatArray]:
    """The value loss (see ``losses.value_loss``), and its gradient with respect to the values. All [b, V]."""
    error: FloatArray = values - returns
    squared = error * error
    if old_values is not None:
        moved = values - old_values
        held = old_values + np.clip(moved, -epsilon, epsilon) - returns
        held *= held
        # Inside the range both errors are the same, but for rounding; outside, the held value does not move.
        error *= (np.abs(moved) <= epsilon) | (squared >= held)
        squared = np.maximum(squared, held)
    error *= share * np.float32(2.0 / values.shape[1])
    return _mean(squared, share), error


class Decisions:
    """The actions of b rows.

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
            self._gaussians = Gaussians(outputs[:, :size], log_sigma, minibatch.continuous.numpy())
            log_probs.append(self._gaussians.log_prob)
        if branches:
            mask, discrete = minibatch.mask.numpy(), minibatch.discrete.numpy()
            self._branches = Branches(outputs[:, size:], mask, discrete, branches)
            log_probs.append(self._branches.log_prob)
        self.log_prob: FloatArray = log_probs[0] if len(log_probs) == 1 else np.concatenate(log_probs, 1)

    def gradient(self, by_log_prob: FloatArray, entropy_weight: float, share: Share) -> tuple[FloatArray, FloatArray]:
        """With respect to the policy's outputs [b, C + D] and to log sigma [1, C].

        Args:
            by_log_prob: the gradient with respect to the log-probabilities [b, C + K].
            entropy_weight: the loss has minus so much times the mean entropy.
            share: of each row.
        """
        parts, by_log_sigma = [], self._log_sigma
        if self._gaussians is not None:
            by_mu, by_log_sigma = self._gaussians.gradient(by_log_prob[:, : self._size], entropy_weight)
            parts.append(by_mu)
        if self._branches is not None:
            parts.append(self._branches.gradient(by_log_prob[:, self._size :], entropy_weight * share))
        return (parts[0] if len(parts) == 1 else np.concatenate(parts, 1)), by_log_sigma


class Gaussians:
    """The continuous actions of b rows, whose deviation does not depend on the state.

    Args:
        mu: [b, C].
        log_sigma: [1, C].
        continuous: what was done, raw [b, C].

    Attributes:
        log_prob: of that [b, C].
    """

    def __init__(self, mu: FloatArray, log_sigma: FloatArray, continuous: FloatArray) -> None:
        self._deviation = continuous - mu
        self._sigma: FloatArray = np.exp(log_sigma)
        self._double: FloatArray = 2.0 * self._sigma * self._sigma
        log_normalizer = -np.log(self._sigma + EPSILON) - LOG_ROOT_TWO_PI
        self.log_prob: FloatArray = log_normalizer - self._deviation * self._deviation / (self._double + EPSILON)

    def gradient(self, by_log_prob: FloatArray, entropy_weight: float) -> tuple[FloatArray, FloatArray]:
        """With respect to mu [b, C] and log sigma [1, C].

        Args:
            by_log_prob: the gradient with respect to the log-probabilities [b, C].
            entropy_weight: the loss has minus so much times the mean entropy.
        """
        sigma, double = self._sigma, self._double
        by_mu: FloatArray = by_log_prob * self._deviation / (0.5 * double + 0.5 * EPSILON)
        by_log_sigma = np.add.reduce(by_mu * self._deviation, 0) * (double / (double + EPSILON))
        by_log_sigma -= np.add.reduce(by_log_prob, 0) * (sigma / (sigma + EPSILON))
        full = (math.pi * math.e) * double
        by_log_sigma -= (entropy_weight / sigma.shape[1]) * (full / (full + EPSILON))
        return by_mu, by_log_sigma


class Branches:
    """The discrete actions of b rows.

    Args:
        logits: [b, D].
        mask: [b, D], True = forbidden.
        discrete: what was done [b, K].
        sizes: of the branches.

    Attributes:
        log_prob: of that [b, K].
    """

    def __init__(self, logits: FloatArray, mask: BoolArray, discrete: LongArray, sizes: tuple[int, ...]) -> None:
        self._mask = mask
        self._starts: LongArray = np.cumsum((0, *sizes[:-1]))
        self._of_column = np.repeat(np.arange(len(sizes)), sizes)
        self._taken = (np.arange(len(logits))[:, None], discrete + self._starts)
        self._probs: FloatArray = np.where(mask, np.float32(FORBIDDEN_LOGIT), logits)
        self._probs -= self._per_branch(np.maximum, self._probs)
        np.exp(self._probs, out=self._probs)
        self._probs /= self._per_branch(np.add, self._probs)
        self._log_probs: FloatArray = np.log(self._probs + EPSILON)
        self.log_prob: FloatArray = self._log_probs[self._taken]

    def gradient(self, by_log_prob: FloatArray, entropy_weight: Share) -> FloatArray:
        """With respect to the logits [b, D]; 0 where an action is forbidden.

        Args:
            by_log_prob: the gradient with respect to the log-probabilities [b, K].
            entropy_weight: the loss has minus so much times each row's entropy: a number, or [b, 1].
        """
        probs = self._probs
        relative = probs / (probs + EPSILON)
        # p times the gradient by p, as softmax's gradient needs it.
        weighted: FloatArray = (self._log_probs + relative) * probs
        weighted *= entropy_weight
        weighted[self._taken] += by_log_prob * relative[self._taken]
        weighted -= probs * self._per_branch(np.add, weighted)
        weighted[self._mask] = 0.0
        return weighted

    def _per_branch(self, reduction: np.ufunc, columns: FloatArray) -> FloatArray:
        """A reduction over each branch, for each of its columns [b, D]."""
        reduced: FloatArray = reduction.reduceat(columns, self._starts, 1)
        return reduced[:, self._of_column]


def _mean(values: FloatArray, share: Share) -> np.float32:
    """Over the rows, and within a row over all columns."""
    total: np.float32 = np.add.reduce(values, None) if isinstance(share, float) else np.add.reduce(values * share, None)
    return total * np.float32((share if isinstance(share, float) else 1.0) / values.shape[1])
