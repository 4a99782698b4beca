"""Step batches and actions as columns in shared memory, for both ends of it.

The memory begins with int32 numbers: how many behaviors, then for each its index among those announced and how many
rows it has. The columns follow, each at a multiple of 64 bytes. Both ends announce the same behaviors in the same
order, so these numbers say where everything is. The writer makes the memory, and larger memory when it needs it.

Shape legend: N agents, T terminal rows.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import fields
from math import prod
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from trajtrainer.core.columns import Columns, Entry, Store, entries_of
from trajtrainer.core.spec import ActionSpec, BehaviorSpec
from trajtrainer.core.steps import ActionBatch, StepBatch
from trajtrainer.workers.shared_memory import MemoryAddress, SharedMemory

_ALIGNMENT = 64
_NUMBER = struct.Struct("<i")
_FIRST_BYTES = 32768
# Arrays over the memory are kept for so many different row counts. Most messages have the counts of one before them.
_MOST_KEPT = 64

# The fields of a step batch that are columns, but for its observations.
_FIELDS = tuple(field.name for field in fields(StepBatch) if field.name not in ("obs", "num_terminal"))

Batch = TypeVar("Batch")


# Name -> type and shape of an entry.
_Entries = Mapping[str, Entry]

_INTERRUPTED = "interrupted"  # the one column with T rows


class _SharedBatches(Generic[Batch]):
    """Reads or writes batches of the behaviors announced so far."""

    num_counts: int

    def __init__(self) -> None:
        self.memory: SharedMemory | None = None
        self._layouts: list[tuple[str, _Entries]] = []
        self._indices: dict[str, int] = {}
        self._kept: dict[bytes, dict[str, Batch]] = {}

    def __contains__(self, behavior_id: str) -> bool:
        return behavior_id in self._indices

    def open(self, address: MemoryAddress) -> None:
        """Read from new memory of the writer's from now on."""
        self._use(SharedMemory.open(address))

    def unlink(self) -> None:
        """Free the name of the writer's memory, once the reader has opened it."""
        if self.memory is not None:
            self.memory.unlink()

    def forget(self) -> None:
        """Forget all behaviors and close the memory, for another environment."""
        self._layouts, self._indices = [], {}
        self._use(None)

    def read(self) -> dict[str, Batch]:
        """Return what was written last, as arrays over the memory: they change with the next ``write``."""
        buffer = self._buffer
        (count,) = _NUMBER.unpack(buffer[: _NUMBER.size].tobytes())
        header = buffer[: _NUMBER.size * (1 + count * (1 + self.num_counts))].tobytes()
        return dict(self._batches(header))

    @property
    def _buffer(self) -> NDArray[np.uint8]:
        assert self.memory is not None
        return self.memory.buffer

    def _use(self, memory: SharedMemory | None) -> None:
        former, self.memory = self.memory, memory
        self._kept = {}
        if former is not None:
            former.close()

    def _begin(self, counts: Mapping[str, tuple[int, ...]]) -> tuple[dict[str, Batch], MemoryAddress | None]:
        """Write the numbers; return the arrays to be filled, and the address of the memory if it had to be made."""
        numbers = [len(counts)]
        for behavior_id, own in counts.items():
            numbers += (self._indices[behavior_id], *own)
        header = struct.pack(f"<{len(numbers)}i", *numbers)
        address = None
        if header not in self._kept:
            size = _aligned(len(header)) + sum(
                _size_of(name, entry, own) for _, entries, own in self._parts(header) for name, entry in entries.items()
            )
            if self.memory is None or size > self.memory.size:
                memory = SharedMemory.create(max(_FIRST_BYTES, 2 * size))
                address = memory.address
                self._use(memory)
        self._buffer[: len(header)] = np.frombuffer(header, np.uint8)
        return self._batches(header), address

    def _add(self, behavior_id: str, entries: _Entries) -> None:
        self._indices[behavior_id] = len(self._layouts)
        self._layouts.append((behavior_id, entries))

    def _batches(self, header: bytes) -> dict[str, Batch]:
        """Return arrays over the memory, where a message with this header has its columns."""
        batches = self._kept.get(header)
        if batches is not None:
            return batches
        if len(self._kept) >= _MOST_KEPT:
            self._kept.clear()
        position = _aligned(len(header))
        batches = self._kept[header] = {}
        for behavior_id, entries, counts in self._parts(header):
            arrays: dict[str, NDArray[Any]] = {}
            for name, entry in entries.items():
                shape = (_length(name, counts), *entry.shape)
                arrays[name] = np.ndarray(shape, entry.dtype, self._buffer, position)
                position += _size_of(name, entry, counts)
            batches[behavior_id] = self._batch(Columns(arrays), counts)
        return batches

    def _parts(self, header: bytes) -> list[tuple[str, _Entries, tuple[int, ...]]]:
        numbers = struct.unpack(f"<{len(header) // _NUMBER.size}i", header)
        step = 1 + self.num_counts
        return [
            (*self._layouts[numbers[at]], numbers[at + 1 : at + step]) for at in range(1, 1 + numbers[0] * step, step)
        ]

    def _batch(self, columns: Columns[NDArray[Any]], counts: tuple[int, ...]) -> Batch:
        raise NotImplementedError


class SharedSteps(_SharedBatches[StepBatch]):
    """The step batches of one event. The child writes, the parent reads."""

    num_counts = 2  # N and T

    def announce(self, behavior_id: str, spec: BehaviorSpec, types: Sequence[str]) -> None:
        """Announce a behavior of which agents may come; ``types`` are the numpy types of its observations."""
        entries = entries_of(Store.EVENT, spec, types)
        self._add(behavior_id, {**entries, _INTERRUPTED: Entry(np.dtype("?"), ())})

    def write(self, steps: Mapping[str, StepBatch]) -> MemoryAddress | None:
        """Write batches of announced behaviors; return the address of the memory if it is new to the reader."""
        targets, address = self._begin({name: (len(batch), batch.num_terminal) for name, batch in steps.items()})
        for target, source in zip(targets.values(), steps.values(), strict=True):
            for name in _FIELDS:
                getattr(target, name)[:] = getattr(source, name)
            for column, values in zip(target.obs, source.obs, strict=True):
                column[:] = values
        return address

    def _batch(self, columns: Columns[NDArray[Any]], counts: tuple[int, ...]) -> StepBatch:
        return StepBatch(obs=columns.obs, num_terminal=counts[1], **{name: columns[name] for name in _FIELDS})


class SharedActions(_SharedBatches[ActionBatch]):
    """The actions of the agents of one worker. The parent writes, the child reads."""

    num_counts = 1  # N

    def announce(self, behavior_id: str, spec: ActionSpec) -> None:
        """Announce a behavior for which actions may come from now on."""
        continuous = Entry(np.dtype("<f4"), (spec.continuous_size,))
        self._add(behavior_id, {"continuous": continuous, "discrete": Entry(np.dtype("<i4"), (spec.discrete_size,))})

    def write(self, actions: Mapping[str, ActionBatch]) -> MemoryAddress | None:
        """Write actions of announced behaviors; return the address of the memory if it is new to the reader.

        Only what an environment needs: ``env_continuous`` and ``discrete``.
        """
        targets, address = self._begin({name: (len(batch),) for name, batch in actions.items()})
        for target, source in zip(targets.values(), actions.values(), strict=True):
            target.env_continuous[:] = source.env_continuous
            target.discrete[:] = source.discrete
        return address

    def _batch(self, columns: Columns[NDArray[Any]], counts: tuple[int, ...]) -> ActionBatch:
        continuous, discrete = columns["continuous"], columns["discrete"]
        nothing = np.zeros((counts[0], 0), np.float32)
        return ActionBatch(continuous, discrete, continuous, nothing, nothing[:, :0].sum(1), nothing, 0)


def _length(name: str, counts: tuple[int, ...]) -> int:
    return counts[name == _INTERRUPTED]


def _size_of(name: str, entry: Entry, counts: tuple[int, ...]) -> int:
    return _aligned(_length(name, counts) * prod(entry.shape) * entry.dtype.itemsize)


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT
