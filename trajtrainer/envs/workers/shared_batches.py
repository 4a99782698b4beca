"""Step batches and actions as columns in shared memory, for both ends of it.

The memory begins with int32 numbers: how many behaviours, then for each its index among those announced and how many
rows it has. The columns follow, each at a multiple of 64 bytes. Both ends announce the same behaviours in the same
order, so these numbers tell where everything is.

Shape legend: N agents, T terminal rows.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import fields
from math import prod
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from trajtrainer.core.columns import Columns, Entry, Store, entries_of
from trajtrainer.core.spec import ActionSpec, BehaviorSpec
from trajtrainer.core.steps import ActionBatch, StepBatch
from trajtrainer.envs.workers.shared_memory import SharedMemory

_ALIGNMENT = 64
_NUMBER = struct.Struct("<i")
# Arrays over the memory are kept for so many different row counts. Most messages have the counts of one before them.
_MOST_KEPT = 64

# The fields of a step batch that are columns, but for its observations.
_FIELDS = tuple(field.name for field in fields(StepBatch) if field.name not in ("obs", "num_terminal"))

Batch = TypeVar("Batch")


# Name -> type and shape of an entry.
_Entries = Mapping[str, Entry]

_INTERRUPTED = "interrupted"  # the one column with T rows


class _Layout(NamedTuple):
    """The columns of a behaviour."""

    behavior_id: str
    entries: _Entries


class _SharedBatches(Generic[Batch]):
    """Reads or writes batches of the behaviours announced so far.

    Attributes:
        memory: may be replaced by ``use``.
    """

    num_counts: int

    def __init__(self, memory: SharedMemory) -> None:
        self.memory = memory
        self._layouts: list[_Layout] = []
        self._indices: dict[str, int] = {}
        self._kept: dict[bytes, dict[str, Batch]] = {}

    def __contains__(self, behavior_id: str) -> bool:
        return behavior_id in self._indices

    def use(self, memory: SharedMemory) -> None:
        """Go over to other memory and close the one so far."""
        former, self.memory = self.memory, memory
        self._kept = {}
        former.close()

    def forget(self) -> None:
        """Forget all behaviours, for another environment."""
        self._layouts, self._indices, self._kept = [], {}, {}

    def close(self) -> None:
        """Close the memory."""
        self.forget()
        self.memory.close()

    def _add(self, behavior_id: str, entries: _Entries) -> None:
        self._indices[behavior_id] = len(self._layouts)
        self._layouts.append(_Layout(behavior_id, entries))

    def _header(self, counts: Mapping[str, tuple[int, ...]]) -> bytes:
        numbers = [len(counts)]
        for behavior_id, own in counts.items():
            numbers += (self._indices[behavior_id], *own)
        return struct.pack(f"<{len(numbers)}i", *numbers)

    def _read_header(self) -> bytes:
        (count,) = _NUMBER.unpack(self.memory.buffer[: _NUMBER.size].tobytes())
        return self.memory.buffer[: _NUMBER.size * (1 + count * (1 + self.num_counts))].tobytes()

    def _write_header(self, header: bytes) -> None:
        self.memory.buffer[: len(header)] = np.frombuffer(header, np.uint8)

    def _size(self, header: bytes) -> int:
        return _aligned(len(header)) + sum(
            _size_of(name, entry, counts)
            for layout, counts in self._parts(header)
            for name, entry in layout.entries.items()
        )

    def _batches(self, header: bytes) -> dict[str, Batch]:
        """Return arrays over the memory, where a message with this header has its columns."""
        known = self._kept.get(header)
        if known is None:
            if len(self._kept) >= _MOST_KEPT:
                self._kept.clear()
            known = self._kept[header] = self._make(header)
        return known

    def _make(self, header: bytes) -> dict[str, Batch]:
        position = _aligned(len(header))
        batches: dict[str, Batch] = {}
        for layout, counts in self._parts(header):
            arrays: dict[str, NDArray[Any]] = {}
            for name, entry in layout.entries.items():
                shape = (_length(name, counts), *entry.shape)
                arrays[name] = np.ndarray(shape, entry.dtype, self.memory.buffer, position)
                position += _size_of(name, entry, counts)
            batches[layout.behavior_id] = self._batch(Columns(arrays), counts)
        return batches

    def _parts(self, header: bytes) -> list[tuple[_Layout, tuple[int, ...]]]:
        numbers = struct.unpack(f"<{len(header) // _NUMBER.size}i", header)
        step = 1 + self.num_counts
        return [
            (self._layouts[numbers[at]], numbers[at + 1 : at + step]) for at in range(1, 1 + numbers[0] * step, step)
        ]

    def _batch(self, columns: Columns[NDArray[Any]], counts: tuple[int, ...]) -> Batch:
        raise NotImplementedError


class SharedSteps(_SharedBatches[StepBatch]):
    """The step batches of one event. The child writes, the parent reads."""

    num_counts = 2  # N and T

    def announce(self, behavior_id: str, spec: BehaviorSpec, types: Sequence[str]) -> None:
        """Announce a behaviour of which agents may come; ``types`` are the numpy types of its observations."""
        entries = entries_of(Store.EVENT, spec, types)
        self._add(behavior_id, {**entries, _INTERRUPTED: Entry(np.dtype("?"), ())})

    def room_for(self, steps: Mapping[str, StepBatch]) -> int:
        """Return how many bytes ``write`` needs."""
        return self._size(self._header(_counts(steps)))

    def write(self, steps: Mapping[str, StepBatch]) -> None:
        """Write batches of announced behaviours into the memory, which must have room for them."""
        header = self._header(_counts(steps))
        for target, source in zip(self._batches(header).values(), steps.values(), strict=True):
            for name in _FIELDS:
                getattr(target, name)[:] = getattr(source, name)
            for column, values in zip(target.obs, source.obs, strict=True):
                column[:] = values
        self._write_header(header)

    def read(self) -> dict[str, StepBatch]:
        """Return what was written last, as arrays over the memory: they change with the next ``write``."""
        return dict(self._batches(self._read_header()))

    def _batch(self, columns: Columns[NDArray[Any]], counts: tuple[int, ...]) -> StepBatch:
        return StepBatch(obs=columns.obs, num_terminal=counts[1], **{name: columns[name] for name in _FIELDS})


class SharedActions(_SharedBatches[ActionBatch]):
    """What the agents of one worker shall do. The parent writes, the child reads."""

    num_counts = 1  # N

    def announce(self, behavior_id: str, spec: ActionSpec) -> None:
        """Announce a behaviour for which actions may come from now on."""
        continuous = Entry(np.dtype("<f4"), (spec.continuous_size,))
        self._add(behavior_id, {"continuous": continuous, "discrete": Entry(np.dtype("<i4"), (spec.discrete_size,))})

    def room_for(self, actions: Mapping[str, ActionBatch]) -> int:
        """Return how many bytes ``write`` needs."""
        return self._size(self._header({name: (len(batch),) for name, batch in actions.items()}))

    def write(self, actions: Mapping[str, ActionBatch]) -> None:
        """Write actions of announced behaviours into the memory, which must have room for them."""
        header = self._header({name: (len(batch),) for name, batch in actions.items()})
        for target, source in zip(self._batches(header).values(), actions.values(), strict=True):
            target.env_continuous[:] = source.env_continuous
            target.discrete[:] = source.discrete
        self._write_header(header)

    def read(self) -> dict[str, ActionBatch]:
        """Return what was written last, only what an environment needs of it: ``env_continuous`` and ``discrete``."""
        return dict(self._batches(self._read_header()))

    def _batch(self, columns: Columns[NDArray[Any]], counts: tuple[int, ...]) -> ActionBatch:
        continuous, discrete = columns["continuous"], columns["discrete"]
        nothing = np.zeros((counts[0], 0), np.float32)
        return ActionBatch(continuous, discrete, continuous, nothing, nothing[:, :0].sum(1), nothing, 0)


def _counts(steps: Mapping[str, StepBatch]) -> dict[str, tuple[int, int]]:
    return {name: (len(batch), batch.num_terminal) for name, batch in steps.items()}


def _length(name: str, counts: tuple[int, ...]) -> int:
    return counts[name == _INTERRUPTED]


def _size_of(name: str, entry: Entry, counts: tuple[int, ...]) -> int:
    return _aligned(_length(name, counts) * prod(entry.shape) * entry.dtype.itemsize)


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT
