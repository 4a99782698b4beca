"""The recurrence of an LSTM and its gradient, step by step on the CPU, for several networks with the same shapes.

With memories of the usual sizes, one step takes little arithmetic, so the number and cost of calls matter. The code
therefore uses numpy, whose calls take a third of the time of torch calls, and computes as much as possible for all
steps together. (If no gradient is needed, a single call of torch's LSTM for many steps is faster.)

Shapes: n networks, S sequences, L steps per sequence, U units. The four gates are placed side by side in torch's order
i, f, g, o.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from trajtrainer.core.steps import FloatArray


class LstmStep(NamedTuple):
    """Results of one step of S sequences.

    Attributes:
        gates: gates after their nonlinearities [n, S, 4U].
        cells: cell states [n, S, U].
        squashed: tanh of the cell states [n, S, U].
        hidden: output [n, S, U].
    """

    gates: FloatArray
    cells: FloatArray
    squashed: FloatArray
    hidden: FloatArray


def run(sums: Iterable[FloatArray], weight: Tensor, memory: FloatArray) -> list[LstmStep]:
    """Run sequences from the first to the last step.

    Twin of ``torch.nn.LSTM``.

    Args:
        sums: the contribution of the inputs and both biases to the gates at each step [n, S, 4U].
        weight: ``weight_hh`` of torch's LSTM [n, 4U, U].
        memory: [h | c] before the first step of each sequence [n, S, 2U].
    """
    units = memory.shape[-1] // 2
    scale = gate_scale(units)
    recurrent = (weight * torch.from_numpy(scale)[:, None]).transpose(1, 2).contiguous()
    hidden, cells = memory[..., :units], memory[..., units:]
    steps = []
    for given in sums:
        gates: FloatArray = given * scale
        gates += torch.bmm(torch.from_numpy(hidden), recurrent).numpy()
        step = end_step(gates, cells)
        hidden, cells = step.hidden, step.cells
        steps.append(step)
    return steps


def end_step(gates: FloatArray, cells: FloatArray) -> LstmStep:
    """Compute one step from the inputs of the gates.

    Args:
        gates: sums of the contributions of the inputs, the biases and the last output, times ``gate_scale`` [..., 4U].
            They are overwritten with the step's ``gates``.
        cells: cell states before the step [..., U].
    """
    units = cells.shape[-1]
    np.tanh(gates, out=gates)
    gates *= gate_scale(units)
    gates += _gate_offset(units)
    after: FloatArray = gates[..., units : 2 * units] * cells
    after += gates[..., :units] * gates[..., 2 * units : 3 * units]
    squashed: FloatArray = np.tanh(after)
    return LstmStep(gates, after, squashed, gates[..., 3 * units :] * squashed)


def backward(steps: Sequence[LstmStep], weight: Tensor, memory: FloatArray, grad_hidden: FloatArray) -> FloatArray:
    """Compute the gradient of a loss with respect to the ``sums`` of ``run``, [L, n, S, 4U].

    Args:
        steps: result of ``run`` for S sequences of equal length.
        weight: the ``weight`` passed to ``run``.
        memory: the ``memory`` passed to ``run``.
        grad_hidden: gradient with respect to the output of each step [L, n, S, U].
    """
    gates: FloatArray = np.stack([step.gates for step in steps])
    cells: FloatArray = np.stack([step.cells for step in steps])
    squashed: FloatArray = np.stack([step.squashed for step in steps])
    units = cells.shape[-1]
    i, f, g, o = (slice(start, start + units) for start in range(0, 4 * units, units))
    cells_before = np.concatenate((memory[None, ..., units:], cells[:-1]))
    # Derivatives within each step: of the cells with respect to the sums of i, f and g, and of the outputs with respect
    # to the sum of o.
    slopes: FloatArray = gates * (1.0 - gates)  # derivatives of the sigmoids
    slopes[..., i] *= gates[..., g]
    slopes[..., f] *= cells_before
    np.multiply(1.0 - gates[..., g] * gates[..., g], gates[..., i], out=slopes[..., g])
    slopes[..., o] *= squashed
    slope_of_cell = (1.0 - squashed * squashed) * gates[..., o]
    grad_cell = np.zeros(cells.shape[1:], np.float32)
    grad_output = grad_hidden[-1]
    for step in range(len(steps) - 1, -1, -1):
        grad_cell += grad_output * slope_of_cell[step]
        grad_sums: FloatArray = slopes[step]  # The slopes are no longer needed, so the gradient overwrites them.
        parts = grad_sums.reshape(*cells.shape[1:3], 4, units)
        parts[:, :, :3] *= grad_cell[:, :, None]
        parts[:, :, 3] *= grad_output
        if step:
            grad_cell *= gates[step, ..., f]
            grad_output = grad_hidden[step - 1] + torch.bmm(torch.from_numpy(grad_sums), weight).numpy()
    return slopes


@lru_cache(maxsize=8)
def gate_scale(units: int) -> FloatArray:
    """Return the factors [4U]: 1/2 for i, f and o, as ``sigmoid(x) = tanh(x / 2) / 2 + 1 / 2``, and 1 for g (a tanh).

    The array is cached, so do not modify it.
    """
    return np.repeat(np.array([0.5, 0.5, 1.0, 0.5], np.float32), units)


@lru_cache(maxsize=8)
def _gate_offset(units: int) -> FloatArray:
    return np.float32(1.0) - gate_scale(units)
