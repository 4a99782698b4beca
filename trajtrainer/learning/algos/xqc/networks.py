"""XQC's critics, whose outputs are distributions over returns.

There are two, ``q1`` and ``q2``, and a slow copy of each, ``q1_target`` and ``q2_target``.

Shape legend: V reward signals, b rows of a batch, P distributions that a critic gives per signal: 1 without discrete
actions, else one for each of them; Z atoms.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from trajtrainer.learning.algos.xqc.losses import ATOMS, atoms_like
from trajtrainer.learning.nn.critic import ValueNetwork
from trajtrainer.learning.nn.fast.adam import whole
from trajtrainer.learning.nn.minibatch import Minibatch
from trajtrainer.learning.nn.normalization import batch_statistics, project, projected_weights

FOLLOWS = {"q1_target": "q1", "q2_target": "q2"}
"""Slow copy -> the critic that it follows."""


class OneCritic(NamedTuple):
    """What one critic says of (s, a).

    Attributes:
        logits: without gradient [V, b, P, Z].
        backward: takes the gradient with respect to the logits and writes that of the critic's parameters.
    """

    logits: Tensor
    backward: Callable[[Tensor], None]


class Joint(NamedTuple):
    """Outputs of one pass: of the critics for (s, a), and of their slow copies for (s', a').

    Attributes:
        following: the copies' probabilities of (s', a'), without gradient [2, V, b, P, Z].
        critics: one after the other. Call ``backward`` of each before the next is evaluated.
    """

    following: Tensor
    critics: Iterator[OneCritic]


class CategoricalCritics:
    """Evaluates any critics, one call after the other.

    Attributes:
        parameters: the leaves that an optimizer trains.
        pieces: the parameters of ``q1`` and ``q2``, one critic after the other.
    """

    def __init__(self, networks: Mapping[str, ValueNetwork]) -> None:
        self._critics = [networks[name] for name in FOLLOWS.values()]
        self._copies = [networks[name] for name in FOLLOWS]
        self.parameters = [parameter for critic in self._critics for parameter in critic.parameters()]
        self.pieces = [whole(parameter) for parameter in self.parameters]
        self._projected = [w for critic in self._critics for w in projected_weights(critic.body.layers, critic.heads)]
        self._followers = [tensor for copy in self._copies for tensor in copy.state_dict().values()]
        self._followed = [tensor for critic in self._critics for tensor in critic.state_dict().values()]
        for copy in self._copies:
            copy.requires_grad_(False)

    def joint(self, batch: Minibatch, next_action: Tensor | None) -> Joint:
        """Evaluate (s, a) and (s', a') in one pass, so that both are normalized by the same statistics."""
        size, length, mask = len(batch), batch.sequence_length, batch.loss_mask
        obs = [torch.cat(pair) for pair in zip(batch.obs, batch.next_obs, strict=True)]
        actions = None if next_action is None else torch.cat((batch["continuous"], next_action))
        mask = None if mask is None else torch.cat((mask, mask))
        with torch.no_grad(), batch_statistics(*self._copies, mask=mask, remember=False):
            following = torch.stack([_logits(copy, obs, length, actions)[:, size:] for copy in self._copies])

        def evaluated(critic: ValueNetwork) -> OneCritic:
            with torch.enable_grad(), batch_statistics(critic, mask=mask):
                logits = _logits(critic, obs, length, actions)[:, :size]
            return OneCritic(logits.detach(), partial(_backward, critic, logits))

        return Joint(following.softmax(-1), map(evaluated, self._critics))

    def means(self, batch: Minibatch, action: Tensor | None) -> Tensor:
        """Expected returns of an action by running statistics [2, V, b, P], with gradients to the action."""
        length = batch.sequence_length
        logits = torch.stack([_logits(critic, batch.obs, length, action) for critic in self._critics])
        return logits.softmax(-1) @ atoms_like(logits)

    def project(self) -> None:
        """Bring the incoming weights of every unit to the length 1."""
        project(self._projected)

    def follow(self, tau: float) -> None:
        """Move the slow copies by the fraction ``tau`` toward the critics, running statistics included."""
        with torch.no_grad():
            torch._foreach_lerp_(self._followers, self._followed, tau)


def _backward(critic: ValueNetwork, logits: Tensor, gradient: Tensor) -> None:
    trained = [parameter for parameter in critic.parameters() if parameter.requires_grad]
    found = torch.autograd.grad(logits, trained, gradient, allow_unused=True)
    for parameter, one in zip(trained, found, strict=True):
        parameter.grad = one


def _logits(critic: ValueNetwork, obs: Sequence[Tensor], length: int, actions: Tensor | None) -> Tensor:
    """[V, b, P, Z]. Every sequence starts with an empty memory, as with SAC's Q networks."""
    out, _ = critic(obs, None, length, actions)
    logits: Tensor = out.unflatten(-1, (-1, ATOMS))
    return logits
