"""SAC's targets and losses with ML-Agents' conventions (docs/explanation/mlagents-behavior.md#networks-and-update).

Shape legend: V reward signals, b rows of a minibatch, C continuous actions, K discrete branches, D sum of branch sizes,
P outputs of a Q network per signal: 1 without discrete actions, else D. ``mask`` is f32 [b], 1 for real rows and 0 for
padding, or None if all rows are real.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

DISCRETE_TARGET = 0.2  # target entropy as a fraction of a branch's maximum entropy


def mean_of_rows(values: Tensor, mask: Tensor | None) -> Tensor:
    """Return the mean over the real rows, [b, ...] to [...]."""
    if mask is None:
        return values.mean(0)
    weight = mask / mask.sum().clamp(min=1.0)
    return weight @ values


def taken_q(q: Tensor, discrete: Tensor, branch_starts: Tensor) -> Tensor:
    """Return the Q values of the discrete actions that were taken, averaged over branches.

    Args:
        q: [..., b, D].
        discrete: i64 [b, K].
        branch_starts: i64 [K], index of each branch's first column.

    Returns:
        [..., b].
    """
    columns = (discrete + branch_starts).expand(*q.shape[:-1], -1)
    return q.gather(-1, columns).mean(-1)


def expected_q(q: Tensor, probs: Tensor, num_branches: int) -> Tensor:
    """Return the expectation of Q under the policy, averaged over branches, [..., b].

    Args:
        q: [..., b, D].
        probs: [b, D], the policy's probabilities.
        num_branches: K.
    """
    return (q * probs).sum(-1) / num_branches


def value_target(q: Tensor, continuous_bonus: Tensor | None, discrete_bonus: Tensor | None) -> Tensor:
    """Return the soft value of states, ``min(Q1, Q2)`` plus the entropy bonus.

    With both continuous and discrete actions, ML-Agents *subtracts* the entropy of the continuous actions
    (docs/explanation/mlagents-behavior.md#value-targets). Here it is added, as it is with continuous actions only.

    Args:
        q: [2, V, b], Q1 and Q2 of the policy's actions.
        continuous_bonus: [b], ``-alpha * ln pi`` of the sampled action, summed over the dimensions; None without
            continuous actions.
        discrete_bonus: [b], ``-alpha * sum of p * ln p``, averaged over the branches; None without discrete actions.

    Returns:
        [V, b].
    """
    target = torch.minimum(q[0], q[1])
    for bonus in (continuous_bonus, discrete_bonus):
        if bonus is not None:
            target = target + bonus
    return target


def entropy_target(forbidden: Tensor, sum_by_branch: Tensor, mask: Tensor | None) -> Tensor:
    """Return the target entropy of each branch: a fifth of the maximum entropy that the action masks allow, on average.

    ML-Agents uses a fifth of the maximum without masks. If most states allow only one action, no policy can reach that,
    and the entropy coefficients grow until the entropy bonus in the few other states outweighs the task.

    Args:
        forbidden: bool [b, D], the action masks.
        sum_by_branch: [D, K], 1 where a column belongs to a branch.
        mask: [b] or None.

    Returns:
        [K].
    """
    allowed = (~forbidden).to(sum_by_branch.dtype) @ sum_by_branch
    return DISCRETE_TARGET * mean_of_rows(allowed.clamp(min=1.0).log(), mask)


def value_loss(values: Tensor, targets: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return half the squared errors of n networks, averaged over reward signals and real rows.

    ML-Agents also counts padding (docs/explanation/mlagents-behavior.md#padding).

    Args:
        values: [n, V, b].
        targets: [n, V, b], without gradient.
        mask: [b] or None.

    Returns:
        The sum of the networks' losses, and each network's loss [n] without gradient.
    """
    with torch.no_grad():
        errors = values - targets
        squares = (errors * errors).mean(1)
        each = 0.5 * (squares.mean(1) if mask is None else mean_of_rows(squares.t(), mask))
    if mask is None:
        return F.mse_loss(values, targets) * (0.5 * len(values)), each
    weight = mask / (2.0 * values.shape[1] * mask.sum().clamp(min=1.0))
    return (F.mse_loss(values, targets, reduction="none") * weight).sum(), each
