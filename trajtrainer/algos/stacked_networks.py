"""Actor and critic of plain layers, perhaps with memories, evaluated together and differentiated without autograd.

Both bodies have the same shapes, so one batched matrix product per layer does for both. All parameters are parts of
one tensor and so are their gradients, which makes Adam one operation. Most of the time that autograd takes for networks
of the usual sizes is not arithmetic: an update of two 128x2 networks on 64 rows takes a third of the time this way.

Where arithmetic is what takes the time, autograd is no slower, and as it can differentiate the two networks side by
side on two cores, faster.

Letters: b rows, S sequences, L their length, E hidden units (of the layers or the memory), H memory size, C continuous
actions, D sum of branch sizes, V reward signals.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from trajtrainer.algos import stacked_bodies
from trajtrainer.algos.adam_moments import Piece
from trajtrainer.algos.stacked_bodies import BodyRun
from trajtrainer.algos.stacked_parameters import Linear, homes, parts
from trajtrainer.nn.actor import Actor
from trajtrainer.nn.critic import AnyCritic, Critic
from trajtrainer.steps import FloatArray

# Multiplications of one body for a minibatch up to which this is the faster way: measured with 128 to 512 units, one to
# three layers, 64 to 2,048 rows, with and without memories.
_FEW_MULTIPLICATIONS = 20_000_000


def can_stack(actor: Actor, critic: AnyCritic) -> bool:
    """Whether these are two networks of plain layers on vectors, on the CPU: their bodies have the same shapes then."""
    are_plain = isinstance(critic, Critic) and actor.body.is_plain and critic.body.is_plain
    return are_plain and next(actor.parameters()).device.type == "cpu"


def stacking_pays(actor: Actor, batch_size: int) -> bool:
    """Whether minibatches of so many rows are small enough for it."""
    weights = [weight for weight in actor.body.parameters() if weight.dim() == 2]
    return batch_size * sum(weight.numel() for weight in weights) < _FEW_MULTIPLICATIONS


@dataclass(frozen=True, slots=True)
class Outputs:
    """What the networks say of b rows, and what their gradient needs.

    Attributes:
        policy: [b, C + D], means of the continuous actions and logits of the branches.
        values: [b, V].
        body: of both networks.
        sequence_length: L.
    """

    policy: FloatArray
    values: FloatArray
    body: BodyRun
    sequence_length: int


class StackedNetworks:
    """See ``can_stack``. The modules go on working: their parameters become parts of ``flat``.

    Attributes:
        flat: every parameter. Its ``grad`` is always there and is overwritten by ``backward``.
        pieces: of it, in the order of the actor's and then the critic's ``parameters()``.
        log_sigma: of the policy [1, C], as it is at any time.
    """

    def __init__(self, actor: Actor, critic: Critic) -> None:
        """Moves the parameters into one tensor."""
        self._actor = actor
        parameters = [*actor.parameters(), *critic.parameters()]
        self.flat = parameters[0].detach().new_zeros(sum(parameter.numel() for parameter in parameters))
        self.flat.grad = torch.zeros_like(self.flat)
        self._weights = parts(self.flat, actor, critic)
        self._gradients = parts(self.flat.grad, actor, critic)
        for parameter, part in homes(self._weights, actor, critic):
            part.copy_(parameter.detach())
            parameter.data = part
        self.pieces = [Piece(self.flat, _Range(int(one.storage_offset()), one.shape)) for one in parameters]
        self.log_sigma: FloatArray = self._weights.log_sigma.numpy()
        self._policy_transposed, self._values_transposed = self._weights.policy[0].t(), self._weights.values[0].t()

    @torch.no_grad()
    def encoded(self, obs: Sequence[Tensor]) -> Tensor:
        """What both take of observations, per sensor [N, *O], since their normalisers are the same: [N, in]."""
        return self._actor.body.encoder(obs)[0]  # type: ignore[no-any-return]

    @torch.no_grad()
    def __call__(
        self, encoded: Tensor, memories: tuple[Tensor | None, Tensor | None] = (None, None), length: int = 1
    ) -> Outputs:
        """Both networks for b rows.

        Args:
            encoded: as ``encoded`` gives it [b, in], in the order of their sequences.
            memories: the actor's and the critic's before each sequence [S, H]; None for empty ones.
            length: L.
        """
        x = _by_step(encoded, length)
        remembered = self._remembered(memories, len(x) // length)
        body = stacked_bodies.forward(self._weights.bodies, x.expand(2, -1, -1), remembered)
        policy = torch.addmm(self._weights.policy[1], body.encoding[0], self._policy_transposed)
        values = torch.addmm(self._weights.values[1], body.encoding[1], self._values_transposed)
        return Outputs(_by_sequence(policy, length).numpy(), _by_sequence(values, length).numpy(), body, length)

    @torch.no_grad()
    def backward(self, outputs: Outputs, by_policy: FloatArray, by_values: FloatArray, by_sigma: FloatArray) -> None:
        """Writes the gradient of a loss into ``flat.grad``, given its gradient with respect to what the networks say:
        the policy [b, C + D], the values [b, V], log sigma [1, C]."""
        weights, gradients, body, length = self._weights, self._gradients, outputs.body, outputs.sequence_length
        policy, values = (_by_step(torch.from_numpy(each), length) for each in (by_policy, by_values))
        gradients.log_sigma.copy_(torch.from_numpy(by_sigma))
        _linear_gradient(policy, body.encoding[0], gradients.policy)
        _linear_gradient(values, body.encoding[1], gradients.values)
        through = torch.empty_like(body.encoding)
        torch.mm(policy, weights.policy[0], out=through[0])
        torch.mm(values, weights.values[0], out=through[1])
        stacked_bodies.backward(weights.bodies, gradients.bodies, body, through)

    def _remembered(self, memories: tuple[Tensor | None, Tensor | None], num_sequences: int) -> FloatArray | None:
        if not self._actor.memory_size:
            return None
        empty = np.zeros((num_sequences, self._actor.memory_size), np.float32)
        return np.stack([empty if memory is None else memory.numpy() for memory in memories])


class _Range:
    """The part of a flat tensor that is a parameter of this shape."""

    def __init__(self, start: int, shape: torch.Size) -> None:
        self._part = slice(start, start + shape.numel())
        self._shape = shape

    def __call__(self, flat: Tensor) -> Tensor:
        return flat[self._part].view(self._shape)


def _linear_gradient(gradient: Tensor, inputs: Tensor, out: Linear) -> None:
    """Of weight and bias of a linear layer, from that of its outputs."""
    torch.mm(gradient.t(), inputs, out=out[0])
    torch.sum(gradient, 0, out=out[1])


def _by_step(rows: Tensor, length: int) -> Tensor:
    """Rows [b, ...] in the order of their sequences of L steps, put in the order of the steps."""
    return _exchanged(rows, -1, length)


def _by_sequence(rows: Tensor, length: int) -> Tensor:
    """The other way round."""
    return _exchanged(rows, length, -1)


def _exchanged(rows: Tensor, outer: int, inner: int) -> Tensor:
    if 1 in (outer, inner):
        return rows
    return rows.reshape(outer, inner, *rows.shape[1:]).transpose(0, 1).flatten(0, 1)
