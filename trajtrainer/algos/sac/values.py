"""SAC's value networks, each evaluated on its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

from trajtrainer.nn.body import NetworkBody
from trajtrainer.nn.critic import ValueNetwork
from trajtrainer.nn.fast.adam import Piece, whole
from trajtrainer.nn.minibatch import Minibatch

# What ``ObservationEncoder`` gives: the encoding, and what each sensor of fixed size became.
Encoded = tuple[Tensor, list[Tensor]]


@dataclass(frozen=True, slots=True)
class ValueNetworks:
    """Hold two Q networks, which see the continuous actions too, V and its slow copy (Haarnoja et al. 2018a)."""

    q1: ValueNetwork
    q2: ValueNetwork
    critic: ValueNetwork
    target: ValueNetwork


@dataclass(frozen=True, slots=True)
class TwinNetworks:
    """Hold two Q networks and a slowly following copy of each (Haarnoja et al. 2018b): ``value_network: false``."""

    q1: ValueNetwork
    q2: ValueNetwork
    q1_target: ValueNetwork
    q2_target: ValueNetwork


Networks = ValueNetworks | TwinNetworks


def by_name(networks: Networks) -> dict[str, ValueNetwork]:
    """Return all networks by their names in the checkpoint."""
    return {one.name: getattr(networks, one.name) for one in fields(networks)}


class Considered(NamedTuple):
    """Hold observations and what the policy would do.

    Attributes:
        encoded: the actor's encoding of b observations.
        sampled: the continuous actions that the policy would take [b, C]; None without continuous actions.
    """

    encoded: Encoded
    sampled: Tensor | None


class Estimates(NamedTuple):
    """Hold estimates of V and the Q networks for a batch. Shapes as in ``sac_losses``.

    Attributes:
        value: V(s) [V, b].
        stored_q: of the actions in the batch [2, V, b, P].
        sampled_q: of the sampled actions [2, V, b, P]. The first network's has gradients to the action, but not to the
            network; the second one's has none.
        next_value: of the target network [V, b], without gradient.
    """

    value: Tensor
    stored_q: Tensor
    sampled_q: Tensor
    next_value: Tensor


class TwinEstimates(NamedTuple):
    """Hold estimates of the Q networks and their copies for a batch. Shapes as in ``sac_losses``.

    Attributes:
        stored_q: of the actions in the batch [2, V, b, P].
        sampled_q: of the sampled actions [2, V, b, P], with gradients to the actions, but not to the networks; None if
            nobody asked for them.
        next_q: of the copies, of the actions sampled for what followed [2, V, b, P], without gradient.
    """

    stored_q: Tensor
    sampled_q: Tensor | None
    next_q: Tensor


class Owner(Protocol):
    """Own the parameters of the networks, stacked or not."""

    @property
    def parameters(self) -> Sequence[Tensor]:
        """The parameters for an optimizer."""

    @property
    def pieces(self) -> Sequence[Piece]:
        """The parameters of ``q1``, ``q2`` and ``critic``, one module after the other, as parts of ``parameters``."""

    def follow(self, tau: float) -> None:
        """Move the copies by the fraction ``tau`` towards the networks that they follow."""


class Evaluation(Owner, Protocol):
    """Evaluate ``ValueNetworks``, stacked or not."""

    def __call__(self, batch: Minibatch, now: Considered) -> Estimates:
        """Return estimates for a batch whose observations are those of ``now``."""


class TwinEvaluation(Owner, Protocol):
    """Evaluate ``TwinNetworks``, stacked or not."""

    def __call__(self, batch: Minibatch, now: Considered | None, after: Considered) -> TwinEstimates:
        """Return estimates for a batch.

        Args:
            batch: b rows.
            now: of its observations; None if values of sampled actions are not needed.
            after: of what followed.
        """


class _Separate:
    """Any networks, one call after the other. Observations are encoded once per network, whatever the actions."""

    def __init__(
        self,
        q: tuple[ValueNetwork, ValueNetwork],
        others: Sequence[ValueNetwork],
        followed: Sequence[ValueNetwork],
        copies: Sequence[ValueNetwork],
    ) -> None:
        """Take the networks, those that are trained beside ``q``, and which of them the copies follow."""
        self._q = q
        self._has_actions = q[0].body.action_size > 0
        self.parameters: list[Tensor] = _parameters([*q, *others])
        self.pieces = [whole(parameter) for parameter in self.parameters]
        self._followers, self._followed = _parameters(copies), _parameters(followed)
        for copy in copies:
            copy.requires_grad_(False)

    def follow(self, tau: float) -> None:
        """Move the copies by the fraction ``tau`` towards the networks that they follow."""
        with torch.no_grad():
            torch._foreach_lerp_(self._followers, self._followed, tau)

    def _q_values(self, batch: Minibatch, sampled: Sequence[Tensor | None] | None) -> tuple[Tensor, Tensor | None]:
        """Return values of the batch's actions, and of each network's sampled ones, if any.

        ML-Agents keeps no memories of the Q networks: every sequence starts from an empty one.
        """
        length = batch.sequence_length
        stored, of_sampled = [], []
        for number, network in enumerate(self._q):
            seen = network.body.encoder(batch.obs)
            actions = batch["continuous"] if self._has_actions else None
            stored.append(_shaped(network.of_encoded(seen, None, length, actions)[0]))
            if sampled is None:
                continue
            if not self._has_actions:
                of_sampled.append(stored[-1].detach())
                continue
            with _frozen(network):
                of_sampled.append(_shaped(network.of_encoded(_detached(seen), None, length, sampled[number])[0]))
        return torch.stack(stored), torch.stack(of_sampled) if of_sampled else None


class SeparateEvaluation(_Separate):
    """Evaluate any networks with V, one call after the other."""

    def __init__(self, networks: ValueNetworks) -> None:
        super().__init__((networks.q1, networks.q2), [networks.critic], [networks.critic], [networks.target])
        self._networks = networks

    def __call__(self, batch: Minibatch, now: Considered) -> Estimates:
        """Return estimates for a batch."""
        length, sampled = batch.sequence_length, now.sampled
        value, _ = self._networks.critic(batch.obs, batch.critic_memory, length)
        stored, of_sampled = self._q_values(batch, [sampled, None if sampled is None else sampled.detach()])
        assert of_sampled is not None
        with torch.no_grad():
            memory = second_memory(self._networks.critic.body, batch, batch.critic_memory)
            next_value, _ = self._networks.target(batch.next_obs, memory, length)
        return Estimates(value, stored, of_sampled, next_value)


class SeparateTwins(_Separate):
    """Evaluate any networks without V, one call after the other."""

    def __init__(self, networks: TwinNetworks) -> None:
        self._copies = (networks.q1_target, networks.q2_target)
        super().__init__((networks.q1, networks.q2), [], [networks.q1, networks.q2], self._copies)

    def __call__(self, batch: Minibatch, now: Considered | None, after: Considered) -> TwinEstimates:
        """Return estimates for a batch."""
        stored, of_sampled = self._q_values(batch, None if now is None else [now.sampled] * 2)
        with torch.no_grad():
            each = [copy(batch.next_obs, None, batch.sequence_length, after.sampled)[0] for copy in self._copies]
        return TwinEstimates(stored, of_sampled, torch.stack([_shaped(q) for q in each]))


def second_memory(body: NetworkBody, batch: Minibatch, memory: Tensor | None) -> Tensor | None:
    """Return the memory before the sequences of next observations [Q, H]: ``memory`` one step later."""
    if memory is None:
        return None
    later: Tensor = body([sensor[:: batch.sequence_length] for sensor in batch.obs], None, memory)[1]
    return later


def _parameters(networks: Sequence[ValueNetwork]) -> list[Tensor]:
    return [parameter for network in networks for parameter in network.parameters()]


def _shaped(q: Tensor) -> Tensor:
    """Return [V, b, P], also where P is 1."""
    return q if q.dim() == 3 else q.unsqueeze(2)


def _detached(encoded: Encoded) -> Encoded:
    return encoded[0].detach(), [part.detach() for part in encoded[1]]


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
