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

# How many bytes of rows are put in an epoch's order at once: enough that index operations cost little per minibatch,
# and not so many that a buffer of pictures is copied as a whole.
_BLOCK_BYTES = 1 << 25


@dataclass(frozen=True, slots=True)
class Minibatch:
    """Rows in the order of their sequences: ``b = Q * L`` rows, Q sequences of L steps (L is 1 without a memory).

    Shape legend: C continuous actions, H memory size, O an observation's own shape, V reward signals.

    Attributes:
        rows: b rows of the columns of an update buffer or replay, and those that the algorithm adds: ``loss_mask`` f32
            [b], 0 in padding, if there is any. Off-policy also ``next_obs``; ``rewards`` f32 [b, V], times strength;
            ``discount`` f32 [b, V], the weight of a signal's value of the next state; ``noise`` f32 [b, C], standard
            normal, for the policy's current action; ``next_mask`` bool [b, D] and ``next_noise`` for its next one, if
            the algorithm needs it.
        sequences: memories before each sequence, f32 [Q, H], of networks that have one: ``memory`` (the actor's),
            ``critic_memory`` and (of a critic of groups) ``baseline_memory``.
        sequence_length: L.
        groups: the rows with their groupmates, for algorithms that need them.
        mirrored: whether the second half of the rows mirrors the first.
    """

    rows: Columns[Tensor]
    sequences: Columns[Tensor]
    sequence_length: int = 1
    groups: GroupRows | None = None
    mirrored: bool = False

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, name: str) -> Tensor:
        """A column of the rows, [b, ...]."""
        return self.rows[name]

    @property
    def obs(self) -> tuple[Tensor, ...]:
        """The observations per sensor, f32 or u8 [b, *O]."""
        return self.rows.obs

    @property
    def encoded(self) -> Tensor | None:
        """Observations encoded once for all epochs of an update, f32 [b, in], which replace ``obs``."""
        return self.rows.get("encoded")

    @property
    def next_obs(self) -> tuple[Tensor, ...]:
        """The observations after the step, per sensor, f32 or u8 [b, *O]."""
        return self.rows.sensors(NEXT_OBSERVATIONS)

    @property
    def loss_mask(self) -> Tensor | None:
        """f32 [b], 0 in padding; None when no row is padding."""
        return self.rows.get("loss_mask")

    @property
    def memory(self) -> Tensor | None:
        """The actor's memory before each sequence, f32 [Q, H]; None without one."""
        return self.sequences.get("memory")

    @property
    def critic_memory(self) -> Tensor | None:
        """The critic's memory, f32 [Q, H]; None without one, or if the critic shares the actor's body."""
        return self.sequences.get("critic_memory")

    @property
    def baseline_memory(self) -> Tensor | None:
        """The critic's memory for baselines, f32 [Q, H]; None without one."""
        return self.sequences.get("baseline_memory")

    def acted(self, rows: Tensor) -> Tensor:
        """``rows`` [b, ...] without mirror images."""
        return rows.chunk(2)[0] if self.mirrored else rows

    def with_rows(self, columns: Mapping[str, Tensor]) -> Minibatch:
        """Replace or add columns."""
        return replace(self, rows=self.rows.with_columns(columns))


def in_order(
    rows: Columns[Tensor], sequences: Columns[Tensor], order: Tensor, batch_size: int, length: int
) -> Iterator[Minibatch]:
    """Yield sequences in another order as minibatches. A last minibatch that would not be full is left out.

    Args:
        rows: of Q sequences of ``length`` rows.
        sequences: their columns, Q rows; or none.
        order: i64 [any], numbers of sequences.
        batch_size: rows; rounded down to whole sequences, at least one.
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
    """Split rows and their sequences into ``count`` minibatches of the same size. They are views."""
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
    """The torch type of a column. Whole numbers become int64, the only type that torch accepts as an index."""
    return torch.int64 if dtype.kind == "i" else torch.from_numpy(np.empty(0, dtype)).dtype


def masked_mean(values: Tensor, mask: Tensor | None) -> Tensor:
    """The mean over the real rows and all columns, 0-d; 0 without real rows or columns.

    Args:
        values: [b] or [b, columns].
        mask: f32 [b], 1 for a real row and 0 for padding; None when every row is real.
    """
    if values.numel() == 0:
        return values.sum()
    if mask is None:
        return values.mean()
    if values.dim() == 1:
        return (values * mask).sum() / mask.sum().clamp(min=1.0)
    return (values * mask[:, None]).sum() / (mask.sum() * values.shape[1]).clamp(min=1.0)
