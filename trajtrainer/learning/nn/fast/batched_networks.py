"""An actor and a critic that are MLPs, optionally with memories, evaluated together and differentiated by hand.

Both bodies have the same shapes, so one batched matrix product per layer evaluates both. All parameters are views of
one tensor, and so are their gradients, so Adam needs only one operation. With networks of the usual sizes, autograd
spends most of its time on overhead: without it, an update of two 128x2 networks with 64 rows takes a third of the time.

Shapes: n networks, b rows, S sequences, L steps per sequence, E hidden units (of the layers or the memory), U units of
the memory, H memory size, C continuous actions, D sum of branch sizes, V reward signals.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from trajtrainer.core.steps import FloatArray
from trajtrainer.learning.nn.actor import Actor
from trajtrainer.learning.nn.conditioning import Layer, Mlp, activated_layers, affine, linears
from trajtrainer.learning.nn.critic import ValueNetwork
from trajtrainer.learning.nn.fast import lstm
from trajtrainer.learning.nn.fast.lstm import LstmStep
from trajtrainer.settings.network import Activation


class Linear(NamedTuple):
    """A linear layer with weight [out, in] and bias [out], or n networks' layers with [n, out, in] and [n, 1, out].

    Attributes:
        layer: the same weight and bias in the format of ``affine``.
    """

    weight: Tensor
    bias: Tensor
    layer: Layer

    @classmethod
    def of(cls, weight: Tensor, bias: Tensor) -> Linear:
        return cls(weight, bias, (weight.transpose(-2, -1), bias))


class MemoryParts(NamedTuple):
    """Parameters of torch's LSTM for n networks.

    These are weight_ih [n, 4U, E], weight_hh [n, 4U, U], and both biases [n, 1, 4U].
    """

    by_input: Tensor
    by_hidden: Tensor
    input_bias: Tensor
    hidden_bias: Tensor


@dataclass(frozen=True, slots=True)
class BodyParts:
    """Parameters of n bodies with the same shapes.

    Attributes:
        layers: linear layers that follow the observations, with E units each.
        memory: memory after the layers; None if the bodies have none.
        activation: activation after each layer.
    """

    layers: list[Linear]
    memory: MemoryParts | None
    activation: Activation


@dataclass(frozen=True, slots=True)
class BodyRun:
    """Outputs of n bodies for b rows, and intermediate values for their gradient.

    Attributes:
        encoding: [n, b, E], or [n, b, U] with a memory.
        tape: each layer's input [n, b, in], and its output before the activation [n, b, E].
        features: output of the last layer [n, b, E].
        memory: memory before the first step [n, S, 2U]; None if the bodies have none.
        steps: steps of the memory.
    """

    encoding: Tensor
    tape: list[tuple[Tensor, Tensor]]
    features: Tensor
    memory: FloatArray | None
    steps: list[LstmStep]


def forward(weights: BodyParts, x: Tensor, memory: FloatArray | None) -> BodyRun:
    """Run the bodies on encoded observations [n, b, in] and, if they have memories, on memories [n, S, 2U].

    Twin of ``trajtrainer.learning.nn.body.NetworkBody``.
    """
    tape: list[tuple[Tensor, Tensor]] = []
    features = activated_layers(x, [linear.layer for linear in weights.layers], tape, weights.activation)
    if weights.memory is None or memory is None:
        return BodyRun(features, tape, features, None, [])
    bias = weights.memory.input_bias + weights.memory.hidden_bias
    sums: FloatArray = torch.baddbmm(bias, features, weights.memory.by_input.transpose(1, 2)).numpy()
    steps = lstm.run(_steps(sums, memory.shape[1]), weights.memory.by_hidden, memory)
    hidden = torch.from_numpy(_rows(np.stack([step.hidden for step in steps])))
    return BodyRun(hidden, tape, features, memory, steps)


def backward(weights: BodyParts, gradients: BodyParts, made: BodyRun, grad: Tensor) -> None:
    """Write the gradient of a loss into ``gradients``, given its gradient with respect to the encoding."""
    if weights.memory is not None and gradients.memory is not None:
        grad = _memory_gradient(weights.memory, gradients.memory, made, grad)
    for index in range(len(weights.layers) - 1, -1, -1):
        entered, total = made.tape[index]
        after = made.tape[index + 1][0] if index + 1 < len(made.tape) else made.features
        if weights.activation is Activation.SWISH:
            grad = torch.ops.aten.silu_backward(grad, total)
        elif weights.activation is Activation.TANH:
            grad = torch.ops.aten.tanh_backward(grad, after)
        else:
            grad = torch.ops.aten.threshold_backward(grad, total, 0)
        # This does the same as ``affine_gradient``.
        torch.bmm(grad.transpose(1, 2), entered, out=gradients.layers[index].weight)
        torch.sum(grad, 1, keepdim=True, out=gradients.layers[index].bias)
        if index:
            grad = torch.bmm(grad, weights.layers[index].weight)


def affine_gradient(grad: Tensor, entered: Tensor, out: Linear) -> None:
    """Write the weight and bias gradients of one or n linear layers, given the gradient of the outputs [..., b, out].

    Twin of ``trajtrainer.learning.nn.conditioning.affine`` and its ``backward``.
    """
    product = torch.mm if grad.dim() == 2 else torch.bmm
    product(grad.transpose(-2, -1), entered, out=out.weight)
    torch.sum(grad, -2, keepdim=out.bias.dim() > 1, out=out.bias)


def _memory_gradient(weights: MemoryParts, gradients: MemoryParts, made: BodyRun, grad: Tensor) -> Tensor:
    """Write the gradients of the memory's parameters and return the gradient of its inputs [n, b, E]."""
    assert made.memory is not None
    grad_hidden = np.ascontiguousarray(_steps(grad.numpy(), made.memory.shape[1]))
    grad_sums = torch.from_numpy(_rows(lstm.backward(made.steps, weights.by_hidden, made.memory, grad_hidden)))
    first = torch.from_numpy(made.memory[..., : made.encoding.shape[-1]])
    hidden_before = torch.cat((first, made.encoding[:, : -first.shape[1]]), 1)
    affine_gradient(grad_sums, made.features, Linear.of(gradients.by_input, gradients.input_bias))
    torch.bmm(grad_sums.transpose(1, 2), hidden_before, out=gradients.by_hidden)
    gradients.hidden_bias.copy_(gradients.input_bias)
    return torch.bmm(grad_sums, weights.by_input)


def _steps(rows: FloatArray, num_sequences: int) -> FloatArray:
    """View [n, b, ...] as [L, n, S, ...]."""
    networks, _, size = rows.shape
    return rows.reshape(networks, -1, num_sequences, size).transpose(1, 0, 2, 3)


def _rows(steps: FloatArray) -> FloatArray:
    """Copy [L, n, S, ...] to [n, b, ...]."""
    length, networks, sequences, size = steps.shape
    return steps.transpose(1, 0, 2, 3).reshape(networks, length * sequences, size)


@dataclass(frozen=True, slots=True)
class BatchedParameters:
    """All parameters or all gradients of both networks.

    Attributes:
        bodies: the two bodies (n = 2), the actor's first.
        policy: the policy head, with C + D outputs.
        values: the value head, with V outputs.
        log_sigma: [1, C]; C may be 0.
        homes: each parameter with its part of the flat tensor.
    """

    bodies: BodyParts
    policy: Linear
    values: Linear
    log_sigma: Tensor
    homes: list[tuple[Tensor, Tensor]]


def parts(flat: Tensor, actor: Actor, critic: ValueNetwork) -> BatchedParameters:
    """Divide ``flat``, which has one element per network parameter, into views."""
    homes: list[tuple[Tensor, Tensor]] = []
    rest = flat

    def place(parameters: Sequence[Tensor], *shape: int) -> Tensor:
        """Assign the next parts to the parameters, and return them together as a view with ``shape``."""
        nonlocal rest
        together, rest = rest.tensor_split((sum(parameter.numel() for parameter in parameters),))
        found = together.split_with_sizes([parameter.numel() for parameter in parameters])
        homes.extend((each, part.view(each.shape)) for each, part in zip(parameters, found, strict=True))
        return together.view(shape)

    def stacked(pair: Sequence[Tensor]) -> Tensor:
        """Place weights as [2, out, in] and biases as [2, 1, out]."""
        size = pair[0].shape
        return place(pair, 2, *((1,) if len(size) == 1 else ()), *size)

    def joined(side: Sequence[nn.Linear]) -> Linear:
        """Place several layers of a network side by side as one layer."""
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
    """Outputs of the networks for b rows, and intermediate values for their gradient.

    Attributes:
        policy: means of the continuous actions and logits of the branches [b, C + D].
        values: [b, V].
        body: outputs of both bodies.
        sequence_length: L.
    """

    policy: FloatArray
    values: FloatArray
    body: BodyRun
    sequence_length: int


class BatchedNetworks:
    """Evaluates an actor and a critic on vectors at once.

    The modules remain usable, because their parameters become parts of ``flat``.

    Twin of ``trajtrainer.learning.nn.actor.Actor`` and ``trajtrainer.learning.nn.critic.ValueNetwork``.

    Attributes:
        flat: all parameters. Its ``grad`` always exists and is overwritten by ``backward``.
        log_sigma: log sigma of the policy [1, C], always up to date.
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
        self.log_sigma: FloatArray = self._weights.log_sigma.numpy()

    @torch.no_grad()
    def encoded(self, obs: Sequence[Tensor]) -> Tensor:
        """Encode the observations of each sensor [N, *O] as [N, in] for the layers of both networks.

        The actor's encoder is used for both, because the normalizers of both networks are equal.
        """
        return self._actor.body.encoder(obs)[0]  # type: ignore[no-any-return]

    def __call__(
        self, encoded: Tensor, memories: tuple[Tensor | None, Tensor | None] = (None, None), length: int = 1
    ) -> Outputs:
        """Evaluate both networks for b rows.

        Args:
            encoded: encoded observations [b, in], grouped by sequence.
            memories: the actor's and the critic's memory before each sequence [S, H]; None for empty memories.
            length: L.
        """
        x = _by_step(encoded, length)
        joined = None
        if self._actor.memory_size:
            empty = np.zeros((len(x) // length, self._actor.memory_size), np.float32)
            joined = np.stack([empty if memory is None else memory.numpy() for memory in memories])
        body = forward(self._weights.bodies, x.expand(2, -1, -1), joined)
        policy = affine(body.encoding[0], self._weights.policy.layer)
        values = affine(body.encoding[1], self._weights.values.layer)
        return Outputs(_by_sequence(policy, length).numpy(), _by_sequence(values, length).numpy(), body, length)

    def backward(
        self, outputs: Outputs, grad_policy: FloatArray, grad_values: FloatArray, grad_log_sigma: FloatArray
    ) -> None:
        """Write the gradient of a loss into ``flat.grad``, given its gradients with respect to the outputs.

        Args:
            outputs: outputs of the networks.
            grad_policy: gradient with respect to ``outputs.policy`` [b, C + D].
            grad_values: gradient with respect to ``outputs.values`` [b, V].
            grad_log_sigma: gradient with respect to log sigma [1, C].
        """
        weights, gradients, body, length = self._weights, self._gradients, outputs.body, outputs.sequence_length
        gradients.log_sigma.copy_(torch.from_numpy(grad_log_sigma))
        grad_encoding = torch.empty_like(body.encoding)
        heads = (grad_policy, weights.policy, gradients.policy), (grad_values, weights.values, gradients.values)
        for network, (grad_rows, head, out) in enumerate(heads):
            grad = _by_step(torch.from_numpy(grad_rows), length)
            affine_gradient(grad, body.encoding[network], out)
            torch.mm(grad, head.weight, out=grad_encoding[network])
        backward(weights.bodies, gradients.bodies, body, grad_encoding)


def _by_step(rows: Tensor, length: int) -> Tensor:
    """Reorder rows [b, ...] from being grouped by sequence (of L steps) to being grouped by step."""
    return _exchanged(rows, -1, length)


def _by_sequence(rows: Tensor, length: int) -> Tensor:
    """Undo ``_by_step``."""
    return _exchanged(rows, length, -1)


def _exchanged(rows: Tensor, outer: int, inner: int) -> Tensor:
    if 1 in (outer, inner):
        return rows
    return rows.reshape(outer, inner, *rows.shape[1:]).transpose(0, 1).flatten(0, 1)


def mlp_of(network: Actor | ValueNetwork) -> Mlp:
    """Return the layers of a network whose body is an ``Mlp``."""
    layers = network.body.layers
    assert isinstance(layers, Mlp)
    return layers
