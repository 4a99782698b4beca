"""A replay buffer: a ring of rows in which the next observation of a step is in the following row.

Shape legend: R rows of the ring, B packed steps, S trajectories, L sequence length, Q sequences, H memory size,
n sampled sequences, b sampled rows (n * L), O an observation's own shape.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from trajtrainer.core.columns import (
    NEXT_MASK,
    NEXT_OBSERVATIONS,
    ColumnEntry,
    Columns,
    Store,
    entries_of,
    num_bytes,
    sensor_name,
    spoil,
    zeros,
)
from trajtrainer.core.spec import BehaviorSpec
from trajtrainer.core.steps import BoolArray, FloatArray, IntArray, LongArray, ObservationArray
from trajtrainer.experience.trajectory import PackedSteps, offsets

_FIRST_CAPACITY = 64

_MEMORIES = ("memory", "critic_memory")
_SEQUENCE_COLUMNS = ("length", *_MEMORIES)


class Fifo:
    """A first-in, first-out queue of entries with several columns. Entry 0 is the oldest.

    Appending takes amortized constant time. The queue uses at most four times the memory that its entries need.

    Args:
        columns: name -> (shape of one entry, dtype).
    """

    def __init__(self, columns: Mapping[str, tuple[tuple[int, ...], DTypeLike]]) -> None:
        self._columns: dict[str, NDArray[Any]] = {
            name: np.zeros((_FIRST_CAPACITY, *shape), dtype) for name, (shape, dtype) in columns.items()
        }
        self._start, self._stop, self._capacity = 0, 0, _FIRST_CAPACITY

    def __len__(self) -> int:
        return self._stop - self._start

    def __getitem__(self, name: str) -> NDArray[Any]:
        """Return all entries of a column, as a view that is valid until the next ``append``."""
        return self._columns[name][self._start : self._stop]

    @property
    def num_bytes(self) -> int:
        """The size of all columns in bytes."""
        return sum(column.nbytes for column in self._columns.values())

    def append(self, values: Mapping[str, NDArray[Any]]) -> None:
        """Add entries, given as arrays of the same length for all columns."""
        count = len(next(iter(values.values())))
        if self._stop + count > self._capacity:
            # Move the entries to the front, into longer columns if they would use more than half of the capacity.
            held = len(self)
            while 2 * (held + count) > self._capacity:
                self._capacity *= 2
            for name, column in self._columns.items():
                moved = column
                if len(column) < self._capacity:
                    moved = np.zeros((self._capacity, *column.shape[1:]), column.dtype)
                moved[:held] = column[self._start : self._stop]
                self._columns[name] = moved
            self._start, self._stop = 0, held
        for name, column in self._columns.items():
            column[self._stop : self._stop + count] = values[name]
        self._stop += count

    def drop(self, count: int) -> None:
        """Remove the ``count`` oldest entries."""
        self._start += count


@dataclass(frozen=True, slots=True)
class Sample:
    """A sample of n sequences of L steps with their next observations, copied from the ring.

    Without a recurrent memory, L is 1. A sequence that is shorter than L because its trajectory ended is padded with
    copies of its last step.

    Attributes:
        rows: b rows with the replay's columns, ``next_obs`` (the observations after each step) and ``next_mask`` (their
            action masks).
        sequences: the actor's ``memory`` and the critic's ``critic_memory`` before each sequence, f32 [n, H].
        real: bool [b], False for padding; None if there is no padding.
        sequence_length: L.
    """

    rows: Columns[NDArray[Any]]
    sequences: Columns[NDArray[Any]]
    real: BoolArray | None
    sequence_length: int

    def __len__(self) -> int:
        """Return the number of rows, b."""
        return len(self.rows)

    @property
    def obs(self) -> tuple[ObservationArray, ...]:
        """The observations of each sensor, f32 or u8 [b, *O]."""
        return self.rows.obs

    @property
    def next_obs(self) -> tuple[ObservationArray, ...]:
        """The observations of each sensor after each step, f32 or u8 [b, *O]."""
        return self.rows.sensors(NEXT_OBSERVATIONS)

    def packed(self) -> PackedSteps:
        """Return the steps without padding and with each sequence as a trajectory, for reward signals.

        Columns that the ring does not store, such as log-probabilities and the memories within sequences, are missing.
        """
        rows: Any = slice(None) if self.real is None else np.flatnonzero(self.real)
        length = self.sequence_length
        count = len(self) // length
        full = np.full(count, length, np.int32)
        lengths = full if self.real is None else self.real.reshape(count, length).sum(1, dtype=np.int32)
        offset = offsets(lengths)
        last: Any = slice(None) if length == 1 else offset[1:] - 1
        steps = self.rows.map(lambda column: column[rows])
        done = steps["terminated"] | steps["interrupted"]
        return PackedSteps(
            steps=steps.with_columns({"done": done}),
            bootstrap=Columns({sensor_name(i): seen[rows][last] for i, seen in enumerate(self.next_obs)}),
            offset=offset,
            terminated=steps["terminated"][last],
            ended=done[last],
            agent=np.zeros(count, np.int64),
        )


def rows_for(buffer_size: int, time_horizon: int) -> int:
    """Return the number of rows needed for ``buffer_size`` steps, if trajectories have ``time_horizon`` steps."""
    return buffer_size + -(-buffer_size // time_horizon) + 1


class Replay:
    """A ring of R rows with the newest experience.

    A trajectory has one row per step, and another for the observation after its last step. The observation after a step
    is therefore always in the next row, and no observation is stored twice. The oldest rows are overwritten one by one,
    whereas ML-Agents discards a fifth of its buffer at once when it is full.

    With a recurrent memory, each trajectory is split from its start into sequences of L steps. A sequence is dropped as
    soon as its first row is overwritten, so a sequence never contains steps of another one. ML-Agents splits its buffer
    at arbitrary positions (docs/explanation/mlagents-behavior.md#replay).

    The operating system allocates memory only as rows are filled.

    Args:
        spec: the agents' observations and actions.
        obs_dtypes: dtype of each sensor, f32 or u8.
        num_rows: R, at least 2.
        sequence_length: L.
        memory_size: H of the actor; 0 without a recurrent memory.
        critic_memory_size: H of the critic.
        labels: additional columns of the steps.
        poison: overwrite rows that are no longer part of a sequence with NaN, the largest number, True or -1.

    Raises:
        ValueError: ``num_rows`` is less than 2.
    """

    def __init__(
        self,
        spec: BehaviorSpec,
        obs_dtypes: Sequence[DTypeLike],
        *,
        num_rows: int,
        sequence_length: int = 1,
        memory_size: int = 0,
        critic_memory_size: int = 0,
        labels: Mapping[str, ColumnEntry] | None = None,
        poison: bool = False,
    ) -> None:
        if num_rows < 2:
            raise ValueError(f"num_rows is {num_rows}, expected at least 2: a step and the observation after it")
        self.num_rows = num_rows
        self.sequence_length = sequence_length
        # Initialized with zeros, so that a saved file never contains other data from this process's memory.
        self._rows = zeros({**entries_of(Store.REPLAY, spec, obs_dtypes), **(labels or {})}, num_rows)
        # Rows are numbered in the order in which they are written. Row r is at index r % R.
        self._sequences = Fifo(
            {
                "start": ((), np.int64),
                "length": ((), np.int32),
                "memory": ((memory_size,), np.float32),
                "critic_memory": ((critic_memory_size,), np.float32),
            }
        )
        self._written = 0
        self._num_steps = 0
        self._poison = poison

    @classmethod
    def of(cls, spec: BehaviorSpec, packed: PackedSteps) -> Replay:
        """Create a ring that is completely filled by these trajectories, without a recurrent memory."""
        dtypes = [column.dtype for column in packed.obs]
        replay = cls(spec, dtypes, num_rows=len(packed) + packed.num_trajectories)
        replay.add(packed)
        return replay

    @property
    def num_steps(self) -> int:
        """The number of steps that can be sampled."""
        return self._num_steps

    @property
    def num_sequences(self) -> int:
        """The number of sequences, Q. Without a recurrent memory, this is the number of steps."""
        return len(self._sequences)

    @property
    def is_full(self) -> bool:
        """True if the next trajectory will overwrite the oldest one."""
        return self._written >= self.num_rows

    @property
    def row_bytes(self) -> int:
        """The size of a row in bytes."""
        return num_bytes(self._rows.slice(0, 1))

    @property
    def num_bytes(self) -> int:
        """The size of all columns in bytes when the ring is full."""
        return num_bytes(self._rows) + self._sequences.num_bytes

    def add(self, packed: PackedSteps, critic_memory: FloatArray | None = None) -> None:
        """Add trajectories, overwriting the oldest rows. If they do not fit, only the newest steps are kept.

        Args:
            packed: the trajectories.
            critic_memory: f32 [sequences of all trajectories in order, H], the critic's memory before each sequence;
                None if the critic has no memory.
        """
        count, steps = packed.num_trajectories, len(packed)
        if not count:
            return
        trajectory = np.repeat(np.arange(count), packed.lengths)
        step_rows = self._written + np.arange(steps) + trajectory
        after_rows = self._written + packed.offset[1:] + np.arange(count, dtype=np.int64)
        self._written += steps + count
        oldest = self._written - self.num_rows
        length, lengths = self.sequence_length, packed.lengths
        within = np.arange(steps) - np.repeat(packed.offset[:-1], lengths)
        begins: Any = slice(None) if length == 1 else np.flatnonzero(within % length == 0)
        sizes = np.minimum(np.repeat(lengths, lengths)[begins] - within[begins], length)
        if critic_memory is None:
            critic_memory = np.zeros((len(sizes), 0), np.float32)
        self._sequences.append(
            {
                "start": step_rows[begins],
                "length": sizes,
                "memory": packed["memory"][begins],
                "critic_memory": critic_memory,
            }
        )
        self._num_steps += steps
        self._drop_sequences(oldest)
        if steps + count <= self.num_rows:
            self._write(packed, step_rows, after_rows, slice(None), slice(None))
        else:
            keep, keep_after = np.flatnonzero(step_rows >= oldest), np.flatnonzero(after_rows >= oldest)
            self._write(packed, step_rows[keep], after_rows[keep_after], keep, keep_after)

    def steps_ahead(self, numbers: LongArray, most: int) -> IntArray:
        """Return the number of steps from each sequence to the end of its trajectory, up to ``most``, i32 [n].

        This works only without a recurrent memory, where each step is a sequence: the steps of a trajectory are in
        consecutive rows, and the row with its last observation separates it from the next trajectory.
        """
        starts = self._sequences["start"]
        first = starts.take(numbers)
        count = np.ones(len(numbers), np.int32)
        for ahead in range(1, most):
            there = starts.take(np.minimum(numbers + ahead, len(starts) - 1)) == first + ahead
            count += there & (count == ahead)
        return count

    def sample(self, numbers: LongArray) -> Sample:
        """Copy sequences from the ring.

        Args:
            numbers: i64 [n], numbers of sequences from 0 (the oldest) to Q - 1, in any order and with repetitions.
        """
        length = self.sequence_length
        first = self._sequences["start"].take(numbers)
        rows, real = first, None
        if length > 1:
            lengths = self._sequences["length"].take(numbers)[:, None]
            steps = np.arange(length)
            rows = (first[:, None] + np.minimum(steps, lengths - 1)).reshape(-1)
            real = (steps < lengths).reshape(-1)
            real = None if real.all() else real
        rows = rows % self.num_rows
        size = len(rows)
        # Gather both observations with a single index operation that wraps around at the end of the ring.
        pairs = np.concatenate((rows, rows + 1))
        sensors = range(len(self._rows.obs))
        seen = [column.take(pairs, axis=0, mode="wrap") for column in self._rows.obs]
        observed = {sensor_name(i): seen[i][:size] for i in sensors} | {
            sensor_name(i, NEXT_OBSERVATIONS): seen[i][size:] for i in sensors
        }
        others = Columns({name: column for name, column in self._rows.items() if name not in observed})
        observed[NEXT_MASK] = self._rows["mask"].take(rows + 1, axis=0, mode="wrap")
        return Sample(
            rows=others.take(rows).with_columns(observed),
            sequences=Columns({name: self._sequences[name] for name in _MEMORIES}).take(numbers),
            real=real,
            sequence_length=length,
        )

    def _drop_sequences(self, oldest: int) -> None:
        """Drop all sequences that start before row ``oldest``."""
        starts = self._sequences["start"]
        count = int(np.searchsorted(starts, oldest))
        if not count:
            return
        self._num_steps -= int(self._sequences["length"][:count].sum())
        if self._poison:
            end = int(starts[count]) if count < len(starts) else self._written
            spoil(self._rows, np.arange(max(oldest, int(starts[0])), end) % self.num_rows)
        self._sequences.drop(count)

    def _write(
        self, packed: PackedSteps, step_rows: LongArray, after_rows: LongArray, steps: Any, trajectories: Any
    ) -> None:
        """Write the selected steps, and the observations after the selected trajectories."""
        rows, after = step_rows % self.num_rows, after_rows % self.num_rows
        if self._poison:
            spoil(self._rows, after)  # only the observations of these rows are valid
        for name, column in self._rows.items():
            if name == "terminated":
                column[rows] = (packed["done"] & ~packed["interrupted"])[steps]
            else:
                column[rows] = packed[name][steps]
            if name in packed.bootstrap:
                column[after] = packed.bootstrap[name][trajectories]

    def saved_columns(self) -> dict[str, list[NDArray[Any]]]:
        """Return the data to save to a file: the name of each column -> its pieces in order, as views.

        The first row is the start of the oldest sequence, and the starts of all sequences are relative to it.
        """
        starts = self._sequences["start"]
        first = int(starts[0]) if len(starts) else self._written
        begin, count = first % self.num_rows, self._written - first
        pieces = {
            name: [column[begin : begin + count], column[: max(0, begin + count - self.num_rows)]]
            for name, column in self._rows.items()
        }
        return pieces | {"start": [starts - first]} | {name: [self._sequences[name]] for name in _SEQUENCE_COLUMNS}

    def fill(self, column_of: Callable[[str], NDArray[Any]]) -> None:
        """Restore ``saved_columns`` into an empty ring. If they do not fit, only the newest experience is kept.

        Args:
            column_of: returns a complete saved column by name. It is called once per column.

        Raises:
            ValueError: the columns do not match this ring. The ring stays empty.
        """
        starts, lengths = column_of("start"), column_of("length")
        _check(starts, "start", np.dtype(np.int64), ())
        _check(lengths, "length", np.dtype(np.int32), ())
        count = None
        for name, column in self._rows.items():
            saved = column_of(name)
            _check(saved, name, column.dtype, column.shape[1:])
            count = len(saved) if count is None else count
            if len(saved) != count:
                raise ValueError(f"{name} has {len(saved)} rows, the other columns have {count}")
            kept = min(count, self.num_rows)
            # Place the rows as if all saved rows had been written to this ring in order.
            begin = (count - kept) % self.num_rows
            head = min(kept, self.num_rows - begin)
            column[begin : begin + head] = saved[count - kept : count - kept + head]
            column[: kept - head] = saved[count - kept + head :]
        assert count is not None
        self._check_sequences(starts, lengths, count)
        entries = {"start": starts, "length": lengths}
        for name in ("memory", "critic_memory"):
            entries[name] = column_of(name)
            _check(entries[name], name, np.dtype(np.float32), self._sequences[name].shape[1:])
            if len(entries[name]) != len(starts):
                raise ValueError(f"{name} has {len(entries[name])} entries, expected {len(starts)}")
        self._sequences.append(entries)
        self._written, self._num_steps = count, int(lengths.sum())
        self._drop_sequences(count - self.num_rows)

    def _check_sequences(self, starts: LongArray, lengths: IntArray, count: int) -> None:
        """Check that the sequences are in order and within ``count`` rows, each followed by another row."""
        if len(starts) != len(lengths):
            raise ValueError(f"there are {len(starts)} starts and {len(lengths)} lengths of sequences")
        ends = starts + lengths
        if (
            len(starts)
            and (
                starts[0] < 0
                or starts[-1] >= count  # also checked, because the end may have overflowed
                or ends[-1] >= count
                or (starts[1:] < ends[:-1]).any()
                or lengths.min() < 1
                or lengths.max() > self.sequence_length
            )
        ):
            raise ValueError("sequences overlap, are outside the rows or have a different length")


def _check(column: NDArray[Any], name: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
    if column.dtype != dtype or column.ndim != 1 + len(shape) or column.shape[1:] != shape:
        raise ValueError(
            f"{name} is {column.dtype} {tuple(column.shape[1:])} per entry, expected {dtype} {tuple(shape)}"
        )
