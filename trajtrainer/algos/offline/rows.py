"""A data set's steps as the minibatches of gradient steps.

Shape legend: B packed steps, S trajectories, L sequence length, Q sequences, b rows of a minibatch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trajtrainer.core.columns import (
    NEXT_OBSERVATIONS,
    TEACHER_MEAN,
    TEACHER_PROBS,
    TEACHER_STD,
    Columns,
    sensor_name,
)
from trajtrainer.core.steps import FloatArray, LongArray
from trajtrainer.data.trajectory import PackedSteps
from trajtrainer.nn.minibatch import Minibatch, split, torch_dtype

_LEARNED_FROM = ("mask", "continuous", "discrete", TEACHER_MEAN, TEACHER_STD, TEACHER_PROBS)
# Minibatches are gathered together, which costs little per minibatch then, up to so much memory.
_MAX_BYTES = 1 << 25
_MIX = 0x9E3779B97F4A7C15


class Parts(NamedTuple):
    """Parts of trajectories: the rows from each ``start`` to its ``stop``, i64."""

    start: LongArray
    stop: LongArray


class DatasetRows:
    """Some of a data set's steps, cut into sequences of L steps. Nothing is copied but what a minibatch needs.

    Attributes:
        num_steps: that count.
        num_sequences: Q; without a memory (L = 1) the same.
    """

    def __init__(
        self,
        packed: PackedSteps,
        parts: Parts,
        *,
        sequence_length: int,
        device: torch.device,
        more: Callable[[], dict[str, FloatArray]] | None = None,
    ) -> None:
        """Find the sequences.

        Args:
            packed: the data set, with a teacher's answers if there is one.
            parts: of its trajectories that count.
            sequence_length: L.
            device: of the networks.
            more: gives columns to put beside those of the data set, f32 [B, ...]; with it come next observations.
        """
        self._packed = packed
        self._length = sequence_length
        self._device = device
        self._more = None if more is None else more()
        self._names = [name for name in _LEARNED_FROM if name in packed.steps]
        lengths = parts.stop - parts.start
        counts = -(-lengths // sequence_length)
        within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        self._starts: LongArray = np.repeat(parts.start, counts)
        self._starts += within * sequence_length
        self._lengths = np.minimum(np.repeat(lengths, counts) - within * sequence_length, sequence_length)
        self.num_steps = int(lengths.sum())

    @property
    def num_sequences(self) -> int:
        """Q."""
        return len(self._starts)

    @property
    def row_bytes(self) -> int:
        """Return the size of a row with its next observations."""
        sensors = sum(column[:1].nbytes for column in self._packed.obs)
        return sensors * (1 + (self._more is not None)) + sum(self._packed[name][:1].nbytes for name in self._names)

    def observations(self) -> Iterator[list[Tensor]]:
        """Yield the observations of all steps, per sensor [b, *O], in pieces of bounded size."""
        count = max(1, _MAX_BYTES // max(1, self.row_bytes * self._length))
        for start in range(0, self.num_sequences, count):
            rows, real = self._rows(np.arange(start, min(start + count, self.num_sequences)))
            rows = rows if real is None else rows[real]
            yield [self._tensor(column.take(rows, axis=0)) for column in self._packed.obs]

    def minibatches(self, numbers: LongArray, count: int) -> Iterator[Minibatch]:
        """Yield ``count`` minibatches of the same size of these sequences, a whole number of them each."""
        per_minibatch = len(numbers) // count
        block = max(1, _MAX_BYTES // max(1, per_minibatch * self._length * self.row_bytes))
        for start in range(0, count, block):
            some = min(block, count - start)
            part = numbers[start * per_minibatch : (start + some) * per_minibatch]
            yield from split(self._gather(part), Columns({}), some, self._length)

    def _gather(self, numbers: LongArray) -> Columns[Tensor]:
        rows, real = self._rows(numbers)
        packed = self._packed
        columns: dict[str, NDArray[Any]] = {
            sensor_name(i): column.take(rows, axis=0) for i, column in enumerate(packed.obs)
        }
        columns |= {name: _taken(packed[name], rows) for name in self._names}
        if self._more is not None:
            columns |= {sensor_name(i, NEXT_OBSERVATIONS): seen for i, seen in enumerate(self._following(rows))}
            columns |= {name: column.take(rows, axis=0) for name, column in self._more.items()}
        if real is not None:
            columns["loss_mask"] = real.astype(np.float32)
        return Columns({name: self._tensor(column) for name, column in columns.items()})

    def _rows(self, numbers: LongArray) -> tuple[LongArray, NDArray[np.bool_] | None]:
        """Return the rows of sequences, and which of them are no repetitions of a sequence's last one."""
        first = self._starts.take(numbers)
        if self._length == 1:
            return first, None
        lengths, steps = self._lengths.take(numbers)[:, None], np.arange(self._length)
        rows = (first[:, None] + np.minimum(steps, lengths - 1)).reshape(-1)
        real = (steps < lengths).reshape(-1)
        return rows, None if real.all() else real

    def _following(self, rows: LongArray) -> list[NDArray[Any]]:
        """Return what was observed after each step, per sensor."""
        packed = self._packed
        trajectory = np.searchsorted(packed.offset, rows, side="right") - 1
        last = np.flatnonzero(rows + 1 == packed.offset[trajectory + 1])
        after = np.minimum(rows + 1, len(packed) - 1)
        found = []
        for column, bootstrap in zip(packed.obs, packed.bootstrap.obs, strict=True):
            seen = column.take(after, axis=0)
            seen[last] = bootstrap.take(trajectory[last], axis=0)
            found.append(seen)
        return found

    def _tensor(self, array: NDArray[Any]) -> Tensor:
        return torch.from_numpy(array).to(self._device, torch_dtype(array.dtype))


class Shuffled:
    """An endless stream of shuffled numbers, all of them once per epoch, each epoch in an order of its own.

    It is a function of the seed and the place alone: a run that goes on at gradient step k needs nothing but k.
    """

    def __init__(self, size: int, seed: int) -> None:
        """Take the number of numbers, at least 1."""
        self.size = size
        self._seed = seed
        self._epoch = -1
        self._order: LongArray = np.zeros(0, np.int64)

    def __call__(self, start: int, stop: int) -> LongArray:
        """Return the numbers in the places ``start`` to ``stop`` of the stream."""
        parts = []
        while start < stop:
            epoch, place = divmod(start, self.size)
            end = min(self.size, place + stop - start)
            parts.append(self._of(epoch)[place:end])
            start += end - place
        return np.concatenate(parts)

    def _of(self, epoch: int) -> LongArray:
        if epoch != self._epoch:
            generator = torch.Generator().manual_seed((self._seed + epoch * _MIX) % (1 << 63))
            self._order = torch.randperm(self.size, generator=generator).numpy()
            self._epoch = epoch
        return self._order


def held_out(packed: PackedSteps, fraction: float, seed: int) -> tuple[Parts, Parts]:
    """Return the steps to learn from and those held out.

    Whole trajectories are held out, the fewest that have the fraction of the steps, drawn by the seed; of too few
    trajectories the ends are.
    """
    start, stop = packed.offset[:-1].astype(np.int64), packed.offset[1:].astype(np.int64)
    if 0 < fraction * packed.num_trajectories < 1:
        cut = stop - np.ceil(fraction * (stop - start)).astype(np.int64)
        return Parts(start, cut), Parts(cut, stop)
    order = torch.randperm(packed.num_trajectories, generator=torch.Generator().manual_seed(seed)).numpy()
    steps = np.cumsum(packed.lengths[order], dtype=np.int64)
    count = int(np.searchsorted(steps, fraction * len(packed), side="left")) + 1 if fraction > 0 else 0
    learned, apart = np.sort(order[count:]), np.sort(order[:count])
    return Parts(start[learned], stop[learned]), Parts(start[apart], stop[apart])


def _taken(column: NDArray[Any], rows: LongArray) -> NDArray[Any]:
    """Return rows of a column, which may have no width."""
    return column.take(rows, axis=0) if column[:1].size else np.zeros((len(rows), *column.shape[1:]), column.dtype)


def tensors(found: Sequence[dict[str, Tensor]]) -> dict[str, NDArray[np.floating]]:
    """Return the statistics of gradient steps by their tags, read back from the device at once."""
    return {tag: torch.stack([one[tag] for one in found]).float().cpu().numpy() for tag in found[0]} if found else {}
