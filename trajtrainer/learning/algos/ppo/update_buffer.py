"""The buffer in which an on-policy algorithm collects experience for its next update, on the networks' device.

Shape legend: N filled rows (including padding), L sequence length, Q = N / L sequences, B packed steps, V reward
signals, H memory size, O an observation's own shape.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray
from torch import Tensor

from trajtrainer.core.columns import (
    NEXT_OBSERVATIONS,
    OBSERVATIONS,
    ColumnEntry,
    Columns,
    Store,
    entries_of,
    sensor_name,
)
from trajtrainer.core.spec import BehaviorSpec
from trajtrainer.core.steps import LongArray
from trajtrainer.experience.trajectory import PackedSteps
from trajtrainer.learning.algos.values import sequence_begins, sequence_offsets
from trajtrainer.learning.nn.minibatch import Minibatch, in_order, torch_dtype

# Memories [Q, H] before each sequence, by name; None for a network without a memory.
Memories = Mapping[str, Tensor | None]


class UpdateBuffer:
    """Rows in order of arrival. With a memory, each trajectory starts a new sequence and is padded to whole sequences.

    Attributes:
        num_rows: N, the number of filled rows.
        sequence_length: L; 1 without a memory.
    """

    def __init__(
        self,
        spec: BehaviorSpec,
        obs_dtypes: Sequence[DTypeLike],
        *,
        num_signals: int,
        sequence_length: int,
        memories: Mapping[str, int],
        capacity: int,
        device: torch.device,
        more: Mapping[str, ColumnEntry] | None = None,
        needs: Collection[str] = (),
    ) -> None:
        """Allocate ``capacity`` rows; the buffer grows if more arrive.

        Args:
            spec: the agents' observations and actions.
            obs_dtypes: dtype of each sensor's observations, f32 or u8.
            num_signals: V.
            sequence_length: L.
            memories: H of the actor's ``memory`` and of the ``critic_memory``; 0 for a network without a memory.
            capacity: number of rows to allocate.
            device: the device of the networks.
            more: columns in addition to the standard ones (``entries_of``).
            needs: additional columns that the reward signals need (``RewardSignal.needs``).
        """
        entries = entries_of(Store.UPDATE, spec, obs_dtypes, num_signals=num_signals) | dict(more or {})
        if "done" in needs:
            entries["done"] = ColumnEntry(np.dtype(np.bool_), ())
        if NEXT_OBSERVATIONS in needs:
            sensors = range(len(obs_dtypes))
            entries |= {sensor_name(i, NEXT_OBSERVATIONS): entries[sensor_name(i)] for i in sensors}
        if memories["memory"]:
            entries["loss_mask"] = ColumnEntry(np.dtype(np.float32), ())
        self.sequence_length = sequence_length
        self.num_rows = 0
        self._device = device
        rows = {name: torch.zeros(0, *one.shape, dtype=torch_dtype(one.dtype)) for name, one in entries.items()}
        sequences = {name: torch.zeros(0, size) for name, size in memories.items() if size}
        self._resize(Columns(rows), Columns(sequences), capacity)

    @property
    def num_sequences(self) -> int:
        """The number of sequences, Q."""
        return self.num_rows // self.sequence_length

    @property
    def capacity(self) -> int:
        """The number of rows the buffer can hold without growing."""
        return len(self._rows["advantage"])

    def column(self, name: str) -> Tensor:
        """Return a view of the filled rows of a column, [N, ...]."""
        return self._rows[name][: self.num_rows]

    def real(self, name: str) -> Tensor:
        """Return the filled rows of a column without padding, [B, ...]."""
        column, mask = self.column(name), self.loss_mask
        return column if mask is None else column[mask > 0]

    def sequences(self, name: str) -> Tensor:
        """Return a view of the filled entries of a memory, f32 [Q, H]."""
        return self._sequences[name][: self.num_sequences]

    @property
    def loss_mask(self) -> Tensor | None:
        """The loss mask, f32 [N], 0 for padding; None without a memory."""
        return self.column("loss_mask") if "loss_mask" in self._rows else None

    @property
    def weight(self) -> Tensor | None:
        """The importance weights, f32 [N], 0 for padding; None if there are no importance weights."""
        return self.column("weight") if "weight" in self._rows else None

    @property
    def observations(self) -> tuple[Tensor, ...]:
        """Views of each sensor's filled rows, [N, *O]."""
        return tuple(column[: self.num_rows] for column in self._rows.obs)

    def observed(self) -> tuple[Tensor, ...]:
        """Return each sensor's observations without padding, [B, *O]."""
        mask, filled = self.loss_mask, self.observations
        return filled if mask is None else tuple(column[mask > 0] for column in filled)

    def reserve(self, num_steps: int) -> Columns[NDArray[Any]] | None:
        """Return views of the next ``num_steps`` rows, so that ``append`` does not have to copy them.

        The trainer passes them to ``ExperienceSource.drain_into``, which gathers trajectories into them. ``append``
        checks by memory address whether a column is already in place. Returns None with padding, or if numpy cannot
        write to the device; ``append`` then copies the rows.
        """
        if self.sequence_length > 1 or self._host is None:
            return None
        self._grow(self.num_rows + num_steps)
        return self._host.slice(self.num_rows, self.num_rows + num_steps)

    def places(self, packed: PackedSteps) -> LongArray:
        """Return the row at which ``append`` will store each step, i64 [B]."""
        first = sequence_offsets(packed.lengths, self.sequence_length)[:-1] * self.sequence_length
        return self.num_rows + np.arange(len(packed)) + np.repeat(first - packed.offset[:-1], packed.lengths)

    def append(self, packed: PackedSteps, learned: Mapping[str, NDArray[Any]], memories: Memories) -> None:
        """Add trajectories.

        Args:
            packed: the steps. Columns that were gathered into reserved rows are not copied.
            learned: columns [B, ...] that are added to those of ``packed`` or replace them.
            memories: the critic's memories before each sequence.
        """
        length, start = self.sequence_length, self.num_rows
        stop = start + int(sequence_offsets(packed.lengths, length)[-1]) * length
        self._grow(stop)
        learned = {"loss_mask": np.ones(len(packed), np.float32), **learned}
        if sensor_name(0, NEXT_OBSERVATIONS) in self._rows:
            for sensor, (seen, after) in enumerate(zip(packed.obs, packed.bootstrap.obs, strict=True)):
                following = np.empty_like(seen)
                following[:-1] = seen[1:]
                following[packed.offset[1:] - 1] = after
                learned[sensor_name(sensor, NEXT_OBSERVATIONS)] = following
        places = self.places(packed) if length > 1 else np.arange(start, stop)
        for name, column in self._block(start, stop).items():
            values = learned[name] if name in learned else packed[name]
            if length > 1:
                column[:] = 0
                column[places - start] = values
            elif _address(values) != _address(column):  # not already written into the reserved rows
                column[:] = values
            if self._host is None:
                self._rows[name][start:stop] = torch.from_numpy(column)
        if "memory" in self._sequences:
            begins = sequence_begins(packed, length)
            memories = {"memory": torch.from_numpy(packed["memory"][begins]), **memories}
        for name, memory in memories.items():
            if memory is not None:
                self._sequences[name][start // length : stop // length] = memory
        self.num_rows = stop

    def clear(self) -> None:
        self.num_rows = 0

    def minibatches(self, order: Tensor, batch_size: int, columns: Mapping[str, Tensor]) -> Iterator[Minibatch]:
        """Yield sequences in the given order as minibatches. An incomplete last minibatch is dropped.

        Args:
            order: indices of sequences, i64 [any]: one or more permutations.
            batch_size: number of rows per minibatch, rounded down to whole sequences, but at least one sequence.
            columns: columns [N, ...] that are added to the buffer's or replace them; ``encoded`` replaces the
                observations.
        """
        rows = self._rows.slice(0, self.num_rows).with_columns(columns)
        if "encoded" in columns:
            rows = rows.without_sensors(OBSERVATIONS)
        yield from in_order(rows, self._sequences, order, batch_size, self.sequence_length)

    def _block(self, start: int, stop: int) -> Columns[NDArray[Any]]:
        """Return the rows to write to: those of the buffer or, if it is not in host memory, temporary ones to copy."""
        if self._host is not None:
            return self._host.slice(start, stop)
        return self._rows.map(lambda column: torch.empty(stop - start, *column.shape[1:], dtype=column.dtype).numpy())

    def _grow(self, rows: int) -> None:
        if rows > self.capacity:
            self._resize(self._rows, self._sequences, max(rows, 2 * self.capacity))

    def _resize(self, rows: Columns[Tensor], sequences: Columns[Tensor], capacity: int) -> None:
        def longer(column: Tensor, length: int) -> Tensor:
            found = torch.zeros(length, *column.shape[1:], dtype=column.dtype, device=self._device)
            found[: len(column)] = column
            return found

        count = -(-capacity // self.sequence_length)
        self._sequences = sequences.map(lambda column: longer(column, count))
        self._rows = rows.map(lambda column: longer(column, count * self.sequence_length))
        # Slicing is much faster in numpy than in torch, which matters if few steps arrive at a time.
        self._host = self._rows.map(Tensor.numpy) if self._device.type == "cpu" else None


def _address(array: NDArray[Any]) -> int:
    return int(array.__array_interface__["data"][0])
