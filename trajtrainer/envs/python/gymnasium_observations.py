"""Gymnasium observation spaces as sensors: each leaf of a space is one observation of the behavior.

Shape legend: N observations in a list, O shape of a sensor.
"""

import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces

from trajtrainer.core.errors import InvalidDataError, UnsupportedError
from trajtrainer.core.numeric import numbers_in
from trajtrainer.core.spec import USUAL_PROPERTIES, ObservationSpec, ObservationType
from trajtrainer.core.steps import FloatArray, ObservationArray

logger = logging.getLogger(__name__)

# The smallest picture that the default encoder (simple) accepts; smaller Boxes are treated as game boards, not
# pictures.
SMALLEST_PICTURE = 20
_PICTURE_RANK, _STACK_RANK = 3, 4
_BYTE = 255
SUPPORTED = "Box, Discrete, MultiDiscrete, MultiBinary, and Dict and Tuple of these"

Key = str | int
# The maximum length of a Sequence: one number for all Sequences, or one per sensor name.
MaxItems = int | Mapping[str, int] | None
# Converts the values of one leaf in N observations to a column [N, *O].
Read = Callable[[Sequence[Any]], ObservationArray]

# Supported spaces for the items of a Sequence. Items are read as vectors.
_ITEMS = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)


@dataclass(frozen=True, slots=True)
class _Sensor:
    """A leaf of the space: the keys that lead to it, its sensor, and a function that reads its values as a column."""

    path: tuple[Key, ...]
    spec: ObservationSpec
    read: Read


class ObservationLayout:
    """The sensors of an observation space, in the order of the space (Gymnasium sorts the keys of a Dict).

    - Box: a vector of its numbers. It is a picture if it has three dimensions and two of them are large enough. The
      smaller of its first and last dimensions (the last if they are equal) contains the channels, and the picture is
      transposed to (channels, height, width). A u8 Box with two large dimensions is a picture with one channel. A Box
      with four dimensions is a stack of such pictures along the first dimension; its frames are concatenated along the
      channels. Bytes from 0 to 255 are scaled to 0 to 1: pictures stay u8 until their encoder scales them, and vectors
      are scaled here. All other values become f32 unchanged.
    - Discrete: a one-hot vector. MultiDiscrete: the concatenated one-hot vectors of its numbers. MultiBinary: a vector
      of zeros and ones.
    - Sequence of items that are vectors: a list of entities, like that of Unity's buffer sensor, padded with zeros.
    - Dict and Tuple: the sensors of their parts, named by their path ("arm.angle").

    Args:
        space: the observation space.
        where: name of the space's owner, for error messages.
        smallest_picture: minimum height and width of a picture.
        max_items: maximum length of every Sequence, or a mapping from sensor names to maximum lengths, because the
            space of a Sequence does not define one.

    Raises:
        UnsupportedError: the space is of another kind, is empty, or contains a Sequence without a maximum length.
    """

    def __init__(
        self, space: spaces.Space[Any], where: str, smallest_picture: int = SMALLEST_PICTURE, max_items: MaxItems = None
    ) -> None:
        self._where = where
        self._smallest_picture = smallest_picture
        self._max_items = max_items
        self._sensors = list(self._sensors_of(space, ()))
        if not self._sensors:
            raise UnsupportedError(f"{where}: the observation space {space} is empty.")

    @property
    def specs(self) -> list[ObservationSpec]:
        """The sensors, in the order of the columns."""
        return [sensor.spec for sensor in self._sensors]

    def columns(self, observations: Any, *, is_batch: bool = False) -> tuple[ObservationArray, ...]:
        """Return a column [N, *O] per sensor, f32 or u8.

        Args:
            observations: N observations or, if ``is_batch``, an array [N, ...] for each leaf of the space.
            is_batch: whether the observations are batched like those of Gymnasium's vectorized environments.

        Raises:
            InvalidDataError: an observation does not match the space.
        """
        return tuple(self._column(sensor, observations, is_batch=is_batch) for sensor in self._sensors)

    def _sensors_of(self, space: spaces.Space[Any], path: tuple[Key, ...]) -> Iterator[_Sensor]:
        smallest = self._smallest_picture
        match space:
            case spaces.Dict() | spaces.Tuple():
                for key, part in parts_of(space).items():
                    yield from self._sensors_of(part, (*path, key))
            case spaces.Box() if (channels := _channel_axis(space, smallest)) is not None:
                yield _picture(space, channels, path)
            case spaces.Box() if math.prod(space.shape) and _holds_bytes(space):
                if len(space.shape) > 1:
                    logger.warning(
                        "%s: sensor %r consists of bytes, but its shape %s is not that of a picture (height and width "
                        "of at least %d, plus channels and possibly stacked frames), so the bytes are read as %d "
                        "numbers from 0 to 1. If they are codes that use only a part of 0 to 255, set normalize: true "
                        "in network_settings; if they are a picture, pass --env-args smallest_picture=N.",
                        self._where,
                        sensor_name(path),
                        space.shape,
                        smallest,
                        math.prod(space.shape),
                    )
                yield _sensor_at(path, (math.prod(space.shape),), _numbers(space.shape, largest=_BYTE))
            case spaces.Box() | spaces.MultiBinary() if math.prod(space.shape):
                yield _sensor_at(path, (math.prod(space.shape),), _numbers(space.shape))
            case spaces.Discrete():
                yield _sensor_at(path, (int(space.n),), _one_hots(np.array([space.n]), np.array([space.start]), ()))
            case spaces.MultiDiscrete() if space.nvec.size:
                yield _sensor_at(path, (int(space.nvec.sum()),), _one_hots(space.nvec, space.start, space.shape))
            case spaces.Sequence() if isinstance(space.feature_space, _ITEMS):
                yield self._entities(space, path)
            case _:
                raise UnsupportedError(
                    f"{self._where}: the observation space {space}{at(path)} cannot be converted to sensors. "
                    f"Supported spaces are {SUPPORTED}, and Sequence of any of the first four; none may be empty. A "
                    "wrapper (gymnasium.ObservationWrapper) can convert it."
                )

    def _entities(self, space: spaces.Sequence, path: tuple[Key, ...]) -> _Sensor:
        name = sensor_name(path)
        most = self._max_items.get(name) if isinstance(self._max_items, Mapping) else self._max_items
        if most is None:
            raise UnsupportedError(
                f"{self._where}: the observation space {space}{at(path)} is a list without a maximum length, which the "
                f"network needs. Set one with --env-args max_items=20, or with 'max_items={{{name}: 20}}' if lists "
                "differ."
            )
        (item,) = self._sensors_of(space.feature_space, path)
        if len(item.spec.shape) != 1:
            raise UnsupportedError(
                f"{self._where}: the observation space {space}{at(path)} is a list of pictures, for which there is no "
                "encoder. The items of a list must be vectors."
            )
        (size,) = item.spec.shape
        return _sensor_at(path, (most, size), _Entities(item.read, most, size, f"{self._where}: sensor {name!r}"))

    def _column(self, sensor: _Sensor, observations: Any, *, is_batch: bool) -> ObservationArray:
        values = observations
        try:
            for key in sensor.path:
                values = values[key] if is_batch else [value[key] for value in values]
            column = sensor.read(values)
        except (ValueError, TypeError, KeyError, IndexError, OverflowError) as error:
            raise InvalidDataError(
                f"{self._where}: an observation does not fit its space at sensor {sensor.spec.name!r} of shape "
                f"{sensor.spec.shape}: {type(error).__name__}: {error}."
            ) from error
        return column


def parts_of(space: spaces.Space[Any]) -> Mapping[Any, spaces.Space[Any]]:
    """Return the parts of a Dict or Tuple by their keys or indices; empty for other spaces."""
    if isinstance(space, spaces.Tuple):
        return dict(enumerate(space.spaces))
    return space.spaces if isinstance(space, spaces.Dict) else {}


def sensor_name(path: tuple[Key, ...]) -> str:
    """Return the name of the sensor for a part of the space: its keys, joined by dots."""
    return ".".join(map(str, path)) or "observation"


def at(path: tuple[Key, ...]) -> str:
    """Describe the position of a part of the space, for messages; empty for the whole space."""
    return f" at {sensor_name(path)!r}" if path else ""


def _sensor_at(path: tuple[Key, ...], shape: tuple[int, ...], read: Read) -> _Sensor:
    spec = ObservationSpec(shape, USUAL_PROPERTIES[len(shape)], ObservationType.DEFAULT, sensor_name(path))
    return _Sensor(path, spec, read)


class _Entities:
    """Reads lists with up to ``most`` items as a column [N, most, size], padded with zeros.

    Networks ignore items in which all numbers are zero, as in ML-Agents.
    """

    def __init__(self, read: Read, most: int, size: int, where: str) -> None:
        self._read = read
        self._most, self._size = most, size
        self._where = where
        self._has_warned_of_zeros = False

    def __call__(self, values: Sequence[Any]) -> ObservationArray:
        lengths = np.array([len(items) for items in values], np.int64)
        column = np.zeros((len(values), self._most, self._size), np.float32)
        if lengths.max(initial=0) > self._most:
            raise InvalidDataError(
                f"{self._where} has a list of {lengths.max()} items, but max_items is {self._most}. Increase "
                f"max_items (--env-args max_items={lengths.max()}), or send fewer items."
            )
        items = [item for items in values for item in items]
        if items:
            seen = self._read(items)
            if not (self._has_warned_of_zeros or seen.any(axis=1).all()):
                self._has_warned_of_zeros = True
                logger.warning(
                    "%s contains an item that is all zeros, which the network ignores as padding. Add a number that is "
                    "always 1 to each item.",
                    self._where,
                )
            column[np.arange(self._most) < lengths[:, None]] = seen
        return column


def _holds_bytes(space: spaces.Box) -> bool:
    return space.dtype == np.uint8 and bool(np.all(space.low == 0) and np.all(space.high == _BYTE))


def _picture(space: spaces.Box, channel_axis: int, path: tuple[Key, ...]) -> _Sensor:
    frames = space.shape[0] if len(space.shape) == _STACK_RANK else 1
    one = _frame(space)
    whole = one if len(one) == _PICTURE_RANK else (*one, 1)
    height, width = (size for axis, size in enumerate(whole) if axis != channel_axis)
    shape = (frames * whole[channel_axis], height, width)
    dtype: type[np.uint8] | type[np.float32] = np.uint8 if _holds_bytes(space) else np.float32

    def read(values: Sequence[Any]) -> ObservationArray:
        column = _exactly(numbers_in(values, dtype), space.shape).reshape(-1, *whole)
        return np.ascontiguousarray(np.moveaxis(column, channel_axis + 1, 1)).reshape(-1, *shape)

    return _sensor_at(path, shape, read)


def _frame(space: spaces.Box) -> tuple[int, ...]:
    """Return the shape of one picture."""
    return space.shape[1:] if len(space.shape) == _STACK_RANK else space.shape


def _channel_axis(space: spaces.Box, smallest: int) -> int | None:
    """Return the channel axis of a picture, or of each picture in a stack; None if it is not a picture."""
    shape = _frame(space)
    if len(shape) == 2 and space.dtype == np.uint8:
        return 2 if min(shape) >= smallest else None
    if len(shape) != _PICTURE_RANK:
        return None
    axis = 0 if shape[0] < shape[2] else 2
    return axis if min(shape[:axis] + shape[axis + 1 :]) >= smallest else None


def _numbers(shape: tuple[int, ...], largest: int = 1) -> Read:
    """Return a function that reads the numbers as a vector, divided by ``largest``."""
    size = math.prod(shape)

    def read(values: Sequence[Any]) -> ObservationArray:
        column: FloatArray = _exactly(numbers_in(values, np.float32), shape).reshape(-1, size)
        return column if largest == 1 else column / np.float32(largest)

    return read


def _one_hots(sizes: Any, starts: Any, shape: tuple[int, ...]) -> Read:
    counts = np.asarray(sizes, np.int64).ravel()
    offsets = np.cumsum(counts) - counts
    first = np.asarray(starts, np.int64).ravel()
    total = int(counts.sum())

    def read(values: Sequence[Any]) -> ObservationArray:
        chosen = _exactly(numbers_in(values, np.int64), shape).reshape(-1, len(counts)) - first
        if ((chosen < 0) | (chosen >= counts)).any():
            raise ValueError(f"a number outside of 0..{(counts - 1).tolist()} (after subtracting {first.tolist()})")
        column = np.zeros((len(chosen), total), np.float32)
        np.put_along_axis(column, chosen + offsets, 1, axis=1)
        return column

    return read


def _exactly(column: Any, shape: tuple[int, ...]) -> Any:
    if column.shape[1:] != shape:
        raise ValueError(f"shape {column.shape[1:]}, expected {shape}")
    return column
