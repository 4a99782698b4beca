"""A squashed Gaussian action and its log-probability, with a hand-written backward pass.

In a third of the reference's time: on small batches most of that goes into the bookkeeping of some twenty operations,
and SAC needs it in every gradient step.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from trajtrainer.nn.distribution import EPSILON, LOG_ROOT_TWO_PI

_CONSTANT = LOG_ROOT_TWO_PI + 2.0 * math.log(2.0)


def draw(mu: Tensor, log_sigma: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Return the action ``a = tanh(mu + sigma * noise)`` and its log-probability.

    Twin of ``trajtrainer.nn.distribution.ActionDistribution``, its ``continuous_from_noise`` and
    ``continuous_log_prob``. The exponent is told by the noise and not by ``raw - mu``, which loses its digits where
    sigma is small.

    Args:
        mu: [b, C].
        log_sigma: [b, C].
        noise: [b, C], standard normal.

    Returns:
        [b, C], and the sum over the dimensions [b]; both differentiable in mu and log_sigma.
    """
    return _Draw.apply(mu, log_sigma, noise)  # type: ignore[no-any-return, no-untyped-call]


class _Draw(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, mu: Tensor, log_sigma: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        sigma = log_sigma.exp()
        raw = torch.addcmul(mu, sigma, noise)
        action = raw.tanh()
        offset = sigma + EPSILON
        variance = sigma * sigma
        spread = torch.add(variance, variance).add_(EPSILON)
        # ln N(raw) = -(sigma noise)^2 / (2 sigma^2 + e) - ln(sigma + e) - ln(2 pi) / 2, and
        # ln |d tanh(raw)| = 2 (ln 2 - raw - softplus(-2 raw)).
        tail = F.softplus(torch.add(raw, raw).neg_()).add_(raw)
        log_prob = torch.add(torch.addcdiv(tail + tail, noise * noise * variance, spread, value=-1.0), -offset.log())
        ctx.save_for_backward(sigma, action, noise, offset, spread)
        return action, log_prob.sum(1).sub_(_CONSTANT * mu.shape[1])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        grad_action, grad_log_prob = gradients
        sigma, action, noise, offset, spread = ctx.saved_tensors
        weight = grad_log_prob.unsqueeze(1)
        # d tanh = 1 - a^2, and -ln |d tanh| has the derivative 2 a.
        grad_mu = torch.addcmul(grad_action, action, torch.add(weight, weight) - grad_action * action)
        # Of -ln(sigma + e) and of the exponent, which is constant but for e.
        grad_sigma = offset.reciprocal().add_(noise * noise * sigma / (spread * spread), alpha=2.0 * EPSILON)
        return grad_mu, torch.addcmul(grad_mu * noise, weight, grad_sigma, value=-1.0) * sigma, None
