"""The rows of one gradient step, on-policy or off-policy."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from trajtrainer.core.columns import NEXT_OBSERVATIONS, Columns

if TYPE_CHECKING:
    from trajtrainer.learning.nn.multi_agent import GroupRows

# Rows are reordered for an epoch in blocks of about this many bytes: large enough to keep the cost of indexing per
# minibatch low, and small enough to avoid copying a whole buffer of images at once.
_BLOCK_BYTES = 1 << 25


@dataclass(frozen=True, slots=True)
class Minibatch:
    """Rows grouped by sequence: ``b = Q * L`` rows in Q sequences of L steps (L is 1 without a memory).

    Shape legend: C continuous actions, D sum of branch sizes, H memory size, O shape of an observation, V reward
    signals.

    Attributes:
        rows: b rows with the columns of an update buffer or replay buffer, and the columns that the algorithm adds:
            ``loss_mask`` f32 [b], 0 for padding, if there is padding. Off-policy algorithms also add ``next_obs``;
            ``rewards`` f32 [b, V], multiplied by the signals' strength; ``discount`` f32 [b, V], the weight of each
            signal's value of the next state; ``noise`` f32 [b, C], standard normal noise for the policy's current
            action; and ``next_mask`` bool [b, D] and ``next_noise`` for its next action, if the algorithm needs one.
        sequences: memory before each sequence, f32 [Q, H], for each network with a memory: ``memory`` (the actor's),
            ``critic_memory`` and, with a group critic, ``baseline_memory``.
        sequence_length: L.
        groups: the rows with their groupmates, for algorithms that need them.
        mirrored: True if the second half of the rows mirrors the first.
    """

    rows: Columns[Tensor]
    sequences: Columns[Tensor]
    sequence_length: int = 1
    groups: GroupRows | None = None
    mirrored: bool = False

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, name: str) -> Tensor:
        """Return a column of the rows, [b, ...]."""
        return self.rows[name]

    @property
    def obs(self) -> tuple[Tensor, ...]:
        """The observations of each sensor, f32 or u8 [b, *O]."""
        return self.rows.obs

    @property
    def encoded(self) -> Tensor | None:
        """The observations, encoded once for all epochs of an update, f32 [b, in]. They replace ``obs``."""
        return self.rows.get("encoded")

    @property
    def next_obs(self) -> tuple[Tensor, ...]:
        """The observations of each sensor after the step, f32 or u8 [b, *O]."""
        return self.rows.sensors(NEXT_OBSERVATIONS)

    @property
    def loss_mask(self) -> Tensor | None:
        """The loss mask, f32 [b], 0 for padding; None if no row is padding."""
        return self.rows.get("loss_mask")

    @property
    def memory(self) -> Tensor | None:
        """The actor's memory before each sequence, f32 [Q, H]; None if it has no memory."""
        return self.sequences.get("memory")

    @property
    def critic_memory(self) -> Tensor | None:
        """The critic's memory, f32 [Q, H]; None if it has no memory or shares the actor's body."""
        return self.sequences.get("critic_memory")

    @property
    def baseline_memory(self) -> Tensor | None:
        """The critic's memory for baselines, f32 [Q, H]; None if it has no memory."""
        return self.sequences.get("baseline_memory")

    def acted(self, rows: Tensor) -> Tensor:
        """Return ``rows`` [b, ...] without the mirrored half."""
        return rows.chunk(2)[0] if self.mirrored else rows

    def with_rows(self, columns: Mapping[str, Tensor]) -> Minibatch:
        """Replace or add columns."""
        return replace(self, rows=self.rows.with_columns(columns))


def in_order(
    rows: Columns[Tensor], sequences: Columns[Tensor], order: Tensor, batch_size: int, length: int
) -> Iterator[Minibatch]:
    """Yield sequences in the given order as minibatches. An incomplete last minibatch is dropped.

    Args:
        rows: the rows of Q sequences with ``length`` rows each.
        sequences: columns with one entry per sequence; may be empty.
        order: indices of sequences, i64 [any].
        batch_size: number of rows per minibatch, rounded down to whole sequences, but at least one sequence.
        length: L.
    """
    per_minibatch = max(1, batch_size // length)
    count = len(rows) // length
    if length > 1:
        rows = rows.map(lambda column: column.view(count, length, *column.shape[1:]))
    size = sum(column[0].numel() * column.element_size() for column in rows.values()) * per_minibatch
    block = max(1, _BLOCK_BYTES // size) * per_minibatch
    used = len(order) // per_minibatch * per_minibatch
    for start in range(0, used, block):
        index = order[start : min(start + block, used)]
        chosen = rows.take(index)
        if length > 1:
            chosen = chosen.map(lambda column: column.flatten(0, 1))
        yield from split(chosen, sequences.take(index), len(index) // per_minibatch, length)


def split(rows: Columns[Tensor], sequences: Columns[Tensor], count: int, sequence_length: int) -> Iterator[Minibatch]:
    """Split rows and their sequences into ``count`` minibatches of the same size, which are views."""
    row_parts, sequence_parts = _parts(rows, count), _parts(sequences, count)
    for row_columns, sequence_columns in zip(row_parts, sequence_parts, strict=True):
        yield Minibatch(row_columns, sequence_columns, sequence_length)


def _parts(columns: Columns[Tensor], count: int) -> Iterator[Columns[Tensor]]:
    names, arrays = list(columns), columns.values()
    if not names or count == 1:
        return itertools.repeat(columns, count)
    parts = zip(*(array.split_with_sizes([len(array) // count] * count) for array in arrays), strict=True)
    return (Columns(dict(zip(names, part, strict=True))) for part in parts)


def torch_dtype(dtype: np.dtype[Any]) -> torch.dtype:
    """Return the torch dtype for a column. Signed integers become int64, which torch requires for indices."""
    return torch.int64 if dtype.kind == "i" else torch.from_numpy(np.empty(0, dtype)).dtype


def masked_mean(values: Tensor, mask: Tensor | None) -> Tensor:
    """Return the mean over the real rows and all columns, 0-d; 0 if there are no real rows or no columns.

    Args:
        values: [b] or [b, columns].
        mask: f32 [b], 1 for real rows and 0 for padding; None if every row is real.
    """
    if values.numel() == 0:
        return values.sum()
    if mask is None:
        return values.mean()
    if values.dim() == 1:
        return (values * mask).sum() / mask.sum().clamp(min=1.0)
    return (values * mask[:, None]).sum() / (mask.sum() * values.shape[1]).clamp(min=1.0)
