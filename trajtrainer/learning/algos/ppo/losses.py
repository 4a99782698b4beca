"""PPO's losses as pure functions of tensors.

Shape legend: b rows of a minibatch, C continuous actions, K discrete branches, V reward signals. ``mask`` is f32 [b], 1
for real rows and 0 for the padding of sequences, or None if all rows are real (which saves arithmetic).
"""

from __future__ import annotations

import torch
from torch import Tensor

from trajtrainer.learning.nn.minibatch import masked_mean


def clipped_policy_loss(ratio: Tensor, advantage: Tensor, epsilon: float, mask: Tensor | None) -> Tensor:
    """Return the clipped surrogate loss of PPO (Schulman et al. 2017).

    Like ML-Agents, this uses one ratio per continuous action and branch instead of summing the log-probabilities first,
    which affects learning curves (docs/explanation/mlagents-behavior.md#update).
    ``closed_form.clipped_policy_loss_and_gradient`` computes the same without autograd: change both together.

    Args:
        ratio: the probability under the new policy divided by that under the old one, [b, C + K]; or [b, 1] for the
            whole action.
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
    """Return the squared error of the value estimates, averaged over reward signals and real rows.

    ``closed_form.value_loss_and_gradient`` computes the same without autograd: change both together.

    Args:
        values: [V, b].
        returns: [V, b].
        mask: [b] or None.
        old_values: [V, b], the value estimates at collection time. If given, each error is the larger of the plain
            squared error and that of the estimate clipped to within ``epsilon`` of the old one. ML-Agents intends the
            same, but passes the returns as the old estimates by mistake, which results in the plain error
            (docs/explanation/mlagents-behavior.md#update).
        epsilon: half the width of the clipping range for values.
    """
    error = (values - returns).square()
    if old_values is not None:
        clipped = old_values + (values - old_values).clamp(-epsilon, epsilon)
        error = torch.maximum(error, (clipped - returns).square())
    # All signals have the same rows, so the mean over all entries equals the mean of the signals' means.
    return masked_mean(error.t(), mask)


def approximate_kl(log_ratio: Tensor, ratio: Tensor, mask: Tensor | None) -> Tensor:
    """Estimate KL(old || new) for the whole action from the actions taken.

    The estimator is the mean of ``ratio - 1 - log ratio``, which is never negative and has low variance (Schulman 2020,
    "Approximating KL Divergence"). It is summed over dimensions and branches, which are independent given the state.
    """
    return masked_mean((ratio - 1.0 - log_ratio).sum(1), mask)


def clip_fraction(ratio: Tensor, epsilon: float, mask: Tensor | None) -> Tensor:
    """Return the fraction of the ratios that are outside the clipping range."""
    return masked_mean(((ratio - 1.0).abs() > epsilon).float(), mask)


def ratio_statistics(log_ratio: Tensor, ratio: Tensor, epsilon: float, mask: Tensor | None) -> dict[str, Tensor]:
    """Return statistics of the probability ratios by tag."""
    return {
        "Policy/Approximate KL": approximate_kl(log_ratio, ratio, mask),
        "Policy/Clip Fraction": clip_fraction(ratio, epsilon, mask),
    }


def explained_variance(values: Tensor, returns: Tensor) -> Tensor:
    """Return the explained variance ``1 - Var(returns - values) / Var(returns)`` over all entries.

    It is 1 for a perfect critic, 0 for one that is no better than a constant, and NaN or -inf if all returns are equal.
    """
    return 1.0 - (returns - values).var(correction=0) / returns.var(correction=0)


def normalized(advantage: Tensor, mask: Tensor | None, weight: Tensor | None = None) -> Tensor:
    """Normalize advantages to mean 0 and population standard deviation 1 over the real rows, then apply ``weight``.

    Padding gets 0. In ML-Agents, the statistics also include the padding of LSTM sequences, as advantages of 0
    (docs/explanation/mlagents-behavior.md#ppo).
    """
    std, mean = torch.std_mean(advantage if mask is None else advantage[mask > 0], correction=0)
    found = (advantage - mean) / (std + 1e-10)
    if mask is not None:
        found = torch.where(mask > 0, found, torch.zeros_like(found))
    return found if weight is None else found * weight
