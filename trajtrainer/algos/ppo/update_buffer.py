"""The experience that an on-policy trainer has gathered for its next update: columns on the networks' device.

Shape legend: N rows so far (padding included), L sequence length, Q = N / L sequences, B packed steps, V reward
signals, H memory size, O an observation's own shape.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray
from torch import Tensor

from trajtrainer.algos.values import sequence_begins, sequence_offsets
from trajtrainer.core.columns import NEXT_OBSERVATIONS, Columns, Entry, Store, entries_of, sensor_name
from trajtrainer.core.spec import BehaviorSpec
from trajtrainer.core.steps import LongArray
from trajtrainer.data.trajectory import PackedSteps
from trajtrainer.nn.minibatch import Minibatch, in_order, torch_dtype

# Columns of the sequences [Q, H]; None for one that there is not.
Memories = Mapping[str, Tensor | None]


class UpdateBuffer:
    """Rows in order of arrival. With a memory, each trajectory begins a new sequence and ends in padding.

    Attributes:
        num_rows: N.
        sequence_length: L; 1 without a memory.
    """

    def __init__(
        self,
        spec: BehaviorSpec,
        obs_dtypes: Sequence[DTypeLike],
        *,
        num_signals: int,
        sequence_length: int,
        memory_size: int,
        critic_memory_size: int,
        capacity: int,
        device: torch.device,
        needs: Collection[str] = (),
        weighted: bool = False,
    ) -> None:
        """Take room for ``capacity`` rows; it grows when more come.

        Args:
            spec: of the behaviour.
            obs_dtypes: per sensor, f32 or u8.
            num_signals: V.
            sequence_length: L.
            memory_size: H of the actor; 0 without a memory.
            critic_memory_size: H of the critic; 0 where it has no memory of its own.
            capacity: rows.
            device: of the networks.
            needs: of the reward signals, see ``RewardSignal``.
            weighted: whether there are importance weights, the column ``weight`` f32 [N].
        """
        entries = entries_of(Store.UPDATE, spec, obs_dtypes, num_signals=num_signals)
        entries |= self._more(num_signals, weighted)
        if "done" in needs:
            entries["done"] = Entry(np.dtype(np.bool_), ())
        if NEXT_OBSERVATIONS in needs:
            sensors = range(len(obs_dtypes))
            entries |= {sensor_name(i, NEXT_OBSERVATIONS): entries[sensor_name(i)] for i in sensors}
        if memory_size:
            entries["loss_mask"] = Entry(np.dtype(np.float32), ())
        capacity = -(-capacity // sequence_length) * sequence_length
        self._device = device
        self._sequences = Columns(
            {
                name: torch.zeros(capacity // sequence_length, size, device=device)
                for name, size in self._memory_sizes(memory_size, critic_memory_size).items()
                if size
            }
        )
        self._set_rows(
            {
                name: torch.zeros(capacity, *entry.shape, dtype=torch_dtype(entry.dtype), device=device)
                for name, entry in entries.items()
            }
        )
        self.sequence_length = sequence_length
        self.num_rows = 0

    def _more(self, num_signals: int, weighted: bool) -> dict[str, Entry]:  # noqa: ARG002
        """Return the columns that it keeps beside those of the table."""
        return {"weight": Entry(np.dtype(np.float32), ())} if weighted else {}

    def _memory_sizes(self, memory_size: int, critic_memory_size: int) -> dict[str, int]:
        """Return the columns of the sequences with H of each."""
        return {"memory": memory_size, "critic_memory": critic_memory_size}

    @property
    def num_sequences(self) -> int:
        """Q."""
        return self.num_rows // self.sequence_length

    @property
    def capacity(self) -> int:
        """Rows there is room for."""
        return len(self._rows["advantage"])

    def column(self, name: str) -> Tensor:
        """Return the filled rows of a column, or of ``loss_mask`` where there is a memory, [N, ...]: a view."""
        return self._rows[name][: self.num_rows]

    def observed(self) -> tuple[Tensor, ...]:
        """Return what was observed, per sensor [B, *O]: the filled rows without padding."""
        mask, filled = self.loss_mask, [column[: self.num_rows] for column in self._rows.obs]
        return tuple(filled if mask is None else [column[mask > 0] for column in filled])

    @property
    def weight(self) -> Tensor | None:
        """Importance weights f32 [N], 0 in padding; None where there are none."""
        return self.column("weight") if "weight" in self._rows else None

    def sequences(self, name: str) -> Tensor:
        """Return the filled entries of ``memory`` or ``critic_memory``, f32 [Q, H]: a view."""
        return self._sequences[name][: self.num_sequences]

    @property
    def loss_mask(self) -> Tensor | None:
        """f32 [N], 0 in padding; None where there is none."""
        return self.column("loss_mask") if "loss_mask" in self._rows else None

    def reserve(self, num_steps: int) -> Columns[NDArray[Any]] | None:
        """Return where the next steps can be written directly, which saves ``append`` a copy of them.

        Returns:
            Views of the next ``num_steps`` rows; None where steps do not simply follow one another (padding), or stand
            on another device.
        """
        if self.sequence_length > 1 or self._host is None:
            return None
        self._grow(self.num_rows + num_steps)
        return self._host.slice(self.num_rows, self.num_rows + num_steps)

    def rows_for(self, packed: PackedSteps) -> LongArray:
        """Return the row that each step will have, i64 [B], when it is appended next."""
        places = self._places(packed, sequence_offsets(packed.lengths, self.sequence_length))
        return self.num_rows + (np.arange(len(packed)) if places is None else places)

    def append(self, packed: PackedSteps, learned: Mapping[str, NDArray[Any]], memories: Memories) -> None:
        """Add the rows of trajectories.

        Args:
            packed: the steps; columns that were gathered into ``reserve`` stay where they are.
            learned: columns of the same steps that ``packed`` does not have, or has otherwise, [B, ...].
            memories: the critic's, before each sequence.
        """
        first = sequence_offsets(packed.lengths, self.sequence_length)
        start, stop = self.num_rows, self.num_rows + int(first[-1]) * self.sequence_length
        self._grow(stop)
        self._write(packed, learned, start, stop, self._places(packed, first))
        if "memory" in self._sequences:
            begins = sequence_begins(packed, self.sequence_length)
            self._sequences["memory"][self.num_sequences : stop // self.sequence_length] = torch.from_numpy(
                packed["memory"][begins]
            )
        for name, memory in memories.items():
            if memory is not None:
                self._sequences[name][self.num_sequences : stop // self.sequence_length] = memory
        self.num_rows = stop

    def clear(self) -> None:
        """Drop everything."""
        self.num_rows = 0

    def minibatches(self, order: Tensor, batch_size: int, columns: Mapping[str, Tensor]) -> Iterator[Minibatch]:
        """Yield sequences in an order. Those at its end that fill no minibatch are left out.

        Args:
            order: i64 [any], numbers of sequences: a permutation, or several.
            batch_size: rows; rounded down to whole sequences, at least one.
            columns: to be given instead of or beside the buffer's, [N, ...].
        """
        rows = self._rows.slice(0, self.num_rows).with_columns(columns)
        yield from in_order(rows, self._sequences, order, batch_size, self.sequence_length)

    def _write(
        self, packed: PackedSteps, learned: Mapping[str, NDArray[Any]], start: int, stop: int, places: LongArray | None
    ) -> None:
        """Write steps into the rows ``start`` to ``stop``, one after the other or with padding in between."""
        block = self._rows_of(start, stop)
        if sensor_name(0, NEXT_OBSERVATIONS) in block:
            learned = {**learned, **_following(packed)}
        is_there = places is None and _address(packed.obs[0]) == _address(block.obs[0])
        for name, column in block.items():
            values = learned.get(name)
            if values is None:
                values = np.ones(len(packed), np.float32) if name == "loss_mask" else packed[name]
            if places is not None:
                column[:] = 0
                column[places] = values
            elif not (is_there and values.base is column.base):
                column[:] = values
            if self._host is None:
                self._rows[name][start:stop] = torch.from_numpy(column)

    def _rows_of(self, start: int, stop: int) -> Columns[NDArray[Any]]:
        """Return the rows ``start`` to ``stop`` to write into; of another device, others to be copied there."""
        if self._host is not None:
            return self._host.slice(start, stop)
        return self._rows.map(lambda column: np.empty((stop - start, *column.shape[1:]), _numpy_dtype(column)))

    def _places(self, packed: PackedSteps, first: LongArray) -> LongArray | None:
        """Return where the steps go behind what there is, [B]; None for one after the other, without padding."""
        if self.sequence_length == 1:
            return None
        places: LongArray = np.arange(len(packed)) + np.repeat(
            first[:-1] * self.sequence_length - packed.offset[:-1], packed.lengths
        )
        return places

    def _set_rows(self, rows: dict[str, Tensor]) -> None:
        self._rows = Columns(rows)
        # Numpy slices in a fraction of torch's time, which counts where few steps come at a time.
        self._host = self._rows.map(Tensor.numpy) if self._device.type == "cpu" else None

    def _grow(self, rows: int) -> None:
        if rows <= self.capacity:
            return
        capacity = -(-max(rows, 2 * self.capacity) // self.sequence_length) * self.sequence_length
        self._set_rows({name: _longer(column, capacity) for name, column in self._rows.items()})
        sequences = capacity // self.sequence_length
        self._sequences = self._sequences.map(lambda column: _longer(column, sequences))


def _following(packed: PackedSteps) -> dict[str, NDArray[Any]]:
    """Return what was observed after each step, per sensor [B, *O]."""
    found = {}
    for number, (sensor, after) in enumerate(zip(packed.obs, packed.bootstrap.obs, strict=True)):
        following = np.empty_like(sensor)
        following[:-1] = sensor[1:]
        following[packed.offset[1:] - 1] = after
        found[sensor_name(number, NEXT_OBSERVATIONS)] = following
    return found


def _address(array: NDArray[Any]) -> int:
    return int(array.__array_interface__["data"][0])


def _numpy_dtype(column: Tensor) -> np.dtype[Any]:
    dtype: np.dtype[Any] = torch.empty(0, dtype=column.dtype).numpy().dtype
    return dtype


def _longer(column: Tensor, length: int) -> Tensor:
    longer = column.new_zeros(length, *column.shape[1:])
    longer[: len(column)] = column
    return longer
