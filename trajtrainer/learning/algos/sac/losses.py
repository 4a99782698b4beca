"""SAC's targets and losses with ML-Agents' conventions (docs/explanation/mlagents-behavior.md#networks-and-update).

Shape legend: V reward signals, b rows of a batch, C continuous actions, K discrete branches, D sum of branch sizes, P
numbers that a Q network gives per signal: 1 without discrete actions, else D. ``mask`` is f32 [b], 1 for a real row and
0 for padding, or None when every row is real.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

DISCRETE_TARGET = 0.2  # of a branch's highest possible entropy


def mean_of_rows(values: Tensor, mask: Tensor | None) -> Tensor:
    """The mean over the real rows: [b, ...] to [...]."""
    if mask is None:
        return values.mean(0)
    weight = mask / mask.sum().clamp(min=1.0)
    return weight @ values


def taken_q(q: Tensor, discrete: Tensor, branch_starts: Tensor) -> Tensor:
    """Q of the discrete actions that were taken, the mean over branches.

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
    """The policy's expectation of Q [..., b], the mean over branches.

    Args:
        q: [..., b, D].
        probs: [b, D].
        num_branches: K.
    """
    return (q * probs).sum(-1) / num_branches


def value_target(q: Tensor, continuous_bonus: Tensor | None, discrete_bonus: Tensor | None) -> Tensor:
    """``min(Q1, Q2) + entropy``: the worth of a state to a policy that is rewarded for its entropy.

    With both kinds of actions ML-Agents *subtracts* the entropy of the continuous ones
    (docs/explanation/mlagents-behavior.md#value-targets); here it is added, as it is without discrete ones.

    Args:
        q: [2, V, b], both networks' values of the policy's actions.
        continuous_bonus: [b], ``-alpha * ln pi`` of the sampled action, summed over the dimensions; None without.
        discrete_bonus: [b], ``-alpha * sum of p * ln p``, mean over the branches; None without.

    Returns:
        [V, b].
    """
    target = torch.minimum(q[0], q[1])
    for bonus in (continuous_bonus, discrete_bonus):
        if bonus is not None:
            target = target + bonus
    return target


def entropy_target(forbidden: Tensor, sum_by_branch: Tensor, mask: Tensor | None) -> Tensor:
    """The mean entropy that each branch should have: a fifth of the highest that its masks allow.

    ML-Agents takes a fifth of the highest possible without masks. If most states allow only one action, no policy
    reaches that, and the coefficients grow until the entropy in the few other states outweighs the task.

    Args:
        forbidden: bool [b, D].
        sum_by_branch: [D, K], 1 where a column belongs to a branch.
        mask: [b] or None.

    Returns:
        [K].
    """
    allowed = (~forbidden).to(sum_by_branch.dtype) @ sum_by_branch
    return DISCRETE_TARGET * mean_of_rows(allowed.clamp(min=1.0).log(), mask)


def value_loss(values: Tensor, targets: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Half the squared errors of n networks, the mean over reward signals and real rows.

    ML-Agents counts padding, too (docs/explanation/mlagents-behavior.md#padding).

    Args:
        values: [n, V, b].
        targets: [n, V, b], without gradient.
        mask: [b] or None.

    Returns:
        The sum over the networks, to be minimized, and each network's loss [n] without gradient.
    """
    with torch.no_grad():
        errors = values - targets
        squares = (errors * errors).mean(1)
        each = 0.5 * (squares.mean(1) if mask is None else mean_of_rows(squares.t(), mask))
    if mask is None:
        return F.mse_loss(values, targets) * (0.5 * len(values)), each
    weight = mask / (2.0 * values.shape[1] * mask.sum().clamp(min=1.0))
    return (F.mse_loss(values, targets, reduction="none") * weight).sum(), each
