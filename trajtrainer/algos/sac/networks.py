"""SAC's value networks, and what they say of a minibatch.

With V (Haarnoja et al. 2018a) there are the Q networks ``q1`` and ``q2``, V as ``critic`` and its slow copy ``target``;
without (2018b) there are ``q1``, ``q2`` and a slow copy of each, ``q1_target`` and ``q2_target``. With continuous
actions a Q network sees these, too.

Shape legend: V reward signals, b rows of a batch, C continuous actions, K discrete branches, P numbers that a Q network
gives per signal: 1 without discrete actions, else one for each of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn

from trajtrainer.nn.body import NetworkBody
from trajtrainer.nn.critic import ValueNetwork
from trajtrainer.nn.distribution import ActionDistribution
from trajtrainer.nn.fast.adam import whole
from trajtrainer.nn.minibatch import Minibatch

FOLLOWS = {"target": "critic", "q1_target": "q1", "q2_target": "q2"}
"""Slow copy -> the network that it follows."""

# What ``ObservationEncoder`` gives: the encoding, and what each sensor of fixed size became.
Encoded = tuple[Tensor, list[Tensor]]


class Decision(NamedTuple):
    """What the policy does in b states.

    Attributes:
        encoded: the actor's encoding of the observations.
        policy: pi(.|s).
        action: a ~ pi(.|s), the continuous ones [b, C]; None without continuous actions.
        continuous_entropy: ``-ln pi(a|s)``, summed over the dimensions [b]; None without continuous actions.
        discrete_entropy: ``-sum of p ln p`` of each branch [b, K]; None without discrete actions.
    """

    encoded: Encoded
    policy: ActionDistribution
    action: Tensor | None
    continuous_entropy: Tensor | None
    discrete_entropy: Tensor | None


class Estimates(NamedTuple):
    """What the value networks say.

    Attributes:
        value: V(s) [V, b]; None without V.
        q: Q1 and Q2 of the batch's actions [2, V, b, P].
        sampled_q: Q1 and Q2 of the sampled actions [2, V, b, P], with gradients to the actions but not to the
            networks; with V, Q2's have none. None where the policy has not decided.
        following: by the slow copies, without gradient: V(s') [V, b], or without V what Q1 and Q2 say of the actions
            sampled in s' [2, V, b, P].
    """

    value: Tensor | None
    q: Tensor
    sampled_q: Tensor | None
    following: Tensor


class Critics:
    """Any value networks, one call after the other. Each encodes observations once, whatever the actions.

    Attributes:
        parameters: what an optimizer trains.
        pieces: the parameters of ``q1``, ``q2`` and ``critic``, one network after the other, as parts of these.
    """

    def __init__(self, networks: Mapping[str, ValueNetwork]) -> None:
        """Take the networks by their names, on their device."""
        self._q = networks["q1"], networks["q2"]
        self._has_actions = self._q[0].body.action_size > 0
        self._critic = networks.get("critic")
        self._copies = [networks[name] for name in networks if name in FOLLOWS]
        for copy in self._copies:
            copy.requires_grad_(False)
        self.parameters = _parameters([networks[name] for name in networks if name not in FOLLOWS])
        self.pieces = [whole(parameter) for parameter in self.parameters]
        self._followers = _parameters(self._copies)
        self._followed = _parameters([networks[FOLLOWS[name]] for name in networks if name in FOLLOWS])

    def __call__(self, batch: Minibatch, now: Decision | None, after: Decision | None) -> Estimates:
        """Evaluate all networks.

        Args:
            batch: b rows.
            now: what the policy does there; None if nobody asks for values of it, which with V there always is.
            after: what it does in the next states; None with V.
        """
        length, memory = batch.sequence_length, batch.critic_memory
        value = None if self._critic is None else self._critic(batch.obs, memory, length)[0]
        q, sampled_q = [], []
        for number, network in enumerate(self._q):
            # ML-Agents keeps no memories of the Q networks: every sequence starts from an empty one.
            seen = network.body.encoder(batch.obs)
            actions = batch["continuous"] if self._has_actions else None
            q.append(_shaped(network.of_encoded(seen, None, length, actions)[0]))
            if now is None:
                continue
            if now.action is None:
                sampled_q.append(q[-1].detach())
                continue
            # The policy follows Q1 alone where there is V.
            action = now.action.detach() if number and self._critic is not None else now.action
            detached = seen[0].detach(), [part.detach() for part in seen[1]]
            with _frozen(network):
                sampled_q.append(_shaped(network.of_encoded(detached, None, length, action)[0]))
        with torch.no_grad():
            if self._critic is not None:
                memory = second_memory(self._critic.body, batch, memory)
                following = self._copies[0](batch.next_obs, memory, length)[0]
            else:
                assert after is not None
                each = [copy(batch.next_obs, None, length, after.action)[0] for copy in self._copies]
                following = torch.stack([_shaped(one) for one in each])
        return Estimates(value, torch.stack(q), torch.stack(sampled_q) if sampled_q else None, following)

    def follow(self, tau: float) -> None:
        """Move the slow copies by the fraction ``tau`` toward the networks that they follow."""
        with torch.no_grad():
            torch._foreach_lerp_(self._followers, self._followed, tau)


def second_memory(body: NetworkBody, batch: Minibatch, memory: Tensor | None) -> Tensor | None:
    """Return the memory before the sequences of next observations [Q, H]: ``memory`` one step later."""
    if memory is None:
        return None
    later: Tensor = body([sensor[:: batch.sequence_length] for sensor in batch.obs], None, memory)[1]
    return later


def _parameters(networks: Sequence[ValueNetwork]) -> list[Tensor]:
    return [parameter for network in networks for parameter in network.parameters()]


def _shaped(q: Tensor) -> Tensor:
    """[V, b, P], also where P is 1."""
    return q if q.dim() == 3 else q.unsqueeze(2)


@contextmanager
def _frozen(network: nn.Module) -> Iterator[None]:
    """Keep what is computed inside from having gradients to the network's parameters."""
    parameters = list(network.parameters())
    for parameter in parameters:
        parameter.requires_grad = False
    try:
        yield
    finally:
        for parameter in parameters:
            parameter.requires_grad = True
