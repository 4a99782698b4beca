"""Step batches and actions as columns in shared memory, for the writer and the reader.

The memory starts with a header of int32 numbers: the number of behaviors, then the index, N and T of each behavior. The
columns follow, each aligned to 64 bytes. Both processes announce the same behaviors in the same order, so the header
determines where each column is. The writer creates the memory and replaces it when it needs more.

Shape legend: N agents, T terminal rows.
"""

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from math import prod
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from trajtrainer.core.columns import ColumnEntry, Columns, Store, entries_of
from trajtrainer.core.spec import ActionSpec, BehaviorSpec
from trajtrainer.core.steps import ActionBatch, StepBatch
from trajtrainer.envs.workers.shared_memory import MemoryAddress, SharedMemory

_ALIGNMENT = 64
_COUNT = struct.Struct("<i")
_BEHAVIOR = struct.Struct("<iii")  # index, N, T
_FIRST_BYTES = 32768
# Number of headers whose batches are cached. Most messages have the same counts as an earlier message.
_MOST_KEPT = 64

_FIELDS = tuple(field.name for field in fields(StepBatch) if field.name not in ("obs", "num_terminal"))
_INTERRUPTED = "interrupted"  # the only column with T rows

Batch = TypeVar("Batch")


class _SharedBatches(Generic[Batch]):
    """Batches of the behaviors announced so far, for reading or writing.

    Attributes:
        memory: the shared memory; None before the first message.
    """

    def __init__(self) -> None:
        self.memory: SharedMemory | None = None
        self._layouts: list[tuple[str, Mapping[str, ColumnEntry]]] = []
        self._indices: dict[str, int] = {}
        self._kept: dict[bytes, dict[str, Batch]] = {}

    def __contains__(self, behavior_id: str) -> bool:
        return behavior_id in self._indices

    def open(self, address: MemoryAddress) -> None:
        """Switch to the new memory that the writer has created."""
        self._use(SharedMemory.open(address))

    def unlink(self) -> None:
        """Release the name of the memory. The writer calls this once the reader has opened the memory."""
        if self.memory is not None:
            self.memory.unlink()

    def clear(self) -> None:
        """Drop all behaviors and close the memory, to prepare for another environment."""
        self._layouts, self._indices = [], {}
        self._use(None)

    def read(self) -> dict[str, Batch]:
        """Return the batches written last. They are views of the memory, which the next ``write`` overwrites."""
        buffer = self._buffer
        (count,) = _COUNT.unpack(buffer[: _COUNT.size].tobytes())
        return dict(self._batches(buffer[: _COUNT.size + count * _BEHAVIOR.size].tobytes()))

    @property
    def _buffer(self) -> NDArray[np.uint8]:
        assert self.memory is not None
        return self.memory.buffer

    def _use(self, memory: SharedMemory | None) -> None:
        former, self.memory = self.memory, memory
        self._kept = {}
        if former is not None:
            former.close()

    def _add(self, behavior_id: str, entries: Mapping[str, ColumnEntry]) -> None:
        self._indices[behavior_id] = len(self._layouts)
        self._layouts.append((behavior_id, entries))

    def _begin(self, counts: Mapping[str, tuple[int, int]]) -> tuple[dict[str, Batch], MemoryAddress | None]:
        """Write the header. Return the batches to fill, and the address of the memory if it is new."""
        numbers = [len(counts)]
        for behavior_id, own in counts.items():
            numbers += (self._indices[behavior_id], *own)
        header = struct.pack(f"<{len(numbers)}i", *numbers)
        address = None
        if header not in self._kept:
            size = _aligned(len(header)) + sum(
                _size_of(_shape(name, entry, own), entry)
                for _, own, entries in self._behaviors(header)
                for name, entry in entries.items()
            )
            if self.memory is None or size > len(self.memory.buffer):
                memory = SharedMemory.create(max(_FIRST_BYTES, 2 * size))
                address = memory.address
                self._use(memory)
        self._buffer[: len(header)] = np.frombuffer(header, np.uint8)
        return self._batches(header), address

    def _batches(self, header: bytes) -> dict[str, Batch]:
        """Return views of the memory at the columns of a message with this header."""
        batches = self._kept.get(header)
        if batches is not None:
            return batches
        if len(self._kept) >= _MOST_KEPT:
            self._kept.clear()
        batches = self._kept[header] = {}
        position = _aligned(len(header))
        for behavior_id, counts, entries in self._behaviors(header):
            arrays: dict[str, NDArray[Any]] = {}
            for name, entry in entries.items():
                shape = _shape(name, entry, counts)
                arrays[name] = np.ndarray(shape, entry.dtype, self._buffer, position)
                position += _size_of(shape, entry)
            batches[behavior_id] = self._batch(Columns(arrays), counts)
        return batches

    def _behaviors(self, header: bytes) -> Iterator[tuple[str, tuple[int, int], Mapping[str, ColumnEntry]]]:
        for index, agents, terminal in _BEHAVIOR.iter_unpack(header[_COUNT.size :]):
            behavior_id, entries = self._layouts[index]
            yield behavior_id, (agents, terminal), entries

    def _batch(self, columns: Columns[NDArray[Any]], counts: tuple[int, int]) -> Batch:
        raise NotImplementedError


class SharedSteps(_SharedBatches[StepBatch]):
    """The step batches of one event: the child writes, the parent reads."""

    def announce(self, behavior_id: str, spec: BehaviorSpec, types: Sequence[str]) -> None:
        """Announce a behavior; ``types`` are the numpy types of its observations."""
        self._add(behavior_id, {**entries_of(Store.EVENT, spec, types), _INTERRUPTED: ColumnEntry(np.dtype("?"), ())})

    def write(self, steps: Mapping[str, StepBatch]) -> MemoryAddress | None:
        """Write batches of announced behaviors; return the address of the memory if it is new to the reader."""
        targets, address = self._begin({name: (len(batch), batch.num_terminal) for name, batch in steps.items()})
        for target, source in zip(targets.values(), steps.values(), strict=True):
            for name in _FIELDS:
                getattr(target, name)[:] = getattr(source, name)
            for column, values in zip(target.obs, source.obs, strict=True):
                column[:] = values
        return address

    def _batch(self, columns: Columns[NDArray[Any]], counts: tuple[int, int]) -> StepBatch:
        return StepBatch(obs=columns.obs, num_terminal=counts[1], **{name: columns[name] for name in _FIELDS})


class SharedActions(_SharedBatches[ActionBatch]):
    """The actions for one event: the parent writes, the child reads. T is 0."""

    def announce(self, behavior_id: str, spec: ActionSpec) -> None:
        """Announce a behavior."""
        continuous = ColumnEntry(np.dtype("<f4"), (spec.continuous_size,))
        self._add(
            behavior_id, {"continuous": continuous, "discrete": ColumnEntry(np.dtype("<i4"), (spec.discrete_size,))}
        )

    def write(self, actions: Mapping[str, ActionBatch]) -> MemoryAddress | None:
        """Write the actions that an environment needs: ``env_continuous`` and ``discrete``. See ``SharedSteps``."""
        targets, address = self._begin({name: (len(batch), 0) for name, batch in actions.items()})
        for target, source in zip(targets.values(), actions.values(), strict=True):
            target.env_continuous[:] = source.env_continuous
            target.discrete[:] = source.discrete
        return address

    def _batch(self, columns: Columns[NDArray[Any]], counts: tuple[int, int]) -> ActionBatch:
        continuous, discrete = columns["continuous"], columns["discrete"]
        nothing = np.zeros((counts[0], 0), np.float32)
        return ActionBatch(continuous, discrete, continuous, nothing, nothing[:, :0].sum(1), nothing, 0)


def _shape(name: str, entry: ColumnEntry, counts: tuple[int, int]) -> tuple[int, ...]:
    return (counts[name == _INTERRUPTED], *entry.shape)


def _size_of(shape: tuple[int, ...], entry: ColumnEntry) -> int:
    return _aligned(prod(shape) * entry.dtype.itemsize)


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT
