"""Any number of MLPs on vectors evaluated together and differentiated without autograd: the offline trainers' networks.

Unlike in ``batched_networks``, inputs and outputs of the networks may have different sizes: narrower ones are padded
with zeros, which stay zero because nothing flows through them. One batched matrix product per layer evaluates all.

Shapes: n networks, b rows, W outputs of the widest head.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from trajtrainer.core.steps import FloatArray
from trajtrainer.learning.nn.conditioning import Layer, Mlp, activated_layers, affine
from trajtrainer.learning.nn.fast import lstm
from trajtrainer.learning.nn.fast.adam import ParameterView, whole
from trajtrainer.learning.nn.fast.lstm import LstmStep
from trajtrainer.learning.nn.heads import ActionHead, ValueHeads
from trajtrainer.settings.network import Activation


class Linear(NamedTuple):
    """A linear layer: weight [out, in] and bias [out]; or of n networks [n, out, in] and [n, 1, out].

    Attributes:
        layer: the same in the form for ``affine``.
    """

    weight: Tensor
    bias: Tensor
    layer: Layer

    @classmethod
    def of(cls, weight: Tensor, bias: Tensor) -> Linear:
        return cls(weight, bias, (weight.transpose(-2, -1), bias))


class MemoryParts(NamedTuple):
    """Parameters of torch's LSTM, for n networks.

    weight_ih [n, 4U, E], weight_hh [n, 4U, U], both biases [n, 1, 4U].
    """

    by_input: Tensor
    by_hidden: Tensor
    input_bias: Tensor
    hidden_bias: Tensor


@dataclass(frozen=True, slots=True)
class BodyParts:
    """Parameters of n bodies of one shape.

    Attributes:
        layers: from observations to E units each.
        memory: after the layers; None without one.
        activation: after each layer.
    """

    layers: list[Linear]
    memory: MemoryParts | None
    activation: Activation


@dataclass(frozen=True, slots=True)
class BodyRun:
    """Outputs of n bodies for b rows, and numbers that their gradient needs.

    Attributes:
        encoding: [n, b, E], or [n, b, U] with a memory.
        tape: each layer's input [n, b, in], and its output before the activation [n, b, E].
        features: output of the last layer [n, b, E].
        memory: before the first step [n, S, 2U]; None without one.
        steps: of the memory.
    """

    encoding: Tensor
    tape: list[tuple[Tensor, Tensor]]
    features: Tensor
    memory: FloatArray | None
    steps: list[LstmStep]


def forward(weights: BodyParts, x: Tensor, memory: FloatArray | None) -> BodyRun:
    """Run the bodies on encoded observations [n, b, in] and, where they have one, memories [n, S, 2U].

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
    """Write the gradient of a loss into ``gradients``, given the one with respect to the encoding."""
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
        # As ``affine_gradient`` does it.
        torch.bmm(grad.transpose(1, 2), entered, out=gradients.layers[index].weight)
        torch.sum(grad, 1, keepdim=True, out=gradients.layers[index].bias)
        if index:
            grad = torch.bmm(grad, weights.layers[index].weight)


def affine_gradient(grad: Tensor, entered: Tensor, out: Linear) -> None:
    """Write the gradients of weight and bias of a linear layer, or of n, given that of the outputs [..., b, out].

    Twin of ``trajtrainer.learning.nn.conditioning.affine`` and its ``backward``.
    """
    product = torch.mm if grad.dim() == 2 else torch.bmm
    product(grad.transpose(-2, -1), entered, out=out.weight)
    torch.sum(grad, -2, keepdim=out.bias.dim() > 1, out=out.bias)


def _memory_gradient(weights: MemoryParts, gradients: MemoryParts, made: BodyRun, grad: Tensor) -> Tensor:
    """Write the gradients of the memory's parameters. Returns that of its inputs [n, b, E]."""
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
class MlpRun:
    """Outputs of some networks, and numbers that their gradient needs.

    Attributes:
        outputs: [n, b, W].
        body: of these networks.
    """

    outputs: Tensor
    body: BodyRun


@dataclass(frozen=True, slots=True)
class _Part:
    """Some consecutive networks."""

    bodies: BodyParts
    heads: Linear


class BatchedMlps:
    """Evaluates MLPs at once. The modules remain usable: their parameters become parts of common tensors.

    They are an ``Actor`` and ``ValueNetwork``s of one depth and width. The closed forms of ``bc`` and ``iql`` are made
    of this, and their parity tests cover it.

    Attributes:
        groups: the trained leaves of each group of networks; ``backward`` overwrites their ``grad``.
    """

    def __init__(self, networks: Sequence[nn.Module], groups: Sequence[int]) -> None:
        """Move the parameters of the networks' layers into common tensors.

        Args:
            networks: actors and critics, each with an ``Mlp`` as body and a linear head.
            groups: sizes of groups of networks that are trained together, from the first one on. The rest of the
                networks are not trained.
        """
        self._trained = sum(groups)
        bounds = [(sum(groups[:i]), sum(groups[: i + 1])) for i in range(len(groups))]
        self.groups: list[list[Tensor]] = [[] for _ in groups]
        self._weights: list[Linear] = []
        self._gradients: list[Linear] = []
        self._views: dict[Tensor, ParameterView] = {}
        # For each network the linear modules that form each layer side by side, the head's last.
        layers = ([*([one] for one in _mlp(network).linears), head_linears(network)] for network in networks)
        for layer in zip(*layers, strict=True):
            self._place(layer, bounds)
        self._parts: dict[tuple[int, int], _Part] = {}
        self._activation = _mlp(networks[0]).activation
        self._gradient = _Part(BodyParts(self._gradients[:-1], None, self._activation), self._gradients[-1])

    def _place(self, layer: Sequence[Sequence[nn.Linear]], bounds: Sequence[tuple[int, int]]) -> None:
        """Add one layer, given for each network as the linear modules that form it side by side."""
        inputs = max(side[0].in_features for side in layer)
        width = max(sum(linear.out_features for linear in side) for side in layer)
        sample = layer[0][0].weight
        weight, bias = sample.new_zeros(len(layer), width, inputs), sample.new_zeros(len(layer), 1, width)
        weight, bias = weight.detach(), bias.detach()
        gradients = torch.zeros_like(weight[: self._trained]), torch.zeros_like(bias[: self._trained])
        self._weights.append(Linear.of(weight, bias))
        self._gradients.append(Linear.of(*gradients))
        for (start, stop), leaves in zip(bounds, self.groups, strict=True):
            for tensor, gradient in zip((weight, bias), gradients, strict=True):
                leaf = tensor[start:stop]
                leaf.grad = gradient[start:stop]
                leaves.append(leaf)
        for number, side in enumerate(layer):
            group = next((i for i, (start, stop) in enumerate(bounds) if start <= number < stop), None)
            begin = 0
            for linear in side:
                rows = slice(begin, begin := begin + linear.out_features)
                views = (partial(_weight, rows=rows, inputs=linear.in_features), partial(_bias, rows=rows))
                for index, (tensor, parameter) in enumerate(zip((weight, bias), linear.parameters(), strict=True)):
                    place = views[index](tensor, number)
                    place.copy_(parameter.detach())
                    parameter.data = place
                    if group is not None:
                        leaf = self.groups[group][index - 2]
                        self._views[parameter] = ParameterView(leaf, _of(views[index], number - bounds[group][0]))

    def pieces(self, parameters: Sequence[Tensor]) -> list[ParameterView]:
        """Parameters as views of the leaves. Those that are not in the networks' layers are leaves themselves."""
        return [self._views.get(each) or whole(each) for each in parameters]

    @torch.no_grad()
    def __call__(self, x: Tensor, start: int, stop: int) -> MlpRun:
        """Evaluate the networks from ``start`` to ``stop`` on encoded observations [n, b, widest input]."""
        part = self._part(start, stop)
        body = forward(part.bodies, x, None)
        return MlpRun(affine(body.encoding, part.heads.layer), body)

    @torch.no_grad()
    def backward(self, run: MlpRun, grad: Tensor) -> None:
        """Write the gradient of a loss for all trained networks, given that of their outputs [n, b, W]."""
        part = self._part(0, self._trained)
        affine_gradient(grad, run.body.encoding, self._gradient.heads)
        backward(part.bodies, self._gradient.bodies, run.body, torch.bmm(grad, part.heads.weight))

    @torch.no_grad()
    def follow(self, followers: slice, followed: slice, tau: float) -> None:
        """Move networks by the fraction ``tau`` toward others."""
        tensors = [tensor for linear in self._weights for tensor in linear[:2]]
        torch._foreach_lerp_([one[followers] for one in tensors], [one[followed] for one in tensors], tau)

    def _part(self, start: int, stop: int) -> _Part:
        part = self._parts.get((start, stop))
        if part is None:
            some = [Linear.of(weight[start:stop], bias[start:stop]) for weight, bias, _ in self._weights]
            part = self._parts[start, stop] = _Part(BodyParts(some[:-1], None, self._activation), some[-1])
        return part


def _mlp(network: nn.Module) -> Mlp:
    mlp = network.body.layers  # type: ignore[union-attr]
    assert isinstance(mlp, Mlp)
    return mlp


def head_linears(network: nn.Module) -> list[nn.Linear]:
    """The linear modules of an actor's or a critic's head, in the order of their outputs."""
    if isinstance(heads := getattr(network, "heads", None), ValueHeads):
        return [linear for linear in heads.linears.values() if isinstance(linear, nn.Linear)]
    head = network.head
    assert isinstance(head, ActionHead)
    return [linear for linear in (head.mu, head.discrete) if linear is not None]


def _weight(tensor: Tensor, network: int, rows: slice, inputs: int) -> Tensor:
    return tensor[network, rows, :inputs]


def _bias(tensor: Tensor, network: int, rows: slice) -> Tensor:
    return tensor[network, 0, rows]


def _of(view: Callable[[Tensor, int], Tensor], network: int) -> Callable[[Tensor], Tensor]:
    return lambda tensor: view(tensor, network)
