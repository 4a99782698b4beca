"""Implicit Q-learning (IQL; Kostrikov et al. 2021, arXiv:2110.06169).

It learns values of recorded actions only, and a policy that imitates the best of these actions. Symbols follow the
paper.

Shape legend: b rows of a batch, K branches. ``mask`` is f32 [b], 1 for a real row and 0 for padding,
or None if every row is real.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn

from trajtrainer.learning.algos.algorithm import LearningContext
from trajtrainer.learning.algos.sac.losses import taken_q
from trajtrainer.learning.nn.critic import ValueNetwork
from trajtrainer.learning.nn.fast.adam import Adam
from trajtrainer.learning.nn.minibatch import Minibatch, masked_mean
from trajtrainer.learning.rewards.signal import RewardSignal
from trajtrainer.plugins.imitation.offline import Offline, limit_sigma, log_likelihood, make_actor
from trajtrainer.plugins.imitation.settings import IQLHyperparameters


def value_loss(advantage: Tensor, expectile: float, mask: Tensor | None) -> Tensor:
    """Return the expectile loss [b]: ``(Q - V) ** 2`` times ``expectile``, or times ``1 - expectile`` if Q < V."""
    weight = torch.where(advantage < 0, 1.0 - expectile, expectile)
    return masked_mean(weight * advantage.square(), mask)


def q_losses(q: Tensor, target: Tensor, mask: Tensor | None) -> Tensor:
    """Return the mean squared error [n] of each of n networks, given their values [n, b] and the target [b]."""
    return torch.stack([masked_mean((one - target).square(), mask) for one in q])


def advantage_weight(advantage: Tensor, temperature: float, largest: float) -> Tensor:
    """Return each step's weight in the policy loss [b]: ``exp(temperature * (Q - V))``, limited to ``largest``."""
    return (temperature * advantage).exp().clamp(max=largest)


def policy_loss(log_likelihood: Tensor, weight: Tensor, mask: Tensor | None) -> Tensor:
    """Return the negative weighted log-probability of the recorded actions (advantage-weighted regression)."""
    return -masked_mean(weight * log_likelihood, mask)


class IQL(Offline):
    """Learns to outperform the data set without evaluating actions that are not in it."""

    needs_next: ClassVar[bool] = True
    timer: ClassVar[str] = "IQL.update"

    def __init__(
        self, context: LearningContext, networks: Mapping[str, nn.Module], signals: Sequence[RewardSignal]
    ) -> None:
        super().__init__(context, networks, signals)
        hyper = context.settings.hyperparameters
        assert isinstance(hyper, IQLHyperparameters)
        self.hyper: IQLHyperparameters = hyper
        names = ("q1", "q2", "value", "target_q1", "target_q2")
        q1, q2, v, target_q1, target_q2 = (cast("ValueNetwork", networks[name]) for name in names)
        self._q, self._v, self._target_q = [q1, q2], v, [target_q1, target_q2]
        for target in self._target_q:
            target.requires_grad_(False)
        self._followers: list[Tensor] = [*target_q1.parameters(), *target_q2.parameters()]
        self._followed: list[Tensor] = [*q1.parameters(), *q2.parameters()]
        self._adams = {
            "policy": Adam(self.actor.parameters(), hyper.learning_rate, hyper.weight_decay),
            "value": Adam([*self._followed, *v.parameters()], hyper.learning_rate, hyper.weight_decay),
        }

    @classmethod
    def make_networks(cls, context: LearningContext) -> dict[str, nn.Module]:
        """Create an actor, two Q networks with their slow copies, and V."""
        hyper, settings, spec = context.settings.hyperparameters, context.settings.network_settings, context.spec
        assert isinstance(hyper, IQLHyperparameters)
        names = list(context.settings.reward_signals)
        continuous, discrete = int(spec.action_spec.continuous_size), sum(spec.action_spec.discrete_branches)
        q1, q2, target_q1, target_q2 = (
            ValueNetwork(spec, settings, names, action_size=continuous, outputs=max(1, discrete)) for _ in range(4)
        )
        target_q1.load_state_dict(q1.state_dict())
        target_q2.load_state_dict(q2.state_dict())
        return {
            "actor": make_actor(spec, settings, hyper),
            "q1": q1,
            "q2": q2,
            "value": ValueNetwork(spec, settings, names),
            "target_q1": target_q1,
            "target_q2": target_q2,
        }

    def gradient_step(self, batch: Minibatch, step: int) -> dict[str, Tensor]:
        hyper, mask = self.hyper, batch.loss_mask

        # L_V (equation 5): V(s) is an expectile of min Q'(s, a) over the recorded actions.
        value = self._v(batch.obs, None, batch.sequence_length)[0][0]
        with torch.no_grad():
            seen = torch.stack([self._of_taken(one, batch) for one in self._target_q]).min(0).values
        loss_v = value_loss(seen - value, hyper.expectile, mask)

        # L_Q (equation 6): Q(s, a) is r + gamma V(s').
        with torch.no_grad():
            memory = None
            if self._v.memory_size:  # start from the memory after the sequence's first step
                _, memory = self._v([sensor[:: batch.sequence_length] for sensor in batch.obs], None)
            following = self._v(batch.next_obs, memory, batch.sequence_length)[0][0]
            target = torch.addcmul(batch["rewards"], batch["discount"], following)
        q = torch.stack([self._of_taken(one, batch) for one in self._q])
        loss_q = q_losses(q, target, mask)

        # L_pi (equation 7): behavioral cloning, weighted by exp(beta (Q' - V)).
        with torch.no_grad():
            weight = advantage_weight(seen - value, hyper.temperature, hyper.max_weight)
        distribution, _ = self.actor(batch.obs, batch["mask"], batch.memory, batch.sequence_length)
        loss_pi = policy_loss(log_likelihood(self.actor, distribution, batch), weight, mask)

        self._adams["policy"].descend(loss_pi, self.decayed(hyper.learning_rate, step))
        self._adams["value"].descend(loss_v + loss_q.sum(), self.decayed(hyper.critic_learning_rate, step))

        # The copies follow: Q' = (1 - tau) Q' + tau Q.
        with torch.no_grad():
            torch._foreach_lerp_(self._followers, self._followed, hyper.tau)
        limit_sigma(self.actor, hyper.min_std)
        return {
            "Losses/Policy Loss": loss_pi.detach(),
            "Losses/Value Loss": loss_v.detach(),
            "Losses/Q1 Loss": loss_q[0].detach(),
            "Losses/Q2 Loss": loss_q[1].detach(),
            "Policy/Extrinsic Value": masked_mean(value.detach(), mask),
            "Policy/Advantage Weight": masked_mean(weight, mask),
        }

    def _of_taken(self, network: ValueNetwork, batch: Minibatch) -> Tensor:
        """Return the Q values of the recorded actions [b]. For discrete actions, this is the mean over the branches."""
        head = self.actor.head
        actions = batch["continuous"] if head.continuous_size else None
        q: Tensor = network(batch.obs, None, batch.sequence_length, actions)[0][0]
        if not head.branches:
            return q
        return taken_q(q if q.dim() == 2 else q.unsqueeze(1), batch["discrete"], head.branch_starts)

    def optimizer_states(self) -> dict[str, dict[str, Any]]:
        """Return the states of the optimizers ``policy`` and ``value`` (for Q1, Q2 and V)."""
        return {name: adam.state_dict() for name, adam in self._adams.items()}

    def load_optimizer_states(self, states: Mapping[str, dict[str, Any]]) -> None:
        for name, adam in self._adams.items():
            adam.load_state_dict(states[name])
