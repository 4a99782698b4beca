"""XQC's critics, whose outputs are distributions over returns.

There are two critics, ``q1`` and ``q2``, and a target network for each, ``q1_target`` and ``q2_target``.

Shape legend: V reward signals, b rows of a minibatch, P distributions from a critic per signal: 1 without discrete
actions, else one for each discrete action; Z atoms.
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
"""Maps each target network to the critic that it follows."""


class CategoricalCritics:
    """Evaluates the critics and their target networks.

    Attributes:
        parameters: the trainable parameters of ``q1``, followed by those of ``q2``.
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
        """Evaluate (s, a) and (s', a') in one pass, so that both are normalized with the same statistics.

        Returns:
            The critics' logits for (s, a), and the target networks' probabilities for (s', a') without gradient,
            [2, V, b, P, Z] each.
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
        """Return the expected returns [2, V, b, P] of an action, using running statistics.

        Gradients flow to the action.
        """
        length = batch.sequence_length
        logits = torch.stack([_logits(critic, batch.obs, length, action) for critic in self._critics])
        return logits.softmax(-1) @ atoms_like(logits)

    def project(self) -> None:
        """Normalize the incoming weights of every unit to length 1."""
        project(self._projected)

    def follow(self, tau: float) -> None:
        """Move the target networks by the fraction ``tau`` toward the critics, including running statistics."""
        with torch.no_grad():
            torch._foreach_lerp_(self._followers, self._followed, tau)


def _logits(
    critic: ValueNetwork, obs: Sequence[Tensor], length: int, actions: Tensor | None, rows: slice = slice(None)
) -> Tensor:
    """Return the logits of one critic [V, b, P, Z]. As in SAC's Q networks, sequences start with an empty memory."""
    encoding, _ = critic.body(obs, actions, None, length)
    logits: Tensor = critic.heads(encoding[rows]).unflatten(-1, (-1, ATOMS))
    return logits
