"""Demonstrated steps in the form that a policy learns from: columns on its device, split into sequences.

Shape legend: B recorded steps, N rows (including padding), L sequence length, Q = N / L sequences, K discrete branches.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trajtrainer.core.columns import Columns, sensor_name
from trajtrainer.experience.trajectory import PackedSteps
from trajtrainer.learning.nn.heads import ActionHead
from trajtrainer.learning.nn.minibatch import Minibatch, in_order, torch_dtype


class DemonstrationRows:
    """Recorded steps in order. With a memory, each episode starts a new sequence and is padded to whole sequences.

    Attributes:
        rows: N rows with ``obs``, ``mask``, ``continuous`` (raw actions), ``discrete`` and, if there is padding,
            ``loss_mask``.
        sequence_length: L; 1 without a memory.
    """

    def __init__(self, packed: PackedSteps, head: ActionHead, sequence_length: int, device: torch.device) -> None:
        """Copy the steps to ``device``.

        Args:
            packed: recorded steps, with continuous actions as the environment received them. Masks must not forbid the
                recorded actions.
            head: the action head of the policy that learns from the steps.
            sequence_length: L.
            device: the policy's device.
        """
        self.sequence_length = sequence_length
        index, real = None, None
        if sequence_length > 1:
            # Compute the step in each row (padding repeats the last step of the episode), and which rows are real.
            within = np.arange(len(packed)) - np.repeat(packed.offset[:-1], packed.lengths)
            begins = np.flatnonzero(within % sequence_length == 0)
            ends = np.repeat(packed.offset[1:], packed.lengths)[begins, None].astype(np.int64)
            steps = begins[:, None] + np.arange(sequence_length)
            index, real = np.minimum(steps, ends - 1).reshape(-1), (steps < ends).reshape(-1)
        given: dict[str, NDArray[Any]] = {sensor_name(i): sensor for i, sensor in enumerate(packed.obs)}
        given |= {name: packed[name] for name in ("mask", "continuous", "discrete")}
        rows = Columns(given).map(lambda column: _tensor(column if index is None else column[index], device))
        learned = {"continuous": head.from_env(rows["continuous"])}
        if real is not None and not real.all():
            learned["loss_mask"] = _tensor(real.astype(np.float32), device)
        self.rows = rows.with_columns(learned)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def num_sequences(self) -> int:
        """The number of sequences, Q."""
        return len(self) // self.sequence_length

    def minibatches(self, order: Tensor, batch_size: int) -> Iterator[Minibatch]:
        """Yield sequences in the given order as minibatches. An incomplete last minibatch is dropped.

        Args:
            order: indices of sequences, i64 [any].
            batch_size: number of rows per minibatch, rounded down to whole sequences, but at least one sequence.
        """
        nothing: Columns[Tensor] = Columns({})
        return in_order(self.rows, nothing, order.to(self.rows["mask"].device), batch_size, self.sequence_length)


def _tensor(column: NDArray[Any], device: torch.device) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(column)).to(device, torch_dtype(column.dtype))
