"""Proximal policy optimisation (Schulman et al. 2017) with the conventions of ML-Agents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from trajtrainer.algos.ppo import losses
from trajtrainer.algos.ppo.gradient_step import Loss, Objective, gradient_step
from trajtrainer.algos.ppo.settings import OnPolicy
from trajtrainer.algos.schedules import MIN_BETA, MIN_EPSILON, MIN_LEARNING_RATE, Coefficients, adapted, decayed
from trajtrainer.nn.actor import Actor
from trajtrainer.nn.critic import AnyCritic, SharedCritic
from trajtrainer.nn.fast.halves import picture_encoding
from trajtrainer.nn.heads import ActionDistribution
from trajtrainer.nn.minibatch import Minibatch, masked_mean
from trajtrainer.nn.multi_agent import GroupCritic
from trajtrainer.settings.hyperparameters import ScheduleType
from trajtrainer.settings.trainer import TrainerSettings

_FAR = 1.5  # times target_kl ends an update, as in Stable-Baselines3


class PPO:
    """The losses of actor and critic, and their schedules. How they are minimised, ``gradient_step`` chooses.

    Shapes: b rows of a minibatch, V reward signals.

    Attributes:
        adapted_rate: the learning rate as ``learning_rate_schedule: adaptive`` has brought it.
        has_moved_far: whether the last gradient step was left out, because the policy is as far from the one that acted
            as ``target_kl`` lets it be.
    """

    def __init__(self, actor: Actor, critic: AnyCritic | GroupCritic, settings: TrainerSettings) -> None:
        """Take the networks as they are, on their device.

        Args:
            actor: of PPO's kind (sigma that does not depend on the state, no tanh).
            critic: with one head per reward signal. A ``SharedCritic`` has its heads on the actor's body.
            settings: with hyperparameters of PPO, or of what builds on it.
        """
        assert isinstance(settings.hyperparameters, OnPolicy)
        self._columns = actor.head.continuous_size + len(actor.head.branches)
        self.actor = actor
        self.critic = critic
        self._hyper = settings.hyperparameters
        self._max_steps = settings.max_steps
        self._adaptive = self._hyper.learning_rate_schedule is ScheduleType.ADAPTIVE
        shared = isinstance(critic, SharedCritic)
        self._encode_pictures = picture_encoding(actor.body, self._hyper.batch_size) if shared else None
        self._step = gradient_step(actor, critic, self.objectives(), self._hyper)
        self.adapted_rate = self._hyper.learning_rate
        self.has_moved_far = False

    def coefficients(self, step: int) -> Coefficients:
        """Return learning rate, clipping range and entropy weight at trainer step ``step``."""
        hyper, last = self._hyper, self._max_steps
        return Coefficients(
            learning_rate=self.adapted_rate
            if self._adaptive
            else decayed(hyper.learning_rate_schedule, hyper.learning_rate, MIN_LEARNING_RATE, last, step),
            epsilon=decayed(hyper.epsilon_schedule, hyper.epsilon, MIN_EPSILON, last, step),
            beta=decayed(hyper.beta_schedule, hyper.beta, MIN_BETA, last, step),
        )

    def encoded(self, obs: Sequence[Tensor]) -> Tensor | None:
        """See ``GradientStep.encoded``."""
        return self._step.encoded(obs)

    def update(
        self, minibatch: Minibatch, coefficients: Coefficients, *, diagnostics: bool = True
    ) -> dict[str, Tensor]:
        """Make one gradient step: see ``GradientStep``.

        Diagnostics take about a twentieth of a small update's time, so a trainer asks for them now and then.
        """
        if self._hyper.normalize_advantage_per_mini_batch:
            advantage = losses.normalized(minibatch["advantage"], minibatch.loss_mask, minibatch.rows.get("weight"))
            minibatch = minibatch.with_rows({"advantage": advantage})
        if not self._step.follows_kl:
            return self._step(minibatch, coefficients, diagnostics=diagnostics)
        rate = partial(self._rate, coefficients.learning_rate)
        return self._step(minibatch, coefficients, diagnostics=True, rate=rate)

    def _rate(self, scheduled: float, statistics: Mapping[str, Tensor]) -> float | None:
        """Return the learning rate of a step, by how far the policy is ahead of it from the one that acted."""
        # Of all actions together, whatever the ratio is of: as if they were independent, which their formulas are.
        kl = statistics["Policy/Approximate KL"].item() * (1 if self._hyper.joint_ratio else self._columns)
        if self._adaptive:
            scheduled = self.adapted_rate = adapted(self.adapted_rate, kl, self._hyper.desired_kl)
        self.has_moved_far = self._hyper.target_kl is not None and kl > _FAR * self._hyper.target_kl
        return None if self.has_moved_far else scheduled

    def objectives(self) -> list[Objective]:
        """Return the loss of the actor and that of the critic, or of both where they have a body in common."""
        actor, critic = list(self.actor.parameters()), list(self.critic.parameters())
        if isinstance(self.critic, SharedCritic):
            return [Objective(actor + critic, self._shared_loss)]
        return [Objective(actor, self._actor_loss), Objective(critic, self._critic_loss)]

    def loss(self, minibatch: Minibatch, coefficients: Coefficients, diagnostics: bool = False) -> Loss:
        """Return ``policy loss + vf_coef * value loss - beta * entropy`` and its statistics (without gradient)."""
        return _sum(*(objective.loss(minibatch, coefficients, diagnostics) for objective in self.objectives()))

    def _shared_loss(self, minibatch: Minibatch, coefficients: Coefficients, diagnostics: bool) -> Loss:
        assert isinstance(self.critic, SharedCritic)
        if self._encode_pictures is None:
            distribution, values, _ = self.critic.actor_and_values(
                minibatch.obs, minibatch["mask"], minibatch.memory, minibatch.sequence_length
            )
        else:
            distribution, values = self.critic.actor_and_values_of(
                self._encode_pictures(minibatch.obs), minibatch["mask"]
            )
        return _sum(
            self._policy_loss(distribution, minibatch, coefficients, diagnostics),
            self._value_loss(values, minibatch, coefficients),
        )

    def _actor_loss(self, minibatch: Minibatch, coefficients: Coefficients, diagnostics: bool) -> Loss:
        distribution, _ = self.actor.distribution(
            minibatch.obs, minibatch["mask"], minibatch.memory, minibatch.sequence_length
        )
        return self._policy_loss(distribution, minibatch, coefficients, diagnostics)

    def _critic_loss(self, minibatch: Minibatch, coefficients: Coefficients, _diagnostics: bool) -> Loss:
        values, _ = self.critic(minibatch.obs, minibatch.critic_memory, minibatch.sequence_length)
        return self._value_loss(values, minibatch, coefficients)

    def _policy_loss(
        self, distribution: ActionDistribution, minibatch: Minibatch, coefficients: Coefficients, diagnostics: bool
    ) -> Loss:
        mask, epsilon = minibatch.loss_mask, coefficients.epsilon
        log_ratio = distribution.log_prob(minibatch["continuous"], minibatch["discrete"]) - minibatch["log_prob"]
        if self._hyper.joint_ratio:
            log_ratio = log_ratio.sum(1, keepdim=True)
        ratio = log_ratio.exp()
        policy_loss = losses.clipped_policy_loss(ratio, minibatch["advantage"], epsilon, mask)
        entropy = masked_mean(distribution.entropy(joint=self._hyper.joint_entropy), mask)
        with torch.no_grad():
            statistics = {"Losses/Policy Loss": policy_loss.abs()}
            if diagnostics:
                statistics |= losses.ratio_statistics(log_ratio, ratio, epsilon, mask)
        return policy_loss - coefficients.beta * entropy, statistics

    def _value_loss(self, values: Tensor, minibatch: Minibatch, coefficients: Coefficients) -> Loss:
        old_values = minibatch["value"].t() if self._hyper.value_clipping else None
        value_loss = losses.value_loss(
            values, minibatch["returns"].t(), minibatch.loss_mask, old_values=old_values, epsilon=coefficients.epsilon
        )
        return self._hyper.vf_coef * value_loss, {"Losses/Value Loss": value_loss.detach()}

    def state(self) -> dict[str, Any]:
        """See ``GradientStep.state``: the actor's parameters come first."""
        return self._step.state()

    def load_state(self, state: dict[str, Any]) -> None:
        """See ``GradientStep.load_state``."""
        self._step.load_state(state)


def _sum(first: Loss, *others: Loss) -> Loss:
    total, statistics = first
    for loss, more in others:
        total, statistics = total + loss, statistics | more
    return total, statistics
