"""Demonstrated steps as a policy learns from them: columns on its device, cut into sequences.

Shape legend: B recorded steps, N rows (padding included), L sequence length, Q = N / L sequences, K discrete branches.
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
    """Recorded steps in their order. With a memory, each episode starts a new sequence and ends with padding.

    Attributes:
        rows: ``obs``, ``mask``, ``continuous`` as the policy's distribution has them, ``discrete``, and with padding
            also ``loss_mask``; N rows.
        sequence_length: L; 1 without a memory.
    """

    def __init__(self, packed: PackedSteps, head: ActionHead, sequence_length: int, device: torch.device) -> None:
        """Copy the steps to ``device``.

        Args:
            packed: recorded steps. Continuous actions are those the environment received; masks must not forbid the
                recorded actions.
            head: of the policy that learns from them.
            sequence_length: L.
            device: of the policy.
        """
        self.sequence_length = sequence_length
        index, real = None, None
        if sequence_length > 1:
            # The step in each row, where padding repeats the last step of its episode; and which rows are real.
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
        """Q."""
        return len(self) // self.sequence_length

    def minibatches(self, order: Tensor, batch_size: int) -> Iterator[Minibatch]:
        """Yield minibatches of sequences in this order, i64 [any]. A last one that would not be full is left out.

        ``batch_size`` is in rows, rounded down to whole sequences, at least one.
        """
        nothing: Columns[Tensor] = Columns({})
        return in_order(self.rows, nothing, order.to(self.rows["mask"].device), batch_size, self.sequence_length)


def _tensor(column: NDArray[Any], device: torch.device) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(column)).to(device, torch_dtype(column.dtype))
