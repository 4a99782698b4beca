"""Implicit Q-learning (Kostrikov et al. 2021): values of recorded actions alone, and a policy that follows the best.

Shape legend: b rows of a batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from trajtrainer.algos.algorithm import LearningContext
from trajtrainer.algos.iql import losses
from trajtrainer.algos.iql.closed_form import closed_form
from trajtrainer.algos.iql.settings import IQLHyperparameters
from trajtrainer.algos.offline.offline import Offline, limit_sigma, log_likelihood, make_actor
from trajtrainer.algos.sac.losses import taken_q
from trajtrainer.nn.critic import ValueNetwork
from trajtrainer.nn.fast.adam import Adam, adam_state, load_adam_state, whole
from trajtrainer.nn.minibatch import Minibatch, masked_mean
from trajtrainer.rewards.signal import RewardSignal


class IQL(Offline):
    """Learns to do better than the data set, without asking for the value of actions that were never tried.

    Attributes:
        closed_form: differentiates the losses by hand; None for autograd.
    """

    needs_next: ClassVar[bool] = True
    timer: ClassVar[str] = "IQL.update"

    def __init__(
        self, context: LearningContext, networks: Mapping[str, nn.Module], signals: Sequence[RewardSignal]
    ) -> None:
        super().__init__(context, networks, signals)
        hyper = context.settings.hyperparameters
        assert isinstance(hyper, IQLHyperparameters)
        self.hyper: IQLHyperparameters = hyper
        q1, q2, v, target_q1, target_q2 = map(self._critic, ("q1", "q2", "value", "target_q1", "target_q2"))
        self._q, self._v, self._target_q = [q1, q2], v, [target_q1, target_q2]
        for target in self._target_q:
            target.requires_grad_(False)
        self._followers: list[Tensor] = [*target_q1.parameters(), *target_q2.parameters()]
        self._followed: list[Tensor] = [*q1.parameters(), *q2.parameters()]
        self.closed_form = closed_form(self.actor, [q1, q2, v], self._target_q, hyper)
        if self.closed_form is None:
            values = [parameter for network in (q1, q2, v) for parameter in network.parameters()]
            self._pieces = {"policy": list(map(whole, self.actor.parameters())), "value": list(map(whole, values))}
        else:
            self._pieces = self.closed_form.pieces
        self._leaves = {
            name: list(dict.fromkeys(piece.leaf for piece in pieces)) for name, pieces in self._pieces.items()
        }
        self._adam = Adam(
            [*self._leaves["policy"], *self._leaves["value"]], hyper.learning_rate, weight_decay=hyper.weight_decay
        )

    def _critic(self, name: str) -> ValueNetwork:
        network = self.networks[name]
        assert isinstance(network, ValueNetwork)
        return network

    @classmethod
    def make_networks(cls, context: LearningContext) -> dict[str, nn.Module]:
        """Make an actor, two Q networks and their copies, and V."""
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
        hyper = self.hyper
        statistics = self.differentiate(batch) if self.closed_form is None else self.closed_form.differentiate(batch)
        rates = {"policy": hyper.learning_rate, "value": hyper.critic_learning_rate}
        for name, leaves in self._leaves.items():
            self._adam.param_groups[0]["lr"] = self.decayed(rates[name], step)
            self._adam.step(leaves)

        # The copies follow: Q' = (1 - tau) Q' + tau Q.
        if self.closed_form is not None:
            self.closed_form.follow(hyper.tau)
        else:
            with torch.no_grad():
                torch._foreach_lerp_(self._followers, self._followed, hyper.tau)
        limit_sigma(self.actor, hyper.min_std)
        return statistics

    def differentiate(self, batch: Minibatch) -> dict[str, Tensor]:
        """Differentiate all losses by autograd. Return statistics as 0-d tensors.

        One backward pass does for their sum, as no loss has a parameter of another's network.
        """
        hyper, mask = self.hyper, batch.loss_mask

        # L_V (equation 5): V(s) is an expectile of min Q'(s, a) over the recorded actions.
        value = self._value(batch)
        with torch.no_grad():
            seen = torch.stack([self._of_taken(one, batch) for one in self._target_q]).min(0).values
        value_loss = losses.value_loss(seen - value, hyper.expectile, mask)

        # L_Q (equation 6): Q(s, a) is r + gamma V(s').
        with torch.no_grad():
            target = torch.addcmul(batch["rewards"], batch["discount"], self._following_value(batch))
        q = torch.stack([self._of_taken(one, batch) for one in self._q])
        q_losses = losses.q_losses(q, target, mask)

        # L_pi (equation 7): cloning, weighted by exp(beta (Q' - V)).
        with torch.no_grad():
            weight = losses.advantage_weight(seen - value, hyper.temperature, hyper.max_weight)
        policy_loss = losses.policy_loss(log_likelihood(self.actor, batch), weight, mask)

        for leaf in (*self._leaves["policy"], *self._leaves["value"]):
            leaf.grad = None
        (policy_loss + value_loss + q_losses.sum()).backward()  # type: ignore[no-untyped-call]
        return {
            "Losses/Policy Loss": policy_loss.detach(),
            "Losses/Value Loss": value_loss.detach(),
            "Losses/Q1 Loss": q_losses[0].detach(),
            "Losses/Q2 Loss": q_losses[1].detach(),
            "Policy/Extrinsic Value": masked_mean(value.detach(), mask),
            "Policy/Advantage Weight": masked_mean(weight, mask),
        }

    def _value(self, batch: Minibatch) -> Tensor:
        values: Tensor = self._v(batch.obs, None, batch.sequence_length)[0][0]
        return values

    def _following_value(self, batch: Minibatch) -> Tensor:
        """Return V of the next observations [b], with the memory of one step later where there is one."""
        memory = None
        if self._v.memory_size:
            _, memory = self._v([sensor[:: batch.sequence_length] for sensor in batch.obs], None)
        values: Tensor = self._v(batch.next_obs, memory, batch.sequence_length)[0][0]
        return values

    def _of_taken(self, network: ValueNetwork, batch: Minibatch) -> Tensor:
        """Return Q of the recorded actions [b]: of discrete ones the mean over the branches."""
        head = self.actor.head
        actions = batch["continuous"] if head.continuous_size else None
        q: Tensor = network(batch.obs, None, batch.sequence_length, actions)[0][0]
        if not head.branches:
            return q
        return taken_q(q if q.dim() == 2 else q.unsqueeze(1), batch["discrete"], head.branch_starts)

    def optimizer_states(self) -> dict[str, dict[str, Any]]:
        """Return those of ``policy``, and of ``value`` over Q1, Q2 and V."""
        return {name: adam_state(self._adam, pieces) for name, pieces in self._pieces.items()}

    def load_optimizer_states(self, states: Mapping[str, dict[str, Any]]) -> None:
        for name, pieces in self._pieces.items():
            load_adam_state(self._adam, pieces, states[name])
