"""The table of columns that experience consists of, and the container for rows of it.

Experience is written once, into columns, when it arrives. Everything that keeps some of it for a while is a store over
a subset of this table. A column that is added here is stored, gathered, shuffled and handed to the learner without a
change anywhere else, if it is a field of step or action batches. The agent processor fills ``memory``, ``done`` and
``interrupted`` itself; what only learners compute (``weight``, ``loss_mask``) is not in the table.

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

    EVENT is a step batch on its way between processes. POOL has the rows of living agents and waiting trajectories, and
    the packed steps gathered from them. GROUP is what the pool also holds for an algorithm that needs groups. UPDATE is
    the buffer and the minibatches of an on-policy learner, REPLAY the ring of an off-policy learner and its samples.
    """

    EVENT = enum.auto()
    POOL = enum.auto()
    GROUP = enum.auto()
    UPDATE = enum.auto()
    REPLAY = enum.auto()
    LEARNED_FROM = POOL | UPDATE | REPLAY
    EVERYWHERE = EVENT | LEARNED_FROM


class Moment(enum.Enum):
    """The moment at which a column of a row is filled, from the field of that name of a step or action batch."""

    OBSERVED = enum.auto()  # the step batch in which the agent asks for a decision
    DECIDED = enum.auto()  # the action batch that answers it
    FOLLOWED = enum.auto()  # the agent's next step batch
    ENDED = enum.auto()  # the same step batch, filled in by the agent processor
    LEARNED = enum.auto()  # when the learner takes over the row


class Column(NamedTuple):
    """One column of experience: an entry of the table.

    Attributes:
        name: the sensors of ``obs`` become ``obs.0``, ``obs.1``, ...
        dtype: numpy's name; empty for ``obs``, whose sensors each have their own.
        shape: of one entry, in letters of the legend.
        moment: when it is filled.
        stores: the stores that keep it.
    """

    name: str
    dtype: str
    shape: tuple[str, ...]
    moment: Moment
    stores: Store


TABLE: list[Column] = [
    Column("agent", "<i8", (), Moment.OBSERVED, Store.EVENT),
    Column("obs", "", ("O",), Moment.OBSERVED, Store.EVERYWHERE),
    Column("mask", "?", ("D",), Moment.OBSERVED, Store.EVERYWHERE),
    Column("group", "<i4", (), Moment.OBSERVED, Store.EVENT | Store.POOL),
    Column("memory", "<f4", ("H",), Moment.OBSERVED, Store.POOL),
    Column("continuous", "<f4", ("C",), Moment.DECIDED, Store.LEARNED_FROM),
    Column("discrete", "<i4", ("K",), Moment.DECIDED, Store.LEARNED_FROM),
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


class ColumnEntry(NamedTuple):
    """Type and shape of one entry of a column for one behavior."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]


def names_of(store: Store, moment: Moment) -> list[str]:
    """Names of the columns that ``store`` keeps and that are filled at ``moment``, without ``obs``."""
    return [one.name for one in TABLE if store in one.stores and one.moment is moment and one.name != OBSERVATIONS]


def entries_of(
    store: Store, spec: BehaviorSpec, obs_dtypes: Sequence[DTypeLike], *, memory_size: int = 0, num_signals: int = 0
) -> dict[str, ColumnEntry]:
    """Resolve the columns of a store for one behavior.

    Args:
        store: for a union of stores, the columns that any of them keeps.
        spec: gives O, C, K and D.
        obs_dtypes: per sensor, f32 or u8.
        memory_size: H; 0 without a recurrent memory.
        num_signals: V.

    Returns:
        Name -> type and shape of one entry, in the order of the table.

    Raises:
        ValueError: there is not one dtype per sensor.
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
    entries: dict[str, ColumnEntry] = {}
    for column in TABLE:
        if not store & column.stores:
            continue
        if column.name == OBSERVATIONS:
            for i, (sensor, dtype) in enumerate(zip(sensors, obs_dtypes, strict=True)):
                entries[sensor_name(i)] = ColumnEntry(np.dtype(dtype), tuple(sensor.shape))
        else:
            entries[column.name] = ColumnEntry(np.dtype(column.dtype), tuple(sizes[letter] for letter in column.shape))
    return entries


def teacher_entries(spec: BehaviorSpec) -> dict[str, ColumnEntry]:
    """Columns of a teacher's action distribution. Only minibatches for distillation have them."""
    size = int(spec.action_spec.continuous_size)
    shapes = {TEACHER_MEAN: size, TEACHER_STD: size, TEACHER_PROBS: sum(spec.action_spec.discrete_branches)}
    return {name: ColumnEntry(np.dtype(np.float32), (width,)) for name, width in shapes.items()}


def bootstrap_names(num_sensors: int) -> list[str]:
    """Columns of the observation after a trajectory's last step, from which its value is bootstrapped."""
    return [*(sensor_name(number) for number in range(num_sensors)), "mask", "memory"]


def entry_bytes(entries: Mapping[str, ColumnEntry]) -> int:
    """Bytes of one row."""
    return sum(entry.dtype.itemsize * math.prod(entry.shape) for entry in entries.values())


def sensor_name(number: int, of: str = OBSERVATIONS) -> str:
    """Name of a sensor's column, such as ``obs.0``."""
    return f"{of}.{number}"


class Columns(Generic[A]):
    """Rows as parallel arrays of numpy or torch, by column name. The set of columns never changes.

    ``slice`` returns views, so stores write through them.

    Args:
        arrays: all of the same length. Neither they nor the dictionary are copied.
    """

    __slots__ = ("_arrays", "_obs")

    def __init__(self, arrays: dict[str, A]) -> None:
        self._arrays = arrays
        self._obs: tuple[A, ...] | None = None

    @property
    def obs(self) -> tuple[A, ...]:
        """The observations, one column per sensor in Unity's order."""
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
        return len(next(iter(self._arrays.values()), ()))  # type: ignore[arg-type]

    def get(self, name: str) -> A | None:
        return self._arrays.get(name)

    def items(self) -> ItemsView[str, A]:
        return self._arrays.items()

    def values(self) -> ValuesView[A]:
        return self._arrays.values()

    def sensors(self, of: str) -> tuple[A, ...]:
        """All sensors of ``obs``, or of another kind of observation such as ``next_obs``, in order."""
        prefix = of + "."
        return tuple([array for name, array in self._arrays.items() if name.startswith(prefix)])

    def without_sensors(self, of: str) -> Columns[A]:
        """All columns except the sensors of ``obs``, or of another kind of observation."""
        return Columns({name: array for name, array in self._arrays.items() if not name.startswith(of + ".")})

    def map(self, function: Callable[[A], B]) -> Columns[B]:
        return Columns({name: function(array) for name, array in self._arrays.items()})

    def slice(self, start: int, stop: int) -> Columns[A]:
        rows = slice(start, stop)
        return Columns({name: array[rows] for name, array in self._arrays.items()})  # type: ignore[index]

    def take(self, rows: Any) -> Columns[A]:
        """Copy the rows with these numbers, an integer array of the same library."""

        def taken(array: Any) -> Any:
            if not isinstance(array, np.ndarray):
                return array.index_select(0, rows)
            if not array[:1].size:  # numpy would still look up each row of a column without width
                return np.zeros((len(rows), *array.shape[1:]), array.dtype)
            return array.take(rows, axis=0)

        return self.map(taken)

    def with_columns(self, arrays: Mapping[str, A]) -> Columns[A]:
        """These columns, plus others that are added or replace them."""
        return Columns({**self._arrays, **arrays})


def concatenate(parts: Sequence[Columns[NDArray[Any]]]) -> Columns[NDArray[Any]]:
    """Join the rows of parts with the same columns, in order. A single part is returned without a copy."""
    if len(parts) == 1:
        return parts[0]
    return Columns({name: np.concatenate([part[name] for part in parts]) for name in parts[0]})


def empty(entries: Mapping[str, ColumnEntry], length: int) -> Columns[NDArray[Any]]:
    """Uninitialized columns of ``length`` rows."""
    return Columns({name: np.empty((length, *entry.shape), entry.dtype) for name, entry in entries.items()})


def zeros(entries: Mapping[str, ColumnEntry], length: int) -> Columns[NDArray[Any]]:
    """Columns of ``length`` zero rows. The system assigns memory only as they are written."""
    return Columns({name: np.zeros((length, *entry.shape), entry.dtype) for name, entry in entries.items()})


def num_bytes(columns: Columns[NDArray[Any]]) -> int:
    """Bytes of all columns together."""
    return sum(array.nbytes for array in columns.values())


def run_or_rows(rows: NDArray[np.int64]) -> slice | NDArray[np.int64]:
    """Turn ascending row numbers (at least one) into a slice if they are consecutive.

    Copying a run of rows is several times faster than scattering them.
    """
    first, last = int(rows[0]), int(rows[-1])
    return slice(first, last + 1) if last - first == len(rows) - 1 else rows


def spoil(columns: Columns[NDArray[Any]], rows: Any) -> None:
    """Overwrite rows with NaN, the largest number, True or -1, so that any use of them shows."""
    for array in columns.values():
        kind = array.dtype.kind
        array[rows] = (
            np.nan if kind == "f" else np.iinfo(array.dtype).max if kind == "u" else True if kind == "b" else -1
        )
