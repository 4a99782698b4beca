"""How far a policy is from what it imitates: recorded actions, or a teacher's distribution over them.

Shape legend: b rows of a minibatch, C continuous actions, K discrete branches, D sum of branch sizes.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from trajtrainer.algos.algorithm import LearningContext
from trajtrainer.algos.bc.settings import BCHyperparameters, CloningHyperparameters, PolicyKind
from trajtrainer.algos.dagger.settings import DAggerHyperparameters
from trajtrainer.core.columns import TEACHER_MEAN, TEACHER_PROBS, TEACHER_STD
from trajtrainer.core.spec import BehaviorSpec, sensors_named, with_sensors
from trajtrainer.nn.actor import Actor
from trajtrainer.nn.distribution import ActionDistribution
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


def make_student(context: LearningContext) -> Actor:
    """Return a policy like ``make_actor`` that sees the ``student_sensors``, if there are any; else all.

    Raises:
        SettingsError: one of these is missing.
        UnsupportedError: a sensor that no encoder takes.
    """
    hyper = context.settings.hyperparameters
    assert isinstance(hyper, BCHyperparameters | DAggerHyperparameters)
    sees = sensors_named(context.spec, hyper.student_sensors) if hyper.student_sensors else None
    actor = make_actor(with_sensors(context.spec, sees), context.settings.network_settings, hyper)
    actor.sees = sees
    return actor


def recorded(actor: Actor, continuous: Tensor) -> Tensor:
    """Return recorded actions of the environment [b, C] as the policy's distribution gives them."""
    raw = actor.head.from_env(continuous)
    return raw.clamp(-_BELOW_ONE, _BELOW_ONE) if actor.head.tanh_squash else raw


def log_likelihood(actor: Actor, batch: Minibatch) -> Tensor:
    """Return the log-probability of what was recorded, summed over actions and branches [b]."""
    distribution, _ = actor(batch.obs, batch["mask"], batch.memory, batch.sequence_length)
    of_each: Tensor = distribution.log_prob(recorded(actor, batch["continuous"]), batch["discrete"])
    return of_each.sum(1)


def divergence(distribution: ActionDistribution, batch: Minibatch) -> Tensor:
    """Return KL(teacher || policy), summed over actions and branches [b].

    Between a squashed and a clipped Gaussian it is the one between Gaussians of the teacher's ``moments``, which
    differs from the true one by what does not depend on the policy.
    """
    found = distribution.mu.new_zeros(len(batch))
    if distribution.mu.shape[1]:
        mean, std, sigma = batch[TEACHER_MEAN], batch[TEACHER_STD], distribution.sigma
        squares = (std.square() + (mean - distribution.mu).square()) / (2.0 * sigma.square())
        found = found + ((sigma / std).log() + squares - 0.5).sum(1)
    if distribution.branches:
        probs = batch[TEACHER_PROBS]
        log_probs = torch.cat([logits.log_softmax(1) for logits in distribution.logits], 1)
        found = found + (torch.xlogy(probs, probs) - probs * log_probs).sum(1)
    return found


def imitation_losses(actor: Actor, distribution: ActionDistribution, batch: Minibatch) -> Tensor:
    """Return what imitation minimizes [b]: the divergence from a teacher where there is one, else -ln pi(a | s)."""
    if TEACHER_MEAN in batch.rows:
        return divergence(distribution, batch)
    return -distribution.log_prob(recorded(actor, batch["continuous"]), batch["discrete"]).sum(1)


@torch.no_grad()
def limit_sigma(actor: Actor, min_std: float) -> None:
    """Keep a standard deviation that does not depend on the state from becoming smaller than ``min_std``."""
    if actor.head.log_sigma is not None:
        actor.head.log_sigma.clamp_(min=math.log(actor.head.clip_actions * min_std))


@torch.no_grad()
def prediction(actor: Actor, batch: Minibatch) -> dict[str, Tensor]:
    """Return how well the policy's likeliest actions are what was recorded, as sums over the real rows.

    Returns:
        ``rows``; ``loss``, see ``imitation_losses``; ``squared_error`` of the continuous actions, mean over them, in
        the environment's units; ``hits``, the part of the branches that is right. What the actions do not have is left
        out.
    """
    distribution, _ = actor(batch.obs, batch["mask"], batch.memory, batch.sequence_length)
    likeliest = distribution.deterministic()
    weight = torch.ones(len(batch), device=batch["mask"].device) if batch.loss_mask is None else batch.loss_mask
    sums = {"rows": weight.sum(), "loss": weight @ imitation_losses(actor, distribution, batch)}
    if actor.head.continuous_size:
        error = distribution.to_env(likeliest.continuous) - batch["continuous"]
        sums["squared_error"] = weight @ error.square().mean(1)
    if actor.head.branches:
        sums["hits"] = weight @ (likeliest.discrete == batch["discrete"]).float().mean(1)
    return sums
