"""The gradient of PPO's loss with respect to what the networks say, written out (see ``stacked_networks``).

The loss itself is ``PPO.loss``. Letters: b rows, C continuous actions, K branches, D sum of branch sizes, V reward
signals. ``share`` is what a row counts in a mean over the rows (``row_share``).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from trajtrainer.algos.minibatch import Minibatch
from trajtrainer.nn.distribution import EPSILON, ActionDistribution, GaussianScale

Share = float | Tensor


def row_share(num_rows: int, mask: Tensor | None) -> Share:
    """What each row counts in a mean over the real ones (mask [b], 0 in padding): a number, or [b, 1]."""
    return 1.0 / num_rows if mask is None else (mask / mask.sum().clamp(min=1.0))[:, None]


def of_policy_loss(ratio: Tensor, advantage: Tensor, epsilon: float, share: Share) -> tuple[Tensor, Tensor]:
    """The clipped surrogate loss (0-d), and its gradient with respect to the log-probabilities [b, C + K].

    Args:
        ratio: [b, C + K], new probability over old.
        advantage: [b].
        epsilon: half width of the clipping range.
        share: of each row.
    """
    weight = advantage[:, None]
    plain = ratio * weight
    clipped = ratio.clamp(1.0 - epsilon, 1.0 + epsilon) * weight
    loss = -_mean(torch.minimum(plain, clipped), share)
    # Where the clipped one is the smaller, it is constant; inside the range both are the same.
    return loss, (plain <= clipped) * plain * (share * (-1.0 / plain.shape[1]))


def of_value_loss(
    values: Tensor, returns: Tensor, old_values: Tensor | None, epsilon: float, share: Share
) -> tuple[Tensor, Tensor]:
    """The value loss (0-d, see ``losses.value_loss``), and its gradient with respect to the values. All [b, V]."""
    error = values - returns
    squared = error.square()
    if old_values is not None:
        moved = values - old_values
        held = old_values + moved.clamp(-epsilon, epsilon) - returns
        held_squared = held.square()
        # Inside the range both errors are the same, but for rounding; outside, the held value does not move.
        error = error * ((moved.abs() <= epsilon) | (squared >= held_squared))
        squared = torch.maximum(squared, held_squared)
    return _mean(squared, share), error * (share * (2.0 / values.shape[1]))


def of_policy(
    distribution: ActionDistribution, minibatch: Minibatch, by_log_prob: Tensor, entropy_weight: float, share: Share
) -> tuple[Tensor, Tensor]:
    """With respect to mu and logits side by side [b, C + D], and to log sigma [1, C].

    Args:
        distribution: of the minibatch's rows.
        minibatch: with the actions.
        by_log_prob: the gradient with respect to their log-probabilities [b, C + K].
        entropy_weight: the loss has minus so much times the mean entropy.
        share: of each row.
    """
    size = distribution.mu.shape[1]
    by_mu, by_log_sigma = distribution.mu, distribution.log_sigma
    if size:
        deviation = minibatch.continuous - distribution.mu
        by_mu, by_log_sigma = of_gaussians(distribution.scale, deviation, by_log_prob[:, :size], entropy_weight)
    if not distribution.branches:
        return by_mu, by_log_sigma
    by_logits = of_branches(
        distribution, minibatch.mask, minibatch.discrete, by_log_prob[:, size:], entropy_weight * share
    )
    return torch.cat((by_mu, by_logits), 1), by_log_sigma


def of_gaussians(
    scale: GaussianScale, deviation: Tensor, by_log_prob: Tensor, entropy_weight: float
) -> tuple[Tensor, Tensor]:
    """With respect to mu [b, C] and log sigma [1, C].

    Args:
        scale: one for all rows.
        deviation: of the actions from mu [b, C].
        by_log_prob: the gradient with respect to the log-probabilities [b, C].
        entropy_weight: the loss has minus so much times the mean entropy.
    """
    sigma, variance = scale.sigma, scale.sigma.square()
    double = 2.0 * variance
    by_mu = by_log_prob * deviation / (variance + 0.5 * EPSILON)
    by_log_sigma = (by_mu * deviation).sum(0) * (double / (double + EPSILON))
    by_log_sigma = by_log_sigma - by_log_prob.sum(0) * (sigma / (sigma + EPSILON))
    full = math.pi * math.e * double
    return by_mu, by_log_sigma - (entropy_weight / sigma.shape[1]) * (full / (full + EPSILON))


def of_branches(
    distribution: ActionDistribution, mask: Tensor, discrete: Tensor, by_log_prob: Tensor, entropy_weight: Share
) -> Tensor:
    """With respect to the logits [b, D]; 0 where an action is forbidden.

    Args:
        distribution: with at least one branch.
        mask: bool [b, D], True = forbidden.
        discrete: the actions i64 [b, K].
        by_log_prob: the gradient with respect to their log-probabilities [b, K].
        entropy_weight: the loss has minus so much times each row's entropy: a number, or [b, 1].
    """
    probs, log_probs = distribution.probs, distribution.all_log_probs
    relative = probs / (probs + EPSILON)
    by_prob = (log_probs + relative) * entropy_weight
    # p times the gradient by p, as softmax's gradient needs it.
    taken = discrete + distribution.branch_starts
    weighted = (by_prob * probs).scatter_add(1, taken, by_log_prob * relative.gather(1, taken))
    totals = [part.sum(1, keepdim=True).expand_as(part) for part in weighted.split_with_sizes(distribution.branches, 1)]
    return (weighted - probs * torch.cat(totals, 1)).masked_fill(mask, 0.0)


def _mean(values: Tensor, share: Share) -> Tensor:
    """Over the rows, and within a row over all columns."""
    return values.mean() if isinstance(share, float) else (values * share).sum() / values.shape[1]
