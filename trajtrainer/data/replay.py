"""Experience to learn from again and again: a ring of rows in which the next observation is the next row.

Shape legend: R rows of the ring, B packed steps, S trajectories, L sequence length, Q sequences, H memory size.
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
    Columns,
    Entry,
    Store,
    entries_of,
    num_bytes,
    sensor_name,
    spoil,
    zeros,
)
from trajtrainer.core.spec import BehaviorSpec
from trajtrainer.core.steps import BoolArray, FloatArray, IntArray, LongArray, ObservationArray
from trajtrainer.data.trajectory import PackedSteps, offsets

_FIRST_CAPACITY = 64


class Fifo:
    """Entries in order of arrival, each a line over several columns. Entry 0 is the oldest.

    Appending takes constant time on average; memory is at most four times what the entries need.
    """

    def __init__(self, columns: Mapping[str, tuple[tuple[int, ...], DTypeLike]]) -> None:
        """Make empty columns, name -> (shape of one entry, type)."""
        self._columns: dict[str, NDArray[Any]] = {
            name: np.zeros((_FIRST_CAPACITY, *shape), dtype) for name, (shape, dtype) in columns.items()
        }
        self._start, self._stop, self._capacity = 0, 0, _FIRST_CAPACITY

    def __len__(self) -> int:
        return self._stop - self._start

    def __getitem__(self, name: str) -> NDArray[Any]:
        """Return all entries of a column: a view, void after the next ``append``."""
        return self._columns[name][self._start : self._stop]

    @property
    def num_bytes(self) -> int:
        """The size of all columns."""
        return sum(column.nbytes for column in self._columns.values())

    def append(self, values: Mapping[str, NDArray[Any]]) -> None:
        """Add entries: every column's values, all of the same length."""
        count = len(next(iter(values.values())))
        if self._stop + count > self._capacity:
            self._make_room(count)
        for name, column in self._columns.items():
            column[self._stop : self._stop + count] = values[name]
        self._stop += count

    def drop(self, count: int) -> None:
        """Remove the oldest entries."""
        self._start += count

    def _make_room(self, count: int) -> None:
        """Move the entries to the front, of longer columns if they are more than half of what there is room for."""
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


@dataclass(frozen=True, slots=True)
class Sample:
    """Steps with what followed them: n sequences of L rows (L is 1 without a memory), copied out of the ring.

    A sequence that is shorter than L, because its trajectory ended, repeats its last step.

    Attributes:
        rows: the replay's columns, and ``next_obs`` and ``next_mask``: what the agent saw after the step, and what it
            was not allowed to do then; b rows.
        sequences: ``memory`` of the actor before each sequence and ``critic_memory`` of the critic, f32 [n, H].
        real: bool [b], False in the repetitions; None when there are none.
        sequence_length: L.
    """

    rows: Columns[NDArray[Any]]
    sequences: Columns[NDArray[Any]]
    real: BoolArray | None
    sequence_length: int

    def __len__(self) -> int:
        """Return b."""
        return len(self.rows)

    @property
    def obs(self) -> tuple[ObservationArray, ...]:
        """Return the observations per sensor, f32 or u8 [b, *O]."""
        return self.rows.obs

    @property
    def next_obs(self) -> tuple[ObservationArray, ...]:
        """Return per sensor what the agent saw after the step, f32 or u8 [b, *O]."""
        return self.rows.sensors(NEXT_OBSERVATIONS)

    def packed(self) -> PackedSteps:
        """Return the same without repetitions, every sequence as a trajectory: what reward signals evaluate.

        Columns that the ring does not keep (log-probabilities, memories within sequences, ...) are missing.
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


_MEMORIES = ("memory", "critic_memory")
_SEQUENCE_COLUMNS = ("length", *_MEMORIES)


def rows_for(buffer_size: int, time_horizon: int) -> int:
    """Return the rows of a ring that holds ``buffer_size`` steps of trajectories as long as the horizon allows."""
    return buffer_size + -(-buffer_size // time_horizon) + 1


class Replay:
    """The newest experience, in R rows.

    Each trajectory takes a row per step and one more for the observation after its last step, so the observation that
    follows a step is always in the next row and no observation is stored twice for it. Rows are overwritten in the
    order in which they were written: there is no moment at which a fifth of the buffer is thrown away, as in
    ML-Agents. With a memory every trajectory is cut from its start into sequences of L steps, which stay what they are
    until their first row is overwritten; then the whole sequence is gone, so that no sequence ever holds steps of
    another (ML-Agents cuts its buffer anywhere: docs/mlagents-behavior.md#replay).
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
        labels: Mapping[str, Entry] | None = None,
        poison: bool = False,
    ) -> None:
        """Take address space for ``num_rows`` rows; memory is used as they are filled.

        Args:
            spec: what the agents see and do.
            obs_dtypes: per sensor, f32 or u8.
            num_rows: R, at least 2.
            sequence_length: L.
            memory_size: H of the actor; 0 without a memory.
            critic_memory_size: H of the critic.
            labels: further columns of the steps.
            poison: fill rows that belong to no sequence any more with NaN (or the largest or a negative number).

        Raises:
            ValueError: fewer than two rows.
        """
        if num_rows < 2:
            raise ValueError(f"num_rows is {num_rows}, expected at least 2: a step and the observation after it")
        self.num_rows = num_rows
        self.sequence_length = sequence_length
        # Zeros, so that a saved file holds nothing but experience.
        self._rows = zeros({**entries_of(Store.REPLAY, spec, obs_dtypes), **(labels or {})}, num_rows)
        # Rows are counted from the first one ever written; row r stands at r % R.
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
        """Return a ring that these trajectories fill, without a memory."""
        dtypes = [column.dtype for column in packed.obs]
        replay = cls(spec, dtypes, num_rows=len(packed) + packed.num_trajectories)
        replay.add(packed)
        return replay

    @property
    def num_steps(self) -> int:
        """Steps that can be sampled."""
        return self._num_steps

    @property
    def num_sequences(self) -> int:
        """Q; without a memory the same as the steps."""
        return len(self._sequences)

    @property
    def is_full(self) -> bool:
        """Whether the next trajectory overwrites the oldest."""
        return self._written >= self.num_rows

    @property
    def row_bytes(self) -> int:
        """Size of one row."""
        return num_bytes(self._rows.slice(0, 1))

    @property
    def num_bytes(self) -> int:
        """Size of all columns when full."""
        return num_bytes(self._rows) + self._sequences.num_bytes

    def add(self, packed: PackedSteps, critic_memory: FloatArray | None = None) -> None:
        """Write trajectories over the oldest rows. Of more than fit, the newest steps stay.

        Args:
            packed: the trajectories.
            critic_memory: f32 [sequences of all trajectories in order, H], before each; None for a critic without.
        """
        count, steps = packed.num_trajectories, len(packed)
        if not count:
            return
        trajectory = np.repeat(np.arange(count), packed.lengths)
        step_rows = self._written + np.arange(steps) + trajectory
        after_rows = self._written + packed.offset[1:] + np.arange(count, dtype=np.int64)
        self._written += steps + count
        oldest = self._written - self.num_rows
        self._append_sequences(packed, step_rows, critic_memory)
        self._drop_sequences(oldest)
        if steps + count <= self.num_rows:
            self._write(packed, step_rows, after_rows, slice(None), slice(None))
        else:
            keep, keep_after = np.flatnonzero(step_rows >= oldest), np.flatnonzero(after_rows >= oldest)
            self._write(packed, step_rows[keep], after_rows[keep_after], keep, keep_after)

    def steps_ahead(self, numbers: LongArray, most: int) -> IntArray:
        """Return how many steps of its trajectory there are from each sequence on, at most ``most``, i32 [n].

        Only without a memory, where each step is a sequence: a trajectory's steps stand in neighboring rows, and
        between those of two trajectories there is the row of what was observed after the first one's last.
        """
        starts = self._sequences["start"]
        first = starts.take(numbers)
        count = np.ones(len(numbers), np.int32)
        for ahead in range(1, most):
            there = starts.take(np.minimum(numbers + ahead, len(starts) - 1)) == first + ahead
            count += there & (count == ahead)
        return count

    def sample(self, numbers: LongArray) -> Sample:
        """Copy sequences out of the ring.

        Args:
            numbers: i64 [n] in 0 ... Q - 1, counted from the oldest; any order, repetitions allowed.
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
        # Both observations by one index operation, around the ring's end.
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

    def _append_sequences(self, packed: PackedSteps, step_rows: LongArray, critic_memory: FloatArray | None) -> None:
        length, lengths = self.sequence_length, packed.lengths
        within = np.arange(len(packed)) - np.repeat(packed.offset[:-1], lengths)
        begins: Any = slice(None) if length == 1 else np.flatnonzero(within % length == 0)
        left = np.repeat(lengths, lengths)[begins] - within[begins]
        sizes = np.minimum(left, length)
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
        self._num_steps += len(packed)

    def _drop_sequences(self, oldest: int) -> None:
        """Forget all sequences that begin before row ``oldest``."""
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
        """Write the steps and the observations after the trajectories that the indices choose."""
        rows, after = step_rows % self.num_rows, after_rows % self.num_rows
        if self._poison:
            spoil(self._rows, after)  # of these only the observation means anything
        for name, column in self._rows.items():
            if name == "terminated":
                column[rows] = (packed["done"] & ~packed["interrupted"])[steps]
            else:
                column[rows] = packed[name][steps]
            if name in packed.bootstrap:
                column[after] = packed.bootstrap[name][trajectories]

    def saved_columns(self) -> dict[str, list[NDArray[Any]]]:
        """Return the columns that a file keeps: column -> its pieces, one after the other; views.

        Rows are those from the oldest sequence on, and sequences' starts count from there.
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
        """Take what ``saved_columns`` gave; of more than fits, the newest. Only for a ring that is still empty.

        Args:
            column_of: gives a saved column by name, whole. Asked once for each.

        Raises:
            ValueError: the columns are not of such a ring. It stays empty then.
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
                raise ValueError(f"{name} has {len(saved)} rows, others {count}")
            kept = min(count, self.num_rows)
            # Rows keep the places that they would have if all had been written here.
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
        """Raise unless these are sequences within ``count`` rows, in order, each followed by a row."""
        if len(starts) != len(lengths):
            raise ValueError(f"there are {len(starts)} starts and {len(lengths)} lengths of sequences")
        ends = starts + lengths
        if (
            len(starts)
            and (
                starts[0] < 0
                or starts[-1] >= count  # its end may be beyond the largest number
                or ends[-1] >= count
                or (starts[1:] < ends[:-1]).any()
                or lengths.min() < 1
                or lengths.max() > self.sequence_length
            )
        ):
            raise ValueError("sequences overlap, lie outside the rows or have another length")


def _check(column: NDArray[Any], name: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
    if column.dtype != dtype or column.ndim != 1 + len(shape) or column.shape[1:] != shape:
        raise ValueError(
            f"{name} is {column.dtype} {tuple(column.shape[1:])} per entry, expected {dtype} {tuple(shape)}"
        )
