"""The one table of columns, and the one container of rows.

Experience is written once, into columns, when it arrives; everything that keeps some of it for a while is a store over
a subset of this table. A column that is added here is kept, gathered, shuffled and handed to the learner without a
change anywhere else.

Shape legend: A continuous actions and discrete branches together, C continuous actions, D sum of branch sizes,
H memory size, K discrete branches, O an observation's own shape, V reward signals.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, ItemsView, Iterator, Mapping, Sequence, ValuesView
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

from trajtrainer.core.spec import BehaviorSpec

A = TypeVar("A")
B = TypeVar("B")

OBSERVATIONS, NEXT_OBSERVATIONS, NEXT_MASK = "obs", "next_obs", "next_mask"
TEACHER_MEAN, TEACHER_STD, TEACHER_PROBS = "teacher_mean", "teacher_std", "teacher_probs"


class Store(enum.Flag):
    """A kind of store that keeps a column.

    EVENT is a step batch on its way between processes, POOL the rows of living agents and waiting trajectories (and the
    packed steps gathered from them), GROUP what the pool holds beside that for an algorithm that needs groups, UPDATE
    the buffer and the minibatches of an on-policy learner, REPLAY the ring of an off-policy one and what is drawn from
    it.
    """

    EVENT = enum.auto()
    POOL = enum.auto()
    GROUP = enum.auto()
    UPDATE = enum.auto()
    REPLAY = enum.auto()


class Moment(enum.Enum):
    """The moment at which a row learns a column: a field of the same name of a step batch or an action batch."""

    OBSERVED = enum.auto()  # the step batch in which the agent asks for a decision
    DECIDED = enum.auto()  # the action batch that answers it
    FOLLOWED = enum.auto()  # the agent's next step batch
    ENDED = enum.auto()  # the same, told by the agent processor
    LEARNED = enum.auto()  # the learner, when it takes the row over


class Column(NamedTuple):
    """One row of the table.

    Attributes:
        name: of the column; the sensors of ``obs`` become ``obs.0``, ``obs.1``, ...
        dtype: numpy's name; that of ``obs`` is the sensor's.
        shape: of one entry, in letters of the legend.
        moment: when it is filled.
        stores: who keeps it.
    """

    name: str
    dtype: str
    shape: tuple[str, ...]
    moment: Moment
    stores: Store


_EVERYWHERE = Store.EVENT | Store.POOL | Store.UPDATE | Store.REPLAY
_LEARNT_FROM = Store.POOL | Store.UPDATE | Store.REPLAY

TABLE: list[Column] = [
    Column("agent", "<i8", (), Moment.OBSERVED, Store.EVENT),
    Column("obs", "", ("O",), Moment.OBSERVED, _EVERYWHERE),
    Column("mask", "?", ("D",), Moment.OBSERVED, _EVERYWHERE),
    Column("group", "<i4", (), Moment.OBSERVED, Store.EVENT | Store.POOL),
    Column("memory", "<f4", ("H",), Moment.OBSERVED, Store.POOL),
    Column("continuous", "<f4", ("C",), Moment.DECIDED, _LEARNT_FROM),
    Column("discrete", "<i4", ("K",), Moment.DECIDED, _LEARNT_FROM),
    Column("log_prob", "<f4", ("A",), Moment.DECIDED, Store.POOL | Store.UPDATE),
    Column("version", "<i4", (), Moment.DECIDED, Store.POOL),
    Column("reward", "<f4", (), Moment.FOLLOWED, Store.EVENT | Store.POOL | Store.REPLAY),
    Column("group_reward", "<f4", (), Moment.FOLLOWED, Store.EVENT | Store.POOL | Store.REPLAY),
    Column("groupmate_reward", "<f4", (), Moment.ENDED, Store.GROUP),
    Column("done", "?", (), Moment.ENDED, Store.POOL),
    Column("interrupted", "?", (), Moment.ENDED, Store.POOL | Store.REPLAY),
    Column("terminated", "?", (), Moment.LEARNED, Store.REPLAY),
    Column("returns", "<f4", ("V",), Moment.LEARNED, Store.UPDATE),
    Column("value", "<f4", ("V",), Moment.LEARNED, Store.UPDATE),
    Column("advantage", "<f4", (), Moment.LEARNED, Store.UPDATE),
]


class Entry(NamedTuple):
    """Type and shape of one entry of a column for one behaviour."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]


def names_of(store: Store, moment: Moment) -> list[str]:
    """Return the columns that ``store`` keeps and that are filled at ``moment``, ``obs`` left out."""
    return [one.name for one in TABLE if store in one.stores and one.moment is moment and one.name != OBSERVATIONS]


def entries_of(
    store: Store, spec: BehaviorSpec, obs_dtypes: Sequence[DTypeLike], *, memory_size: int = 0, num_signals: int = 0
) -> dict[str, Entry]:
    """Resolve the columns of a store for one behaviour.

    Args:
        store: whose columns; of several stores those of any.
        spec: gives O, C, K and D.
        obs_dtypes: per sensor, f32 or u8.
        memory_size: H; 0 without a recurrent memory.
        num_signals: V.

    Returns:
        Name -> type and shape of one entry, in the order of the table.

    Raises:
        ValueError: ``obs_dtypes`` has another length than the spec has sensors.
    """
    sensors = spec.observation_specs
    if len(obs_dtypes) != len(sensors):
        raise ValueError(f"{len(obs_dtypes)} dtypes for {len(sensors)} sensors")
    action = spec.action_spec
    sizes = {
        "A": action.continuous_size + action.discrete_size,
        "C": action.continuous_size,
        "D": sum(action.discrete_branches),
        "H": memory_size,
        "K": action.discrete_size,
        "V": num_signals,
    }
    entries: dict[str, Entry] = {}
    for column in TABLE:
        if not store & column.stores:
            continue
        if column.name == OBSERVATIONS:
            for i, (sensor, dtype) in enumerate(zip(sensors, obs_dtypes, strict=True)):
                entries[sensor_name(i)] = Entry(np.dtype(dtype), tuple(sensor.shape))
        else:
            entries[column.name] = Entry(np.dtype(column.dtype), tuple(sizes[letter] for letter in column.shape))
    return entries


def teacher_entries(spec: BehaviorSpec) -> dict[str, Entry]:
    """Return the columns of a teacher's distribution, which only those have who learn it."""
    size = int(spec.action_spec.continuous_size)
    shapes = {TEACHER_MEAN: size, TEACHER_STD: size, TEACHER_PROBS: sum(spec.action_spec.discrete_branches)}
    return {name: Entry(np.dtype(np.float32), (width,)) for name, width in shapes.items()}


def bootstrap_names(num_sensors: int) -> list[str]:
    """Return the columns that tell what comes after a trajectory: those of its last observation."""
    return [*(sensor_name(number) for number in range(num_sensors)), "mask", "memory"]


def entry_bytes(entries: Mapping[str, Entry]) -> int:
    """Return the size of one row."""
    return sum(entry.dtype.itemsize * math.prod(entry.shape) for entry in entries.values())


def sensor_name(number: int, of: str = OBSERVATIONS) -> str:
    """Return the name of one sensor's column: ``obs.0``."""
    return f"{of}.{number}"


class Columns(Generic[A]):
    """Hold rows as parallel arrays, numpy's or torch's, by the table's names. The set of columns never changes.

    What ``slice`` and ``map`` of a view give are views: stores write through them.
    """

    __slots__ = ("_arrays", "_obs")

    def __init__(self, arrays: dict[str, A]) -> None:
        """Take arrays of the same length by name. Neither they nor the dictionary are copied."""
        self._arrays = arrays
        self._obs: tuple[A, ...] | None = None

    @property
    def obs(self) -> tuple[A, ...]:
        """Return the arrays of the sensors, in their order."""
        if self._obs is None:
            self._obs = self.sensors(OBSERVATIONS)
        return self._obs

    def __getitem__(self, name: str) -> A:
        return self._arrays[name]

    def __contains__(self, name: str) -> bool:
        return name in self._arrays

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        """Return the number of rows; 0 without columns."""
        return len(next(iter(self._arrays.values()), ()))  # type: ignore[arg-type]

    def get(self, name: str) -> A | None:
        """Return a column, or None where there is none."""
        return self._arrays.get(name)

    def items(self) -> ItemsView[str, A]:
        """Return names and arrays."""
        return self._arrays.items()

    def values(self) -> ValuesView[A]:
        """Return the arrays."""
        return self._arrays.values()

    def sensors(self, of: str) -> tuple[A, ...]:
        """Return the arrays of all sensors, in their order, of ``obs`` or another kind of observation."""
        prefix = of + "."
        return tuple([array for name, array in self._arrays.items() if name.startswith(prefix)])

    def without_sensors(self, of: str) -> Columns[A]:
        """Return all columns but those of ``obs`` or another kind of observation."""
        return Columns({name: array for name, array in self._arrays.items() if not name.startswith(of + ".")})

    def map(self, function: Callable[[A], B]) -> Columns[B]:
        """Return what ``function`` makes of every array."""
        return Columns({name: function(array) for name, array in self._arrays.items()})

    def slice(self, start: int, stop: int) -> Columns[A]:
        """Return the rows ``start`` to ``stop``, as views."""
        rows = slice(start, stop)
        return Columns({name: array[rows] for name, array in self._arrays.items()})  # type: ignore[index]

    def take(self, rows: Any) -> Columns[A]:
        """Return a copy of the rows with these numbers, which are an array of the same library."""
        return self.map(lambda array: _taken(array, rows))

    def with_columns(self, arrays: Mapping[str, A]) -> Columns[A]:
        """Return these columns and others beside or instead of them."""
        return Columns({**self._arrays, **arrays})


def concatenate(parts: Sequence[Columns[NDArray[Any]]]) -> Columns[NDArray[Any]]:
    """Return the rows of one or more parts of the same columns, in order; copied unless there is only one part."""
    if len(parts) == 1:
        return parts[0]
    return Columns({name: np.concatenate([part[name] for part in parts]) for name in parts[0]})


def empty(entries: Mapping[str, Entry], length: int) -> Columns[NDArray[Any]]:
    """Return columns of ``length`` rows whose content has no meaning yet."""
    return Columns({name: np.empty((length, *entry.shape), entry.dtype) for name, entry in entries.items()})


def zeros(entries: Mapping[str, Entry], length: int) -> Columns[NDArray[Any]]:
    """Return columns of ``length`` rows of zeros; memory is used as they are filled."""
    return Columns({name: np.zeros((length, *entry.shape), entry.dtype) for name, entry in entries.items()})


def num_bytes(columns: Columns[NDArray[Any]]) -> int:
    """Return the size of all columns."""
    return sum(array.nbytes for array in columns.values())


def run_or_rows(rows: NDArray[np.int64]) -> slice | NDArray[np.int64]:
    """Return one or more ascending row numbers as a slice if they are neighbours.

    Copying a run is several times faster than scattering.
    """
    first, last = int(rows[0]), int(rows[-1])
    return slice(first, last + 1) if last - first == len(rows) - 1 else rows


def spoil(columns: Columns[NDArray[Any]], rows: Any) -> None:
    """Overwrite rows with NaN, the largest number, True or -1, so that a use of them shows."""
    for array in columns.values():
        kind = array.dtype.kind
        array[rows] = (
            np.nan if kind == "f" else np.iinfo(array.dtype).max if kind == "u" else True if kind == "b" else -1
        )


def _taken(array: Any, rows: Any) -> Any:
    if isinstance(array, np.ndarray):
        # Columns without width are not looked up.
        return array.take(rows, axis=0) if array[:1].size else np.zeros((len(rows), *array.shape[1:]), array.dtype)
    return array.index_select(0, rows)
