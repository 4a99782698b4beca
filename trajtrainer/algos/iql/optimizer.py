"""Implicit Q-learning (Kostrikov et al. 2021): values of what was recorded alone, and a policy that follows the best.

Shape legend: b rows of a batch, P numbers that a Q network gives: 1 without discrete actions, else the sum of branches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from trajtrainer.algos.iql import losses
from trajtrainer.algos.iql.settings import IQLHyperparameters
from trajtrainer.algos.offline.policy import limit_sigma, log_likelihood
from trajtrainer.algos.sac.losses import taken_q
from trajtrainer.nn.actor import Actor
from trajtrainer.nn.critic import ValueNetwork
from trajtrainer.nn.fast.adam import Adam, adam_state, load_adam_state, whole
from trajtrainer.nn.minibatch import Minibatch, masked_mean


@dataclass(frozen=True, slots=True)
class IQLNetworks:
    """A policy, two Q networks, V, and slowly following copies of the Q networks."""

    actor: Actor
    q1: ValueNetwork
    q2: ValueNetwork
    value: ValueNetwork
    target_q1: ValueNetwork
    target_q2: ValueNetwork

    @property
    def values(self) -> list[ValueNetwork]:
        """Those of the value networks that are trained."""
        return [self.q1, self.q2, self.value]


class IQL:
    """Differentiate the losses by autograd: the reference, for all networks. See ``OfflineStep``.

    Of the same weights, as no loss has a parameter of another's network: one backward pass does for all.
    """

    def __init__(self, networks: IQLNetworks, hyper: IQLHyperparameters) -> None:
        """Take the networks as they are, on their device."""
        self._networks = networks
        self._hyper = hyper
        for target in (networks.target_q1, networks.target_q2):
            target.requires_grad_(False)
        groups = list(networks.actor.parameters()), [p for one in networks.values for p in one.parameters()]
        self._groups = groups
        self._pieces = {name: list(map(whole, group)) for name, group in zip(("policy", "value"), groups, strict=True)}
        self._adam = Adam([*groups[0], *groups[1]], hyper.learning_rate, weight_decay=hyper.weight_decay)
        self._followed: list[Tensor] = [*networks.q1.parameters(), *networks.q2.parameters()]
        self._followers: list[Tensor] = [*networks.target_q1.parameters(), *networks.target_q2.parameters()]

    def __call__(self, batch: Minibatch, learning_rates: Sequence[float]) -> dict[str, Tensor]:
        """See ``OfflineStep``."""
        loss, statistics = self.loss(batch)
        for group in self._groups:
            for parameter in group:
                parameter.grad = None
        loss.backward()  # type: ignore[no-untyped-call]
        for group, rate in zip(self._groups, learning_rates, strict=True):
            self._adam.param_groups[0]["lr"] = rate
            self._adam.step(group)
        with torch.no_grad():
            torch._foreach_lerp_(self._followers, self._followed, self._hyper.tau)
        limit_sigma(self._networks.actor, self._hyper.min_std)
        return statistics

    def loss(self, batch: Minibatch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the sum of all losses, and their statistics (without gradient) by their tags."""
        networks, hyper, mask = self._networks, self._hyper, batch.loss_mask
        value = self._value(networks.value, batch)
        with torch.no_grad():
            following = self._following_value(batch)
            targets = torch.stack([self._q(one, batch) for one in (networks.target_q1, networks.target_q2)])
            seen = targets.min(0).values
            q_target = torch.addcmul(batch["rewards"], batch["discount"], following)
            weight = losses.advantage_weight(seen - value, hyper.temperature, hyper.max_weight)
        q = torch.stack([self._q(one, batch) for one in (networks.q1, networks.q2)])
        q_losses = losses.q_losses(q, q_target, mask)
        value_loss = losses.value_loss(seen - value, hyper.expectile, mask)
        policy_loss = losses.policy_loss(log_likelihood(networks.actor, batch), weight, mask)
        return policy_loss + value_loss + q_losses.sum(), {
            "Losses/Policy Loss": policy_loss.detach(),
            "Losses/Value Loss": value_loss.detach(),
            "Losses/Q1 Loss": q_losses[0].detach(),
            "Losses/Q2 Loss": q_losses[1].detach(),
            "Policy/Extrinsic Value": masked_mean(value.detach(), mask),
            "Policy/Advantage Weight": masked_mean(weight, mask),
        }

    def _value(self, network: ValueNetwork, batch: Minibatch) -> Tensor:
        values: Tensor = network(batch.obs, None, batch.sequence_length)[0][0]
        return values

    def _following_value(self, batch: Minibatch) -> Tensor:
        """Return V of the next observations [b], with the memory of one step later where there is one."""
        network, memory = self._networks.value, None
        if network.memory_size:
            _, memory = network([sensor[:: batch.sequence_length] for sensor in batch.obs], None)
        values: Tensor = network(batch.next_obs, memory, batch.sequence_length)[0][0]
        return values

    def _q(self, network: ValueNetwork, batch: Minibatch) -> Tensor:
        """Return Q of what was done [b]: of discrete actions the mean over the branches."""
        head = self._networks.actor.head
        actions = batch["continuous"] if head.continuous_size else None
        q: Tensor = network(batch.obs, None, batch.sequence_length, actions)[0][0]
        if not head.branches:
            return q
        return taken_q(q if q.dim() == 2 else q.unsqueeze(1), batch["discrete"], head.branch_starts)

    def states(self) -> dict[str, dict[str, Any]]:
        """See ``OfflineStep``: ``policy`` and ``value`` (over q1, q2 and V)."""
        return {name: adam_state(self._adam, pieces) for name, pieces in self._pieces.items()}

    def load_states(self, states: Mapping[str, Mapping[str, Any]]) -> None:
        """See ``OfflineStep``.

        Raises:
            KeyError: one of them is missing.
            ValueError: moments that fit no parameter.
        """
        for name, pieces in self._pieces.items():
            load_adam_state(self._adam, pieces, states[name])
