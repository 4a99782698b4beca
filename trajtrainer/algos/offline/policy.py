"""How likely a policy does what was recorded: the loss of cloning, and of what weighs the steps that it clones.

Shape legend: b rows of a minibatch, C continuous actions, K discrete branches.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from trajtrainer.algos.bc.settings import CloningHyperparameters, PolicyKind
from trajtrainer.core.spec import BehaviorSpec
from trajtrainer.nn.actor import Actor
from trajtrainer.nn.minibatch import Minibatch
from trajtrainer.settings.network import NetworkSettings

# What was recorded at the very end of the range has no finite place ahead of tanh.
_BELOW_ONE = 0.999


def make_actor(spec: BehaviorSpec, network: NetworkSettings, hyper: CloningHyperparameters) -> Actor:
    """Return a policy of the kind that ``policy`` names, with weights of the global generator.

    Raises:
        UnsupportedError: a sensor that no encoder takes.
    """
    is_sac = hyper.policy is PolicyKind.SAC
    return Actor(spec, network, conditional_sigma=is_sac, tanh_squash=is_sac)


def recorded(actor: Actor, continuous: Tensor) -> Tensor:
    """Return recorded actions of the environment [b, C] as the policy's distribution gives them."""
    raw = actor.head.from_env(continuous)
    return raw.clamp(-_BELOW_ONE, _BELOW_ONE) if actor.head.tanh_squash else raw


def log_likelihood(actor: Actor, batch: Minibatch) -> Tensor:
    """Return the log-probability of what was recorded, summed over actions and branches [b]."""
    distribution, _ = actor(batch.obs, batch["mask"], batch.memory, batch.sequence_length)
    of_each: Tensor = distribution.log_prob(recorded(actor, batch["continuous"]), batch["discrete"])
    return of_each.sum(1)


@torch.no_grad()
def limit_sigma(actor: Actor, min_std: float) -> None:
    """Keep a standard deviation that does not depend on the state from becoming smaller than ``min_std``."""
    if actor.head.log_sigma is not None:
        actor.head.log_sigma.clamp_(min=math.log(actor.head.clip_actions * min_std))


@torch.no_grad()
def prediction(actor: Actor, batch: Minibatch) -> dict[str, Tensor]:
    """Return how well the policy's likeliest actions are what was recorded, as sums over the real rows.

    Returns:
        ``rows``; ``log_likelihood``; ``squared_error`` of the continuous actions, mean over them, in the environment's
        units; ``hits``, the part of the branches that is right. What the actions do not have is left out.
    """
    distribution, _ = actor(batch.obs, batch["mask"], batch.memory, batch.sequence_length)
    likeliest = distribution.deterministic()
    weight = torch.ones(len(batch), device=batch["mask"].device) if batch.loss_mask is None else batch.loss_mask
    log_prob = distribution.log_prob(recorded(actor, batch["continuous"]), batch["discrete"]).sum(1)
    sums = {"rows": weight.sum(), "log_likelihood": weight @ log_prob}
    if actor.head.continuous_size:
        error = distribution.to_env(likeliest.continuous) - batch["continuous"]
        sums["squared_error"] = weight @ error.square().mean(1)
    if actor.head.branches:
        sums["hits"] = weight @ (likeliest.discrete == batch["discrete"]).float().mean(1)
    return sums
