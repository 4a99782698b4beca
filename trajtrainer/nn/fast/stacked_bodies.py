"""Bodies that are MLPs, perhaps with a memory, evaluated together and differentiated without autograd.

Shapes: n networks, b rows, E hidden units, S sequences, L their length, U units of the memory. Rows are step by step:
the first step of all sequences, the second step, ... (b = L S; without a memory the order does not matter).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from trajtrainer.core.steps import FloatArray
from trajtrainer.nn.conditioning import Layer, activated_layers
from trajtrainer.nn.fast import lstm
from trajtrainer.nn.fast.lstm import LstmStep
from trajtrainer.settings.network import Activation


class Linear(NamedTuple):
    """A linear layer: weight [out, in] and bias [out]; or of n networks [n, out, in] and [n, 1, out].

    Attributes:
        layer: the same as ``affine`` takes it.
    """

    weight: Tensor
    bias: Tensor
    layer: Layer

    @classmethod
    def of(cls, weight: Tensor, bias: Tensor) -> Linear:
        """Add the view that ``affine`` takes."""
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
        layers: the first takes the observations, all give E.
        memory: behind the layers; None without one.
        activation: behind each layer.
    """

    layers: list[Linear]
    memory: MemoryParts | None
    activation: Activation


@dataclass(frozen=True, slots=True)
class BodyRun:
    """Outputs of n bodies for b rows, and what their gradient needs.

    Attributes:
        encoding: [n, b, E], or [n, b, U] with a memory.
        tape: each layer's input [n, b, in], and what it gives ahead of the activation [n, b, E].
        features: what the last layer gives [n, b, E].
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

    Twin of ``trajtrainer.nn.body.NetworkBody``.
    """
    tape: list[tuple[Tensor, Tensor]] = []
    features = activated_layers(x, [linear.layer for linear in weights.layers], tape, weights.activation)
    if weights.memory is None or memory is None:
        return BodyRun(features, tape, features, None, [])
    steps = _remember(weights.memory, features, memory)
    hidden = torch.from_numpy(_rows(np.stack([step.hidden for step in steps])))
    return BodyRun(hidden, tape, features, memory, steps)


def backward(weights: BodyParts, gradients: BodyParts, made: BodyRun, grad: Tensor) -> None:
    """Write the gradient of a loss, given its gradient with respect to the encoding, into ``gradients``."""
    if weights.memory is not None and gradients.memory is not None:
        grad = _memory_gradient(weights.memory, gradients.memory, made, grad)
    for index in range(len(weights.layers) - 1, -1, -1):
        entered, total = made.tape[index]
        after = made.tape[index + 1][0] if index + 1 < len(made.tape) else made.features
        grad = _activation_gradient(weights.activation, grad, total, after)
        affine_gradient(grad, entered, gradients.layers[index])
        if index:
            grad = torch.bmm(grad, weights.layers[index].weight)


def _activation_gradient(activation: Activation, grad: Tensor, total: Tensor, after: Tensor) -> Tensor:
    """Return the gradient by what goes into an activation: ``total``, out of which it makes ``after``."""
    if activation is Activation.SWISH:
        return torch.ops.aten.silu_backward(grad, total)  # type: ignore[no-any-return]
    if activation is Activation.TANH:
        return torch.ops.aten.tanh_backward(grad, after)  # type: ignore[no-any-return]
    return torch.ops.aten.threshold_backward(grad, total, 0)  # type: ignore[no-any-return]


def affine_gradient(grad: Tensor, entered: Tensor, out: Linear) -> None:
    """Write the gradient of weight and bias of a linear layer, or of n, given that of its outputs [..., b, out].

    Twin of ``trajtrainer.nn.conditioning.affine`` and its ``backward``.
    """
    product = torch.mm if grad.dim() == 2 else torch.bmm
    product(grad.transpose(-2, -1), entered, out=out.weight)
    torch.sum(grad, -2, keepdim=out.bias.dim() > 1, out=out.bias)


def _remember(weights: MemoryParts, x: Tensor, memory: FloatArray) -> list[LstmStep]:
    bias = weights.input_bias + weights.hidden_bias
    sums: FloatArray = torch.baddbmm(bias, x, weights.by_input.transpose(1, 2)).numpy()
    return lstm.run(_steps(sums, memory.shape[1]), weights.by_hidden, memory)


def _memory_gradient(weights: MemoryParts, gradients: MemoryParts, made: BodyRun, grad: Tensor) -> Tensor:
    """Return the gradient with respect to what goes into the memory [n, b, E]."""
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
