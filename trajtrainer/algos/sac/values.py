"""SAC's value networks, each evaluated on its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

from trajtrainer.algos.minibatch import Minibatch
from trajtrainer.fast.adam import Piece, whole
from trajtrainer.nn.body import NetworkBody
from trajtrainer.nn.critic import Critic

# What ``ObservationEncoder`` gives: the encoding, and what each sensor of fixed size became.
Encoded = tuple[Tensor, list[Tensor]]


@dataclass(frozen=True, slots=True)
class ValueNetworks:
    """V, its slowly following copy, and two Q networks, which see the continuous actions too."""

    critic: Critic
    target: Critic
    q1: Critic
    q2: Critic

    def copy_normalization(self, source: NetworkBody) -> None:
        """Take over the observations' normalisers of ``source`` (the actor's body) in all four."""
        for network in (self.critic, self.target, self.q1, self.q2):
            network.body.copy_normalization(source)


class Estimates(NamedTuple):
    """Estimates of the value networks for a batch. Shapes as in ``sac_losses``.

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


class Evaluation(Protocol):
    """A way to evaluate and own the value networks' parameters."""

    def __call__(self, batch: Minibatch, encoded: Encoded, sampled: Tensor | None) -> Estimates:
        """Return estimates for a batch.

        Args:
            batch: b rows.
            encoded: the actor's encoding of its observations.
            sampled: the continuous actions that the policy would take now [b, C]; None without continuous actions.
        """

    @property
    def parameters(self) -> Sequence[Tensor]:
        """The parameters for an optimizer."""

    @property
    def pieces(self) -> Sequence[Piece]:
        """The parameters of ``q1``, ``q2`` and ``critic``, one module after the other, as parts of ``parameters``."""

    def follow(self, tau: float) -> None:
        """Move the target network by the fraction ``tau`` towards V."""


class SeparateEvaluation:
    """Any network, one call after the other. Observations are encoded once per network, whatever the actions."""

    def __init__(self, networks: ValueNetworks) -> None:
        self._networks = networks
        self._q = (networks.q1, networks.q2)
        trained = (networks.q1, networks.q2, networks.critic)
        self.parameters: list[Tensor] = [parameter for network in trained for parameter in network.parameters()]
        self.pieces = [whole(parameter) for parameter in self.parameters]
        self._followers: list[Tensor] = list(networks.target.parameters())
        self._followed: list[Tensor] = list(networks.critic.parameters())
        networks.target.requires_grad_(False)

    def __call__(self, batch: Minibatch, encoded: Encoded, sampled: Tensor | None) -> Estimates:  # noqa: ARG002
        """Return estimates for a batch."""
        length = batch.sequence_length
        value, _ = self._networks.critic(batch.obs, batch.critic_memory, length)
        stored, of_sampled = [], []
        for network in self._q:
            seen = network.body.encoder(batch.obs)
            # ML-Agents keeps no memories of the Q networks: every sequence starts from an empty one.
            actions = None if sampled is None else batch["continuous"]
            stored.append(_shaped(network.of_encoded(seen, None, length, actions)[0]))
            if sampled is None:
                of_sampled.append(stored[-1].detach())
                continue
            with _frozen(network):
                wanted = sampled if network is self._q[0] else sampled.detach()
                of_sampled.append(_shaped(network.of_encoded(_detached(seen), None, length, wanted)[0]))
        with torch.no_grad():
            next_value, _ = self._networks.target(batch.next_obs, self._next_memory(batch), length)
        return Estimates(value, torch.stack(stored), torch.stack(of_sampled), next_value)

    def follow(self, tau: float) -> None:
        """Move the target network by the fraction ``tau`` towards V."""
        with torch.no_grad():
            torch._foreach_lerp_(self._followers, self._followed, tau)

    def _next_memory(self, batch: Minibatch) -> Tensor | None:
        """Return the memory before the sequences of next observations: that of V one step later."""
        if batch.critic_memory is None:
            return None
        first = [sensor[:: batch.sequence_length] for sensor in batch.obs]
        _, memory = self._networks.critic(first, batch.critic_memory)
        return memory  # type: ignore[no-any-return]


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
