"""Bodies of plain layers, perhaps with a memory, evaluated together and differentiated without autograd.

Letters: n networks, b rows, E hidden units, S sequences, L their length, U units of the memory. Rows are step by step:
the first step of all sequences, the second step, ... (b = L S; without a memory the order does not matter).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from trajtrainer.algos.stacked_parameters import BodyParts, MemoryParts
from trajtrainer.nn import lstm_steps
from trajtrainer.nn.lstm_steps import LstmStep
from trajtrainer.steps import FloatArray


@dataclass(frozen=True, slots=True)
class BodyRun:
    """What n bodies made of b rows, and what their gradient needs.

    Attributes:
        encoding: [n, b, E], or [n, b, U] with a memory.
        inputs: of each layer [n, b, in], and behind the last [n, b, E].
        sums: what each layer gives ahead of Swish [n, b, E].
        memory: before the first step [n, S, 2U]; None without one.
        steps: of the memory.
    """

    encoding: Tensor
    inputs: list[Tensor]
    sums: list[Tensor]
    memory: FloatArray | None
    steps: list[LstmStep]


@torch.no_grad()
def forward(weights: BodyParts, x: Tensor, memory: FloatArray | None) -> BodyRun:
    """Runs the bodies on encoded observations [n, b, in] and, where they have one, memories [n, S, 2U]."""
    inputs, sums = [x], []
    for layer in weights.layers:
        sums.append(torch.baddbmm(layer.bias, inputs[-1], layer.transposed))
        inputs.append(F.silu(sums[-1]))
    if weights.memory is None or memory is None:
        return BodyRun(inputs[-1], inputs, sums, None, [])
    steps = _remember(weights.memory, inputs[-1], memory)
    hidden = torch.from_numpy(_rows(np.stack([step.hidden for step in steps])))
    return BodyRun(hidden, inputs, sums, memory, steps)


@torch.no_grad()
def backward(weights: BodyParts, gradients: BodyParts, made: BodyRun, through: Tensor) -> None:
    """Writes the gradient of a loss, given its gradient with respect to the encoding, into ``gradients``."""
    if weights.memory is not None and gradients.memory is not None:
        through = _memory_gradient(weights.memory, gradients.memory, made, through)
    for index in range(len(weights.layers) - 1, -1, -1):
        layer = gradients.layers[index]
        through = torch.ops.aten.silu_backward(through, made.sums[index])
        torch.bmm(through.transpose(1, 2), made.inputs[index], out=layer.weight)
        torch.sum(through, 1, keepdim=True, out=layer.bias)
        if index:
            through = torch.bmm(through, weights.layers[index].weight)


def _remember(weights: MemoryParts, x: Tensor, memory: FloatArray) -> list[LstmStep]:
    bias = weights.input_bias + weights.hidden_bias
    sums: FloatArray = torch.baddbmm(bias, x, weights.by_input.transpose(1, 2)).numpy()
    return lstm_steps.run(_steps(sums, memory.shape[1]), weights.by_hidden, memory)


def _memory_gradient(weights: MemoryParts, gradients: MemoryParts, made: BodyRun, through: Tensor) -> Tensor:
    """Returns the gradient with respect to what goes into the memory [n, b, E]."""
    assert made.memory is not None
    by_hidden = np.ascontiguousarray(_steps(through.numpy(), made.memory.shape[1]))
    by_sums = torch.from_numpy(_rows(lstm_steps.backward(made.steps, weights.by_hidden, made.memory, by_hidden)))
    first = torch.from_numpy(made.memory[..., : made.encoding.shape[-1]])
    hidden_before = torch.cat((first, made.encoding[:, : -first.shape[1]]), 1)
    torch.bmm(by_sums.transpose(1, 2), made.inputs[-1], out=gradients.by_input)
    torch.bmm(by_sums.transpose(1, 2), hidden_before, out=gradients.by_hidden)
    torch.sum(by_sums, 1, keepdim=True, out=gradients.input_bias)
    gradients.hidden_bias.copy_(gradients.input_bias)
    return torch.bmm(by_sums, weights.by_input)


def _steps(rows: FloatArray, num_sequences: int) -> FloatArray:
    """[n, b, ...] as [L, n, S, ...]: a view."""
    networks, _, size = rows.shape
    return rows.reshape(networks, -1, num_sequences, size).transpose(1, 0, 2, 3)


def _rows(steps: FloatArray) -> FloatArray:
    """[L, n, S, ...] as [n, b, ...]: a copy."""
    length, networks, sequences, size = steps.shape
    return steps.transpose(1, 0, 2, 3).reshape(networks, length * sequences, size)
