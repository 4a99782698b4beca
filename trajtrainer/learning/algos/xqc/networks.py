"""XQC's critics, whose outputs are distributions over returns.

There are two, ``q1`` and ``q2``, and a slow copy of each, ``q1_target`` and ``q2_target``.

Shape legend: V reward signals, b rows of a batch, P distributions that a critic gives per signal: 1 without discrete
actions, else one for each of them; Z atoms.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from trajtrainer.learning.algos.xqc.losses import ATOMS, atoms_like
from trajtrainer.learning.nn.critic import ValueNetwork
from trajtrainer.learning.nn.minibatch import Minibatch
from trajtrainer.learning.nn.normalization import batch_statistics, project, projected_weights

FOLLOWS = {"q1_target": "q1", "q2_target": "q2"}
"""Slow copy -> the critic that it follows."""


class CategoricalCritics:
    """Evaluates the critics and their slow copies.

    Attributes:
        parameters: of ``q1`` and ``q2``, one critic after the other.
    """

    def __init__(self, networks: Mapping[str, ValueNetwork]) -> None:
        self._critics = [networks[name] for name in FOLLOWS.values()]
        self._copies = [networks[name] for name in FOLLOWS]
        trained = [parameter for critic in self._critics for parameter in critic.parameters()]
        self.parameters = [parameter for parameter in trained if parameter.requires_grad]
        self._projected = [w for critic in self._critics for w in projected_weights(critic.body.layers, critic.heads)]
        self._followers = [tensor for copy in self._copies for tensor in copy.state_dict().values()]
        self._followed = [tensor for critic in self._critics for tensor in critic.state_dict().values()]
        for copy in self._copies:
            copy.requires_grad_(False)

    def joint(self, batch: Minibatch, next_action: Tensor | None) -> tuple[Tensor, Tensor]:
        """Evaluate (s, a) and (s', a') in one pass, so that both are normalized by the same statistics.

        Returns:
            The critics' logits of (s, a), and their copies' probabilities of (s', a'), without gradient: [2, V, b, P,
            Z] each.
        """
        size, length, mask = len(batch), batch.sequence_length, batch.loss_mask
        obs = [torch.cat(pair) for pair in zip(batch.obs, batch.next_obs, strict=True)]
        actions = None if next_action is None else torch.cat((batch["continuous"], next_action))
        mask = None if mask is None else torch.cat((mask, mask))
        with torch.no_grad(), batch_statistics(*self._copies, mask=mask, remember=False):
            following = torch.stack([_logits(copy, obs, length, actions, slice(size, None)) for copy in self._copies])
        with batch_statistics(*self._critics, mask=mask):
            logits = torch.stack([_logits(critic, obs, length, actions, slice(size)) for critic in self._critics])
        return logits, following.softmax(-1)

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


def _logits(
    critic: ValueNetwork, obs: Sequence[Tensor], length: int, actions: Tensor | None, rows: slice = slice(None)
) -> Tensor:
    """Logits of these rows [V, b, P, Z]. Every sequence starts with an empty memory, as with SAC's Q networks."""
    encoding, _ = critic.body(obs, actions, None, length)
    logits: Tensor = critic.heads(encoding[rows]).unflatten(-1, (-1, ATOMS))
    return logits
