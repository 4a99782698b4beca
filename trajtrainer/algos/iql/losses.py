"""The losses of implicit Q-learning (Kostrikov et al. 2021), as pure functions of tensors.

Shape legend: b rows of a batch. ``mask`` is f32 [b], 1 for a real row and 0 for padding, or None when every row is
real.
"""

from __future__ import annotations

import torch
from torch import Tensor

from trajtrainer.nn.minibatch import masked_mean


def value_loss(advantage: Tensor, expectile: float, mask: Tensor | None) -> Tensor:
    """Return the asymmetric squares of ``Q - V`` [b]: an error above counts ``expectile``, one below the rest."""
    weight = torch.where(advantage < 0, 1.0 - expectile, expectile)
    return masked_mean(weight * advantage.square(), mask)


def q_losses(q: Tensor, target: Tensor, mask: Tensor | None) -> Tensor:
    """Return the mean squared error of each network [n] for values [n, b] that should be [b]."""
    return torch.stack([masked_mean((one - target).square(), mask) for one in q])


def advantage_weight(advantage: Tensor, temperature: float, largest: float) -> Tensor:
    """Return how much each step counts for the policy [b]: ``exp(temperature * (Q - V))``, at most ``largest``."""
    return (temperature * advantage).exp().clamp(max=largest)


def policy_loss(log_likelihood: Tensor, weight: Tensor, mask: Tensor | None) -> Tensor:
    """Return minus the weighted log-probability of what was recorded [b] (advantage-weighted regression)."""
    return -masked_mean(weight * log_likelihood, mask)
