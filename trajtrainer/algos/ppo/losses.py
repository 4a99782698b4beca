"""The losses of policy gradients, as pure functions of tensors.

Shape legend: b rows of a minibatch, C continuous actions, K discrete branches, V reward signals. ``mask`` is f32 [b], 1
for a real row and 0 for the padding of a sequence, or None when every row is real (which saves the arithmetic).
"""

from __future__ import annotations

import torch
from torch import Tensor

from trajtrainer.nn.minibatch import masked_mean


def clipped_policy_loss(ratio: Tensor, advantage: Tensor, epsilon: float, mask: Tensor | None) -> Tensor:
    """Return the clipped surrogate loss of PPO (Schulman et al. 2017).

    ML-Agents has one ratio per action dimension and branch: it does not sum log-probabilities over dimensions first.
    This shapes its learning curves (docs/mlagents-behavior.md#update) and is kept.

    Args:
        ratio: [b, C + K] or, of the whole action, [b, 1]: new probability over old.
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
    """Return the squared error of the value estimates, mean over reward signals and real rows.

    Args:
        values: [V, b].
        returns: [V, b].
        mask: [b] or None.
        old_values: [V, b], the estimates at collection time. When given, the loss is the larger one of the plain error
            and the error of the estimate clipped to within ``epsilon`` of the old one. ML-Agents means to do so but
            compares with the returns by mistake, which is the plain error (docs/mlagents-behavior.md#update).
        epsilon: half the width of the clipping range.
    """
    error = (values - returns).square()
    if old_values is not None:
        clipped = old_values + (values - old_values).clamp(-epsilon, epsilon)
        error = torch.maximum(error, (clipped - returns).square())
    # Signals have the same rows, so the mean over all entries is the mean over signals of their means.
    return masked_mean(error.t(), mask)


def approximate_kl(log_ratio: Tensor, ratio: Tensor, mask: Tensor | None) -> Tensor:
    """Return an estimate of KL(old || new) from the taken actions.

    Mean of ``ratio - 1 - log ratio``, which is never negative and has a low variance (Schulman 2020, "Approximating KL
    divergence"). Of the whole action: the sum over its dimensions and branches, which are independent given the state.
    """
    return masked_mean((ratio - 1.0 - log_ratio).sum(1), mask)


def clip_fraction(ratio: Tensor, epsilon: float, mask: Tensor | None) -> Tensor:
    """Return the fraction of the ratios outside the clipping range."""
    return masked_mean(((ratio - 1.0).abs() > epsilon).float(), mask)


def ratio_statistics(log_ratio: Tensor, ratio: Tensor, epsilon: float, mask: Tensor | None) -> dict[str, Tensor]:
    """Return ``approximate_kl`` and ``clip_fraction`` of these arguments by their tags."""
    return {
        "Policy/Approximate KL": approximate_kl(log_ratio, ratio, mask),
        "Policy/Clip Fraction": clip_fraction(ratio, epsilon, mask),
    }


def explained_variance(values: Tensor, returns: Tensor) -> Tensor:
    """Return ``1 - Var(returns - values) / Var(returns)`` of all entries.

    1 is a perfect critic, 0 is no better than a constant; NaN or -inf if the returns do not vary.
    """
    return 1.0 - (returns - values).var(correction=0) / returns.var(correction=0)


def normalized(advantage: Tensor, mask: Tensor | None, weight: Tensor | None = None) -> Tensor:
    """Return advantages with mean 0 and population standard deviation 1 over the real rows; 0 in padding rows.

    With importance weights, ``weight`` [b], the normalized advantages are multiplied by them.

    ML-Agents includes the padding of LSTM sequences here, as advantages of 0 (docs/mlagents-behavior.md#ppo).
    """
    std, mean = torch.std_mean(advantage if mask is None else advantage[mask > 0], correction=0)
    found = (advantage - mean) / (std + 1e-10)
    if mask is not None:
        found = torch.where(mask > 0, found, torch.zeros_like(found))
    return found if weight is None else found * weight
