"""The targets and losses of soft actor-critic as ML-Agents has them (reference 4.4), as pure functions of tensors.

Letters: V reward signals, b rows of a batch, C continuous actions, K discrete branches, D sum of branch sizes, P
numbers that a Q network gives per signal: 1 without discrete actions, else D. ``mask`` is f32 [b], 1 for a real row and
0 for padding, or None when every row is real.
"""

from __future__ import annotations

import torch
from torch import Tensor

from trajtrainer.algos.losses import masked_mean


def taken_q(q: Tensor, discrete: Tensor, branch_starts: Tensor) -> Tensor:
    """Values of the discrete actions that were taken: the mean over branches.

    Args:
        q: [..., b, D].
        discrete: i64 [b, K].
        branch_starts: i64 [K], where each branch starts among the D columns.

    Returns:
        [..., b].
    """
    columns = (discrete + branch_starts).expand(*q.shape[:-1], -1)
    return q.gather(-1, columns).mean(-1)


def expected_q(q: Tensor, probs: Tensor, num_branches: int) -> Tensor:
    """Values that the policy expects [..., b]: the mean over branches of the expectation.

    Args:
        q: [..., b, D].
        probs: [b, D].
        num_branches: K.
    """
    return (q * probs).sum(-1) / num_branches


def value_target(
    q: Tensor, continuous_entropy: Tensor | None, discrete_entropy: Tensor | None, num_branches: int
) -> Tensor:
    """``min(Q1, Q2) + entropy``: what the state is worth to a policy that is paid for its entropy.

    With both kinds of actions ML-Agents *subtracts* the entropy of the continuous ones (reference 11, quirk 6); here it
    is added as it is without discrete ones.

    Args:
        q: [2, V, b], both networks' values of what the policy would do.
        continuous_entropy: [b], ``-alpha * ln pi`` of the sampled action, summed over the dimensions; None without.
        discrete_entropy: [b], ``-sum of alpha_k * p * ln p`` over all branches; None without.
        num_branches: K.

    Returns:
        [V, b].
    """
    target = torch.minimum(q[0], q[1])
    if discrete_entropy is not None:
        target = target + discrete_entropy / num_branches
    if continuous_entropy is not None:
        target = target + continuous_entropy
    return target


def squared_error(values: Tensor, target: Tensor, mask: Tensor | None) -> Tensor:
    """Half the squared error, mean over reward signals and real rows. ML-Agents counts padding, too (quirk 8).

    Args:
        values: [..., V, b].
        target: [V, b].
        mask: [b] or None.

    Returns:
        One number for each leading index of ``values``.
    """
    error = (values - target).square()
    if mask is None:
        return 0.5 * error.mean((-2, -1))
    return 0.5 * (error * mask).sum((-2, -1)) / (mask.sum().clamp(min=1.0) * values.shape[-2])


def policy_loss(
    q: Tensor,
    continuous_entropy: Tensor | None,
    discrete_entropy: Tensor | None,
    probs: Tensor,
    mask: Tensor | None,
) -> Tensor:
    """``-(Q + entropy)`` in expectation, by the first Q network, mean over reward signals.

    With both kinds of actions the values of the discrete ones count twice, as in ML-Agents.

    Args:
        q: [V, b, P], with gradients to the sampled continuous action.
        continuous_entropy: as of ``value_target``.
        discrete_entropy: likewise.
        probs: [b, D].
        mask: [b] or None.
    """
    mean_q = q.mean(0)
    value = mean_q.squeeze(1) if discrete_entropy is None else (mean_q * probs).sum(1)
    gain = value.new_zeros(())
    for entropy in (continuous_entropy, discrete_entropy):
        if entropy is not None:
            gain = gain + entropy + value
    return -masked_mean(gain, mask)


def coefficient_loss(log_alpha: Tensor, surplus: Tensor, mask: Tensor | None) -> Tensor:
    """Moves entropy coefficients so that the entropy meets its target: down while there is more.

    By the logarithm of the coefficient, as ML-Agents (quirk 12).

    Args:
        log_alpha: [1] for all continuous actions, or [K].
        surplus: entropy minus its target [b, 1] or [b, K], without gradient.
        mask: [b] or None.
    """
    return masked_mean((log_alpha * surplus).mean(1), mask)
