"""PPO's losses as pure functions of tensors.

Shape legend: b rows of a minibatch, C continuous actions, K discrete branches, V reward signals. ``mask`` is f32 [b], 1
for a real row and 0 for the padding of a sequence, or None when every row is real (which saves the arithmetic).
"""

from __future__ import annotations

import torch
from torch import Tensor

from trajtrainer.learning.nn.minibatch import masked_mean


def clipped_policy_loss(ratio: Tensor, advantage: Tensor, epsilon: float, mask: Tensor | None) -> Tensor:
    """The clipped surrogate loss of PPO (Schulman et al. 2017).

    Like ML-Agents, this takes one ratio per continuous action and branch instead of summing log-probabilities over
    them first, which shapes the learning curves (docs/explanation/mlagents-behavior.md#update).
    ``closed_form.clipped_policy_loss_and_gradient`` is the same by hand: change both.

    Args:
        ratio: new probability over old, [b, C + K] or, for the whole action, [b, 1].
        advantage: [b].
        epsilon: half the width of the clipping range.
        mask: [b] or None.
    """
    advantage = advantage[:, None]
    surrogate = torch.minimum(ratio * advantage, ratio.clamp(1.0 - epsilon, 1.0 + epsilon) * advantage)
    return -masked_mean(surrogate, mask)


def value_loss(
    values: Tensor, returns: Tensor, mask: Tensor | None, *, old_values: Tensor | None = None, epsilon: float = 0.0
) -> Tensor:
    """The squared error of the value estimates, mean over reward signals and real rows.

    ``closed_form.value_loss_and_gradient`` is the same by hand: change both.

    Args:
        values: [V, b].
        returns: [V, b].
        mask: [b] or None.
        old_values: [V, b], the estimates at collection time. If given, the loss is the larger of two errors: the plain
            one, and that of the estimate clipped to within ``epsilon`` of the old one. ML-Agents intends this but
            compares with the returns by mistake, which yields the plain error
            (docs/explanation/mlagents-behavior.md#update).
        epsilon: half the width of the clipping range of the values.
    """
    error = (values - returns).square()
    if old_values is not None:
        clipped = old_values + (values - old_values).clamp(-epsilon, epsilon)
        error = torch.maximum(error, (clipped - returns).square())
    # Signals have the same rows, so the mean over all entries is the mean over signals of their means.
    return masked_mean(error.t(), mask)


def approximate_kl(log_ratio: Tensor, ratio: Tensor, mask: Tensor | None) -> Tensor:
    """KL(old || new) of the whole action, estimated from the actions taken.

    The mean of ``ratio - 1 - log ratio``, which is never negative and has a low variance (Schulman 2020, "Approximating
    KL Divergence"), summed over dimensions and branches, which are independent given the state.
    """
    return masked_mean((ratio - 1.0 - log_ratio).sum(1), mask)


def clip_fraction(ratio: Tensor, epsilon: float, mask: Tensor | None) -> Tensor:
    """The fraction of the ratios outside the clipping range."""
    return masked_mean(((ratio - 1.0).abs() > epsilon).float(), mask)


def ratio_statistics(log_ratio: Tensor, ratio: Tensor, epsilon: float, mask: Tensor | None) -> dict[str, Tensor]:
    """Tag -> statistic of the probability ratios."""
    return {
        "Policy/Approximate KL": approximate_kl(log_ratio, ratio, mask),
        "Policy/Clip Fraction": clip_fraction(ratio, epsilon, mask),
    }


def explained_variance(values: Tensor, returns: Tensor) -> Tensor:
    """``1 - Var(returns - values) / Var(returns)`` over all entries.

    1 for a perfect critic, 0 for one no better than a constant, NaN or -inf if the returns do not vary.
    """
    return 1.0 - (returns - values).var(correction=0) / returns.var(correction=0)


def normalized(advantage: Tensor, mask: Tensor | None, weight: Tensor | None = None) -> Tensor:
    """Advantages with mean 0 and population standard deviation 1 over the real rows, times ``weight``; 0 in padding.

    ML-Agents counts the padding of LSTM sequences as advantages of 0 (docs/explanation/mlagents-behavior.md#ppo).
    """
    std, mean = torch.std_mean(advantage if mask is None else advantage[mask > 0], correction=0)
    found = (advantage - mean) / (std + 1e-10)
    if mask is not None:
        found = torch.where(mask > 0, found, torch.zeros_like(found))
    return found if weight is None else found * weight
