"""Actor and critic that are MLPs, possibly with memories, evaluated together and differentiated without autograd.

Both bodies have the same shapes, so one batched matrix product per layer evaluates both. All parameters are parts of
one tensor, and so are their gradients, which makes Adam one operation. With networks of the usual sizes, most of
autograd's time is not arithmetic: an update of two 128x2 networks with 64 rows takes a third of the time this way.

Shapes: b rows, S sequences, L their length, E hidden units (of the layers or the memory), H memory size, C continuous
actions, D sum of branch sizes, V reward signals.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from trajtrainer.core.steps import FloatArray
from trajtrainer.learning.nn.actor import Actor
from trajtrainer.learning.nn.conditioning import Mlp, affine, linears
from trajtrainer.learning.nn.critic import ValueNetwork
from trajtrainer.learning.nn.fast import batched_mlps
from trajtrainer.learning.nn.fast.adam import ParameterView
from trajtrainer.learning.nn.fast.batched_mlps import BodyParts, BodyRun, Linear, MemoryParts, affine_gradient


@dataclass(frozen=True, slots=True)
class BatchedParameters:
    """All parameters, or all gradients.

    Attributes:
        bodies: n = 2, the actor's first.
        policy: has C + D outputs.
        values: has V outputs.
        log_sigma: [1, C]; C may be 0.
        homes: each parameter with its part, which is contiguous.
    """

    bodies: BodyParts
    policy: Linear
    values: Linear
    log_sigma: Tensor
    homes: list[tuple[Tensor, Tensor]]


def parts(flat: Tensor, actor: Actor, critic: ValueNetwork) -> BatchedParameters:
    """Divide ``flat``, which has as many numbers as the networks' parameters, into views."""
    homes: list[tuple[Tensor, Tensor]] = []
    rest = flat

    def place(parameters: Sequence[Tensor], *shape: int) -> Tensor:
        """Assign the next parts to the parameters, and return these parts as one view of ``shape``."""
        nonlocal rest
        together, rest = rest.tensor_split((sum(parameter.numel() for parameter in parameters),))
        found = together.split_with_sizes([parameter.numel() for parameter in parameters])
        homes.extend((each, part.view(each.shape)) for each, part in zip(parameters, found, strict=True))
        return together.view(shape)

    def stacked(pair: Sequence[Tensor]) -> Tensor:
        """Place weights as [2, out, in], biases as [2, 1, out]."""
        size = pair[0].shape
        return place(pair, 2, *((1,) if len(size) == 1 else ()), *size)

    def joined(side: Sequence[nn.Linear]) -> Linear:
        """Place layers of one network side by side as one layer."""
        weights, biases = [linear.weight for linear in side], [linear.bias for linear in side]
        return Linear.of(place(weights, -1, side[0].in_features), place(biases, -1))

    layers = [
        Linear.of(stacked([one.weight, other.weight]), stacked([one.bias, other.bias]))
        for one, other in zip(mlp_of(actor).linears, mlp_of(critic).linears, strict=True)
    ]
    memory, head = None, actor.head
    if actor.body.memory is not None and critic.body.memory is not None:
        lstms = actor.body.memory.lstm.parameters(), critic.body.memory.lstm.parameters()
        memory = MemoryParts(*(stacked(pair) for pair in zip(*lstms, strict=True)))  # in torch's documented order
    policy = joined([linear for linear in (head.mu, head.discrete) if linear is not None])
    values = joined(linears(critic.heads.linears.values()))
    log_sigma = place([] if head.log_sigma is None else [head.log_sigma], 1, head.continuous_size)
    return BatchedParameters(BodyParts(layers, memory, mlp_of(actor).activation), policy, values, log_sigma, homes)


@dataclass(frozen=True, slots=True)
class Outputs:
    """Outputs of the networks for b rows, and numbers that their gradient needs.

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


class BatchedNetworks:
    """Evaluates two networks on vectors at once. The modules remain usable: their parameters become parts of ``flat``.

    Twin of ``trajtrainer.learning.nn.actor.Actor`` and ``trajtrainer.learning.nn.critic.ValueNetwork``.

    Attributes:
        flat: all parameters. Its ``grad`` always exists and is overwritten by ``backward``.
        pieces: its parts in the order of the actor's and then the critic's ``parameters()``.
        log_sigma: of the policy [1, C], always current.
    """

    def __init__(self, actor: Actor, critic: ValueNetwork) -> None:
        self._actor = actor
        parameters = [*actor.parameters(), *critic.parameters()]
        self.flat = parameters[0].detach().new_zeros(sum(parameter.numel() for parameter in parameters))
        self.flat.grad = torch.zeros_like(self.flat)
        self._weights = parts(self.flat, actor, critic)
        self._gradients = parts(self.flat.grad, actor, critic)
        for parameter, part in self._weights.homes:
            part.copy_(parameter.detach())
            parameter.data = part
        self.pieces = [ParameterView(self.flat, _Range(int(one.storage_offset()), one.shape)) for one in parameters]
        self.log_sigma: FloatArray = self._weights.log_sigma.numpy()

    @torch.no_grad()
    def encoded(self, obs: Sequence[Tensor]) -> Tensor:
        """Encode observations, per sensor [N, *O], as [N, in] for the layers of both. Their normalizers agree."""
        return self._actor.body.encoder(obs)[0]  # type: ignore[no-any-return]

    def __call__(
        self, encoded: Tensor, memories: tuple[Tensor | None, Tensor | None] = (None, None), length: int = 1
    ) -> Outputs:
        """Evaluate both networks for b rows.

        Args:
            encoded: [b, in], in the order of their sequences.
            memories: the actor's and the critic's before each sequence [S, H]; None for empty ones.
            length: L.
        """
        x = _by_step(encoded, length)
        joined = None
        if self._actor.memory_size:
            empty = np.zeros((len(x) // length, self._actor.memory_size), np.float32)
            joined = np.stack([empty if memory is None else memory.numpy() for memory in memories])
        body = batched_mlps.forward(self._weights.bodies, x.expand(2, -1, -1), joined)
        policy = affine(body.encoding[0], self._weights.policy.layer)
        values = affine(body.encoding[1], self._weights.values.layer)
        return Outputs(_by_sequence(policy, length).numpy(), _by_sequence(values, length).numpy(), body, length)

    def backward(
        self, outputs: Outputs, grad_policy: FloatArray, grad_values: FloatArray, grad_log_sigma: FloatArray
    ) -> None:
        """Write the gradient of a loss into ``flat.grad``, given the one with respect to the outputs.

        Args:
            outputs: of the networks.
            grad_policy: [b, C + D].
            grad_values: [b, V].
            grad_log_sigma: [1, C].
        """
        weights, gradients, body, length = self._weights, self._gradients, outputs.body, outputs.sequence_length
        gradients.log_sigma.copy_(torch.from_numpy(grad_log_sigma))
        grad_encoding = torch.empty_like(body.encoding)
        heads = (grad_policy, weights.policy, gradients.policy), (grad_values, weights.values, gradients.values)
        for network, (grad_rows, head, out) in enumerate(heads):
            grad = _by_step(torch.from_numpy(grad_rows), length)
            affine_gradient(grad, body.encoding[network], out)
            torch.mm(grad, head.weight, out=grad_encoding[network])
        batched_mlps.backward(weights.bodies, gradients.bodies, body, grad_encoding)


class _Range:
    """Selects the parameter of this shape that starts at ``start`` in a flat tensor."""

    def __init__(self, start: int, shape: torch.Size) -> None:
        self._part = slice(start, start + shape.numel())
        self._shape = shape

    def __call__(self, flat: Tensor) -> Tensor:
        return flat[self._part].view(self._shape)


def _by_step(rows: Tensor, length: int) -> Tensor:
    """Reorder rows [b, ...] from the order of their sequences of L steps to the order of the steps."""
    return _exchanged(rows, -1, length)


def _by_sequence(rows: Tensor, length: int) -> Tensor:
    """Undo ``_by_step``."""
    return _exchanged(rows, length, -1)


def _exchanged(rows: Tensor, outer: int, inner: int) -> Tensor:
    if 1 in (outer, inner):
        return rows
    return rows.reshape(outer, inner, *rows.shape[1:]).transpose(0, 1).flatten(0, 1)


def mlp_of(network: Actor | ValueNetwork) -> Mlp:
    """The layers of a network whose body is an ``Mlp``."""
    layers = network.body.layers
    assert isinstance(layers, Mlp)
    return layers
