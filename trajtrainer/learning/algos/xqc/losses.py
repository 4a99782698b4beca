"""The targets and losses of XQC's categorical critics.

Shape legend: V reward signals, b rows of a minibatch, K discrete branches, P distributions from a critic per signal: 1
without discrete actions, else one for each discrete action; Z atoms. ``mask`` is f32 [b], 0 for padding, or None.
"""

from __future__ import annotations

import torch
from torch import Tensor

from trajtrainer.learning.algos.sac.losses import mean_of_rows

ATOMS = 101
LARGEST = 5.0  # the atoms are evenly spaced between minus and plus this value
_DISTANCE = 2.0 * LARGEST / (ATOMS - 1)


def atoms_like(tensor: Tensor) -> Tensor:
    """Return the atoms' values [Z] with the dtype and device of ``tensor``."""
    return torch.linspace(-LARGEST, LARGEST, ATOMS, dtype=tensor.dtype, device=tensor.device)


def expected_distribution(probs: Tensor, policy_probs: Tensor | None, num_branches: int) -> Tensor:
    """Return the return distribution under the policy: a mixture over its actions, averaged over branches.

    Args:
        probs: [..., b, P, Z], the atoms' probabilities for each action.
        policy_probs: [b, P], the policy's probabilities; None without discrete actions.
        num_branches: K.

    Returns:
        [..., b, Z].
    """
    if policy_probs is None:
        return probs.squeeze(-2)
    return (probs * (policy_probs / num_branches).unsqueeze(-1)).sum(-2)  # several times faster than einsum


def smaller(distributions: Tensor, atoms: Tensor) -> Tensor:
    """For each signal and row, select the distribution with the smaller mean from two, [2, V, b, Z]."""
    first, second = distributions @ atoms
    return torch.where((first <= second).unsqueeze(-1), distributions[0], distributions[1])


def projected(distribution: Tensor, rewards: Tensor, discount: Tensor, bonus: Tensor, atoms: Tensor) -> Tensor:
    """Project the distribution of ``r + discount * (z + bonus)`` onto the atoms (Bellemare et al. 2017, algorithm 1).

    Args:
        distribution: [V, b, Z], the distribution of z.
        rewards: [V, b].
        discount: [V, b], 0 where the episode ended.
        bonus: [b], the entropy bonus.
        atoms: [Z].
    """
    shift = torch.addcmul(rewards, discount, bonus)
    values = torch.addcmul(shift.unsqueeze(-1), discount.unsqueeze(-1), atoms).clamp_(-LARGEST, LARGEST)
    places = values.add_(LARGEST).div_(_DISTANCE).clamp_(max=ATOMS - 1)
    below = places.floor().clamp_(max=ATOMS - 2)
    above_share = distribution * places.sub_(below)
    index = below.long()
    found = torch.zeros_like(distribution).scatter_add_(-1, index, distribution - above_share)
    return found.scatter_add_(-1, index + 1, above_share)


def cross_entropy(logits: Tensor, target: Tensor, mask: Tensor | None) -> Tensor:
    """Return the cross-entropy loss, averaged over signals, branches and real rows, 0-d.

    Args:
        logits: [V, b, K or 1, Z], the logits of the actions that were taken.
        target: [V, b, Z], the target distributions.
        mask: [b] or None.
    """
    each = -(logits.log_softmax(-1) * target.unsqueeze(-2)).sum(-1).mean((0, 2))
    return mean_of_rows(each, mask)


def taken(logits: Tensor, discrete: Tensor, branch_starts: Tensor) -> Tensor:
    """Select the logits [..., b, K, Z] of the discrete actions [b, K] that were taken from logits [..., b, P, Z]."""
    columns = (discrete + branch_starts).unsqueeze(-1).expand(*logits.shape[:-2], -1, logits.shape[-1])
    return logits.gather(-2, columns)
