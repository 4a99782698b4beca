"""Recurrent memory: an LSTM layer with state [h | c] per agent (docs/explanation/mlagents-behavior.md#memory)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from trajtrainer.learning.nn.graph import Graph, to_array
from trajtrainer.learning.nn.init import init_lstm

# The gates in ONNX order (input, output, forget, cell), as positions in torch's order (input, forget, cell, output).
_ONNX_GATES = (0, 3, 1, 2)


class Unrolled(NamedTuple):
    """Outputs of a memory for S whole trajectories, with B steps in total, in Q sequences of at most L steps.

    Attributes:
        out: output after each step [B, H / 2].
        starts: memory before each sequence [Q, H], grouped by trajectory.
        final: memory after each trajectory [S, H].
    """

    out: Tensor
    starts: Tensor
    final: Tensor


class Memory(nn.Module):
    """An LSTM with ``memory_size / 2`` units that processes sequences of equal length or whole trajectories.

    Args:
        size: number of features per step.
        memory_size: H, an even number; half of the memory is the hidden state (and the output), half is the cell state.
    """

    def __init__(self, size: int, memory_size: int) -> None:
        super().__init__()
        self.memory_size = memory_size
        self.hidden_size = memory_size // 2
        self.lstm = nn.LSTM(size, self.hidden_size, batch_first=True)
        init_lstm(self.lstm)

    def forward(self, x: Tensor, memory: Tensor | None, sequence_length: int) -> tuple[Tensor, Tensor]:
        """Process S sequences.

        Args:
            x: consecutive sequences [S * L, size].
            memory: memory before the first step of each sequence [S, H]; None for empty memories.
            sequence_length: L. Padding is at the end of a sequence, so it does not affect real steps.

        Returns:
            The output of each step [S * L, H / 2], and the memory after the last step of each sequence [S, H].
        """
        sequences = x.reshape(-1, sequence_length, x.shape[1])
        if memory is None:
            memory = x.new_zeros(sequences.shape[0], self.memory_size)
        hidden, cell = memory.unsqueeze(0).chunk(2, 2)
        out, (hidden, cell) = self.lstm(sequences, (hidden.contiguous(), cell.contiguous()))
        return out.reshape(-1, self.hidden_size), torch.cat((hidden, cell), 2).squeeze(0)

    def unroll(self, x: Tensor, offset: Tensor, memory: Tensor | None, sequence_length: int) -> Unrolled:
        """Process S trajectories of any length from the first to the last step.

        torch's LSTM returns its full state only at the end of a call, so each call processes the n-th sequence of every
        trajectory.

        Args:
            x: consecutive trajectories [B, size].
            offset: start index of each trajectory, followed by B: integers [S + 1], preferably on the CPU for speed.
            memory: memory before each trajectory [S, H]; None for empty memories.
            sequence_length: L; the last sequence of a trajectory may be shorter.
        """
        offset = offset.to("cpu", torch.int64)
        lengths = offset.diff()
        if memory is None:
            memory = x.new_zeros(len(lengths), self.memory_size)
        counts = (lengths + sequence_length - 1) // sequence_length
        first = counts.cumsum(0) - counts
        out = x.new_empty(x.shape[0], self.hidden_size)
        starts = x.new_empty(int(counts.sum()), self.memory_size)
        final = memory.clone()
        for n, (trajectories, rows, sizes) in enumerate(_nth_sequences(offset, lengths, sequence_length)):
            before = final[trajectories]
            starts[first[trajectories] + n] = before
            hidden, cell = before.unsqueeze(0).chunk(2, 2)
            packed = PackedSequence(x[rows], sizes)
            after, (hidden, cell) = self.lstm(packed, (hidden.contiguous(), cell.contiguous()))
            out[rows] = after.data
            final[trajectories] = torch.cat((hidden, cell), 2).squeeze(0)
        return Unrolled(out, starts, final)

    def to_onnx(self, graph: Graph, x: str, memory: str, memory_out: str) -> str:
        """Add nodes for one step, from features [batch, size] and memories [batch, 1, H] to outputs [batch, H / 2].

        The new memories are named ``memory_out``. Unity stores memories as [agent, 1, H], but the operator takes two
        tensors [1, agent, H / 2]. Barracuda recognizes ML-Agents' LSTM by the operators around it, so this method adds
        the same operators.
        """
        lstm, size = self.lstm, self.hidden_size
        steps = graph.node("Transpose", graph.reshape(x, [-1, 1, lstm.input_size]), perm=[1, 0, 2])
        state = graph.node("Transpose", memory, perm=[1, 0, 2])
        hidden, cell = graph.slice(state, axis=2, start=0, end=size), graph.slice(state, axis=2, start=size)
        out, hidden, cell = graph.nodes(
            "LSTM",
            [steps, *self._weights_to_onnx(graph), "", hidden, cell],
            ["lstm", "hidden", "cell"],
            hidden_size=size,
        )
        graph.node("Transpose", graph.concat([hidden, cell], axis=-1), perm=[1, 0, 2], output=memory_out)
        sequences = graph.node("Transpose", graph.squeeze(out, axis=1), perm=[1, 0, 2])
        return graph.reshape(sequences, [-1, size])

    def _weights_to_onnx(self, graph: Graph) -> list[str]:
        def gates(array: NDArray[np.float32]) -> NDArray[np.float32]:
            blocks = np.split(array, len(_ONNX_GATES))
            return np.concatenate([blocks[gate] for gate in _ONNX_GATES])[None]

        weights = dict(self.lstm.named_parameters())
        biases = np.concatenate([gates(to_array(weights[name])) for name in ("bias_ih_l0", "bias_hh_l0")], axis=1)
        return [
            graph.parameter(weights["weight_ih_l0"], lambda name: name.replace("weight_ih_l0", "input"), gates),
            graph.parameter(weights["weight_hh_l0"], lambda name: name.replace("weight_hh_l0", "recurrence"), gates),
            graph.parameter(weights["bias_ih_l0"], lambda name: name.replace("bias_ih_l0", "bias"), lambda _: biases),
        ]


def _nth_sequences(offset: Tensor, lengths: Tensor, sequence_length: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """For n = 0, 1, ..., yield the trajectories that have an n-th sequence, longest first, and those sequences.

    The sequences are given in the format of ``PackedSequence``: row indices in time order (the first steps of all
    sequences, then the second steps, ...), and the number of sequences at each step.
    """
    by_length = lengths.argsort(descending=True, stable=True)
    steps = torch.arange(sequence_length).unsqueeze(1)
    start = 0
    while True:
        trajectories = by_length[lengths[by_length] > start]
        if len(trajectories) == 0:
            return
        present = steps < (lengths[trajectories] - start)
        rows = (offset[trajectories] + start + steps)[present]
        sizes = present.sum(1)
        yield trajectories, rows, sizes[sizes > 0]
        start += sequence_length
