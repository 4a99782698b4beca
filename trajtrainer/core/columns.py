"""The table of columns that make up experience, and the container for rows.

Experience is written into columns once, when it arrives. Each component that stores experience keeps a subset of the
columns in this table. To add a column that is a field of step or action batches, it is enough to add it here: it is
then stored, gathered, shuffled and passed to the learner. The agent processor fills ``memory``, ``done`` and
``interrupted`` itself; columns that only learners compute (``weight``, ``loss_mask``) are not in the table.

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

    EVENT is a step batch sent between processes. POOL contains the rows of active agents and of trajectories waiting to
    be learned from, and the packed steps gathered from them. GROUP marks columns that the pool only keeps if the
    algorithm uses agent groups. UPDATE is the buffer and the minibatches of an on-policy learner. REPLAY is the ring
    buffer of an off-policy learner and its samples.
    """

    EVENT = enum.auto()
    POOL = enum.auto()
    GROUP = enum.auto()
    UPDATE = enum.auto()
    REPLAY = enum.auto()
    LEARNED_FROM = POOL | UPDATE | REPLAY
    EVERYWHERE = EVENT | LEARNED_FROM


class Moment(enum.Enum):
    """The stage at which a column of a row is filled, from the field of the same name in a step or action batch."""

    OBSERVED = enum.auto()  # with the step batch in which the agent requests a decision
    DECIDED = enum.auto()  # with the action batch that contains the decision
    FOLLOWED = enum.auto()  # with the agent's next step batch
    ENDED = enum.auto()  # with the agent's next step batch, but filled by the agent processor
    LEARNED = enum.auto()  # when the learner takes over the row


class Column(NamedTuple):
    """One column of experience: an entry of the table.

    Attributes:
        name: name of the column. ``obs`` stands for one column per sensor: ``obs.0``, ``obs.1``, ...
        dtype: numpy's name of the dtype; empty for ``obs``, because each sensor has its own.
        shape: shape of one entry, in letters of the shape legend.
        moment: time at which the column is filled.
        stores: stores that keep the column.
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
    """Dtype and shape of one entry of a column for one behavior."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]


def names_of(store: Store, moment: Moment) -> list[str]:
    """Return the names of the columns, except ``obs``, that ``store`` keeps and that are filled at ``moment``."""
    return [one.name for one in TABLE if store in one.stores and one.moment is moment and one.name != OBSERVATIONS]


def entries_of(
    store: Store, spec: BehaviorSpec, obs_dtypes: Sequence[DTypeLike], *, memory_size: int = 0, num_signals: int = 0
) -> dict[str, ColumnEntry]:
    """Resolve the columns of a store for one behavior.

    Args:
        store: a store, or several stores combined with ``|``, for all columns that at least one of them keeps.
        spec: spec of the behavior, which determines O, C, K and D.
        obs_dtypes: dtype of each sensor, f32 or u8.
        memory_size: H; 0 without a recurrent memory.
        num_signals: V.

    Returns:
        Name -> dtype and shape of one entry, in the order of the table.

    Raises:
        ValueError: the number of dtypes differs from the number of sensors.
    """
    sensors = spec.observation_specs
    if len(obs_dtypes) != len(sensors):
        raise ValueError(f"found {len(obs_dtypes)} dtypes for {len(sensors)} sensors")
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
    """Return the columns of a teacher's action distribution, which only minibatches for distillation have."""
    size = int(spec.action_spec.continuous_size)
    shapes = {TEACHER_MEAN: size, TEACHER_STD: size, TEACHER_PROBS: sum(spec.action_spec.discrete_branches)}
    return {name: ColumnEntry(np.dtype(np.float32), (width,)) for name, width in shapes.items()}


def bootstrap_names(num_sensors: int) -> list[str]:
    """Return the columns kept for the observation after a trajectory's last step, for bootstrapping."""
    return [*(sensor_name(number) for number in range(num_sensors)), "mask", "memory"]


def entry_bytes(entries: Mapping[str, ColumnEntry]) -> int:
    """Return the size of one row in bytes."""
    return sum(entry.dtype.itemsize * math.prod(entry.shape) for entry in entries.values())


def sensor_name(number: int, of: str = OBSERVATIONS) -> str:
    """Return the name of a sensor's column, such as ``obs.0``."""
    return f"{of}.{number}"


class Columns(Generic[A]):
    """Rows as parallel numpy or torch arrays, by column name. The set of columns never changes.

    ``slice`` returns views, and stores write through them.

    Args:
        arrays: arrays of the same length, by column name. Neither they nor the dictionary are copied.
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
        """Return all sensors of ``obs``, or of another kind of observation such as ``next_obs``, in order."""
        prefix = of + "."
        return tuple([array for name, array in self._arrays.items() if name.startswith(prefix)])

    def without_sensors(self, of: str) -> Columns[A]:
        """Return all columns except the sensors of ``obs``, or of another kind of observation."""
        return Columns({name: array for name, array in self._arrays.items() if not name.startswith(of + ".")})

    def map(self, function: Callable[[A], B]) -> Columns[B]:
        return Columns({name: function(array) for name, array in self._arrays.items()})

    def slice(self, start: int, stop: int) -> Columns[A]:
        rows = slice(start, stop)
        return Columns({name: array[rows] for name, array in self._arrays.items()})  # type: ignore[index]

    def take(self, rows: Any) -> Columns[A]:
        """Return a copy of the rows with these indices, an integer array of the same library."""

        def taken(array: Any) -> Any:
            if not isinstance(array, np.ndarray):
                return array.index_select(0, rows)
            if not array[:1].size:  # numpy would index every row even though the column has no width
                return np.zeros((len(rows), *array.shape[1:]), array.dtype)
            return array.take(rows, axis=0)

        return self.map(taken)

    def with_columns(self, arrays: Mapping[str, A]) -> Columns[A]:
        """Return these columns with others added or replaced."""
        return Columns({**self._arrays, **arrays})


def concatenate(parts: Sequence[Columns[NDArray[Any]]]) -> Columns[NDArray[Any]]:
    """Concatenate the rows of parts with the same columns, in order. A single part is returned without a copy."""
    if len(parts) == 1:
        return parts[0]
    return Columns({name: np.concatenate([part[name] for part in parts]) for name in parts[0]})


def empty(entries: Mapping[str, ColumnEntry], length: int) -> Columns[NDArray[Any]]:
    """Create uninitialized columns of ``length`` rows."""
    return Columns({name: np.empty((length, *entry.shape), entry.dtype) for name, entry in entries.items()})


def zeros(entries: Mapping[str, ColumnEntry], length: int) -> Columns[NDArray[Any]]:
    """Create columns of ``length`` rows of zeros. The system allocates memory only as rows are written."""
    return Columns({name: np.zeros((length, *entry.shape), entry.dtype) for name, entry in entries.items()})


def num_bytes(columns: Columns[NDArray[Any]]) -> int:
    """Return the total size of all columns in bytes."""
    return sum(array.nbytes for array in columns.values())


def run_or_rows(rows: NDArray[np.int64]) -> slice | NDArray[np.int64]:
    """Convert ascending row indices (at least one) to a slice if they are consecutive.

    Copying consecutive rows is several times faster than scattering them.
    """
    first, last = int(rows[0]), int(rows[-1])
    return slice(first, last + 1) if last - first == len(rows) - 1 else rows


def spoil(columns: Columns[NDArray[Any]], rows: Any) -> None:
    """Overwrite rows with NaN, the largest number, True or -1, so that code that still uses them fails visibly."""
    for array in columns.values():
        kind = array.dtype.kind
        array[rows] = (
            np.nan if kind == "f" else np.iinfo(array.dtype).max if kind == "u" else True if kind == "b" else -1
        )
