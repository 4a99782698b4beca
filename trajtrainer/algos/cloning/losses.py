"""The loss of behavioural cloning: how far a policy is from what demonstrations do.

Shape legend: b rows of a minibatch, C continuous actions, K discrete branches, D sum of branch sizes.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from trajtrainer.nn.actor import Actor
from trajtrainer.nn.minibatch import Minibatch, masked_mean


def cloning_loss(actor: Actor, minibatch: Minibatch) -> Tensor:
    """Return the loss of a policy on demonstrated steps, a 0-d tensor: that of both kinds of actions together.

    Args:
        actor: the policy.
        minibatch: ``obs``, ``mask`` and the actions that are to be imitated, ``continuous`` as the policy gives them
            (see ``ActionHead.from_env``). With ``noise`` f32 [b, C], standard normal, the actions are sampled by it,
            as ML-Agents does; without, they are the means.
    """
    distribution, _ = actor.distribution(minibatch.obs, minibatch["mask"], minibatch.memory, minibatch.sequence_length)
    losses = []
    if actor.head.continuous_size:
        noise = minibatch.rows.get("noise")
        done = distribution.deterministic().continuous if noise is None else distribution.continuous_from_noise(noise)
        losses.append(squared_error(done, minibatch["continuous"], minibatch.loss_mask))
    if distribution.branches:
        found = distribution.all_log_probs
        losses.append(cross_entropy(found, minibatch["discrete"], distribution.branches, minibatch.loss_mask))
    return losses[0] if len(losses) == 1 else losses[0] + losses[1]


def squared_error(actions: Tensor, wanted: Tensor, mask: Tensor | None) -> Tensor:
    """Return the mean squared difference of continuous actions [b, C], over all of them in the real rows."""
    return masked_mean((actions - wanted).square(), mask)


def cross_entropy(all_log_probs: Tensor, wanted: Tensor, branches: Sequence[int], mask: Tensor | None) -> Tensor:
    """Return the cross entropy of the actions of each branch, mean over branches and real rows.

    Args:
        all_log_probs: ln(p + 1e-7) of all actions [b, D]. What was added is normalised away again, as in ML-Agents.
        wanted: i64 [b, K].
        branches: their K sizes.
        mask: f32 [b], 0 in padding; None when every row is real.
    """
    parts = zip(all_log_probs.split_with_sizes(list(branches), 1), wanted.unbind(1), strict=True)
    each = torch.stack([F.cross_entropy(found, right, reduction="none") for found, right in parts], 1)
    return masked_mean(each, mask)
