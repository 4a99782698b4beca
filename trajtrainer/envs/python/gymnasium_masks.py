"""Action masks of Gymnasium and PettingZoo agents: how to find and read them.

Shape legend: N agents, D sum of branch sizes.
"""

import inspect
import logging
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from trajtrainer.core.errors import InvalidDataError
from trajtrainer.core.steps import BoolArray
from trajtrainer.envs.python.gymnasium_observations import Key, parts_of, sensor_name

logger = logging.getLogger(__name__)

OBSERVATION, MASK = "observation", "action_mask"
MASK_METHOD = "action_masks"
"""The method of an environment that sb3-contrib calls to get masks."""
_SIMILAR_METHODS = ("action_mask", "valid_action_mask", "get_action_mask", "valid_actions", "legal_actions")
_LIKE_MASK = re.compile(r"action.*mask|mask.*action|(legal|valid|avail\w*|allowed|possible)_?(action|move)", re.I)
# Only the infos of the first reset and the first step are examined, because later infos have the same keys.
_EXAMINED_CALLS = 2


class AgentMasks:
    """The action masks of one behavior: D numbers, 1 = allowed, in one array, or one per branch or part of an action.

    They come from the key ``action_mask`` of the observations, from ``action_mask`` in the agents' infos, or from the
    environment's method ``action_masks()``, in this order. A mask in the observations is also a sensor, unless the only
    keys of the observations are ``observation`` and ``action_mask``. A warning lists anything else that looks like a
    mask but cannot be used.

    Args:
        observation_space: observation space of the agents.
        action_space: action space of the agents.
        branches: sizes of the discrete branches.
        where: name of the owner, for error messages.

    Attributes:
        is_paired: True if the only keys of the observations are ``observation`` and ``action_mask``.
    """

    def __init__(
        self, observation_space: spaces.Space[Any], action_space: spaces.Space[Any], branches: Sequence[int], where: str
    ) -> None:
        self._action_space = action_space
        self._branches = list(branches)
        self._num_choices = sum(branches)
        self._where = where
        self.is_paired = isinstance(observation_space, spaces.Dict) and set(observation_space) == {OBSERVATION, MASK}
        self._path: tuple[Key, ...] | None = None
        self._unused: list[str] = []
        for path, part in _parts(observation_space):
            size = _num_values(part)
            if self._num_choices and path[-1] == MASK and (size == self._num_choices or self.is_paired):
                self._path = path
            elif self._is_like_mask(path[-1], size):
                self._unused.append(f"the observation {sensor_name(path)!r} with {size} numbers")
        self._calls_to_examine = 0 if self._path is not None else _EXAMINED_CALLS

    def method_of(self, get: Callable[[str], Any]) -> Callable[[], Any] | None:
        """Return the environment's method ``action_masks()``; None if it has none or the observations have a mask.

        Args:
            get: returns an attribute of the environment or its wrappers by name, or raises AttributeError.
        """
        if self._path is not None:
            return None
        for name in (MASK_METHOD, *_SIMILAR_METHODS):
            try:
                found = get(name)
            except Exception:  # noqa: S112  # missing, or a property that does not work before the first reset
                continue
            if name == MASK_METHOD and self._num_choices and _takes_no_arguments(found):
                return found  # type: ignore[no-any-return]
            self._unused.append(f"{name} of the environment")
        return None

    def rows(self, observations: Sequence[Any], infos: Sequence[Mapping[str, Any]]) -> BoolArray:
        """Return the masks, bool [N, D], True = forbidden.

        Raises:
            InvalidDataError: a mask is missing, or its size differs from that of the actions.
        """
        forbidden = np.zeros((len(observations), self._num_choices), np.bool_)
        if self._calls_to_examine:
            self._examine(next(filter(None, infos), {}), 1)
        if self._path is not None:
            for row, observation in zip(forbidden, observations, strict=True):
                self._read(self._at_path(observation), row)
        elif self._num_choices and any(infos):
            for row, info in zip(forbidden, infos, strict=True):
                if (mask := info.get(MASK)) is not None:
                    self._read(mask, row)
        return forbidden

    def batch(self, observations: Any, infos: Mapping[str, Any], number: int) -> BoolArray:
        """Like ``rows``, for N observations and infos in the format of Gymnasium's vectorized environments.

        In this format, infos contain an array [N, ...] per name, and a boolean array ``_name`` if some copies have no
        value.

        Raises:
            InvalidDataError: masks are missing, or their number or size differs from that of the actions.
        """
        forbidden = np.zeros((number, self._num_choices), np.bool_)
        if self._calls_to_examine:
            self._examine(infos, number)
        masks = infos.get(MASK) if self._path is None else self._at_path(observations)
        if not self._num_choices or masks is None:
            return forbidden
        counts = np.ones(number, np.bool_)
        if self._path is None:
            counts = infos.get(f"_{MASK}", counts)
        rows = _unbatched(masks)
        if len(rows) != number or len(counts) != number:
            raise InvalidDataError(f"{self._where}: found action_masks for {len(rows)} copies, expected {number}.")
        for row, mask, has_one in zip(forbidden, rows, counts, strict=True):
            if has_one and mask is not None:
                self._read(mask, row)
        return forbidden

    def _at_path(self, observations: Any) -> Any:
        assert self._path is not None
        try:
            for key in self._path:
                observations = observations[key]
        except (KeyError, IndexError, TypeError) as error:
            raise InvalidDataError(
                f"{self._where}: an observation has no {sensor_name(self._path)!r}, which is part of its space."
            ) from error
        return observations

    def _read(self, mask: Any, row: BoolArray) -> None:
        allowed = _flat(mask, self._action_space)
        are_numbers = allowed.dtype.kind in "biuf"
        if allowed.size != len(row) or not are_numbers:
            what = "entries" if are_numbers else "entries that are not numbers"
            raise InvalidDataError(
                f"{self._where}: an action_mask has {allowed.size} {what}, expected {len(row)}, one for each "
                f"choice of the discrete actions {tuple(self._branches)}."
            )
        row[:] = allowed == 0

    def _is_like_mask(self, name: Key, size: int) -> bool:
        """Return whether a name looks like a mask. A name that only contains "mask" counts if the size is right."""
        is_one_per_choice = self._num_choices > 0 and size == self._num_choices
        return bool(_LIKE_MASK.search(str(name)) or (is_one_per_choice and "mask" in str(name).lower()))

    def _examine(self, infos: Mapping[str, Any], number: int) -> None:
        """Warn about anything in the space, environment or infos that looks like a mask, unless masks are found."""
        self._calls_to_examine -= 1
        if MASK in infos and self._num_choices:
            self._calls_to_examine = 0
            return
        similar = [name for name, value in infos.items() if self._is_like_mask(name, _size(value) // number)]
        unused = dict.fromkeys([*self._unused, *(f"info[{name!r}]" for name in similar if str(name)[:1] != "_")])
        if not unused:
            return
        self._calls_to_examine = 0
        expected = (
            f"A mask has {self._num_choices} numbers (1 = allowed) for the discrete branches {self._branches}. It must "
            f"be {MASK!r} in a Dict observation or in the info, or the result of the method {MASK_METHOD}()."
            if self._num_choices
            else "Only discrete actions can be masked, and these are continuous."
        )
        logger.warning(
            "%s: the following cannot be used as an action mask: %s. %s", self._where, ", ".join(unused), expected
        )


def _parts(space: spaces.Space[Any], path: tuple[Key, ...] = ()) -> Iterator[tuple[tuple[Key, ...], spaces.Space[Any]]]:
    """Yield all parts of a space with the keys that lead to them, outer parts first."""
    if path:
        yield path, space
    for key, part in parts_of(space).items():
        yield from _parts(part, (*path, key))


def _num_values(space: spaces.Space[Any]) -> int:
    """Return how many numbers a sample contains."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        return sum(map(_num_values, parts_of(space).values()))
    return math.prod(space.shape or ())


def _takes_no_arguments(found: Any) -> bool:
    try:
        inspect.signature(found).bind()
    except (TypeError, ValueError):
        return False
    return True


def _size(value: Any) -> int:
    try:
        return np.size(value)
    except ValueError:  # raised for a list of arrays with different shapes
        return 0


def _unbatched(masks: Any) -> Any:
    """Return the masks of N copies one by one. A tuple or dict contains an array [N, size] for each part."""
    if isinstance(masks, Mapping):
        return [dict(zip(masks, parts, strict=True)) for parts in zip(*masks.values(), strict=True)]
    return list(zip(*masks, strict=True)) if isinstance(masks, tuple) else masks


def _flat(mask: Any, space: spaces.Space[Any]) -> NDArray[Any]:
    """Return a mask of an action space as one array. Parts without a mask (such as continuous ones) are None."""
    if isinstance(mask, np.ndarray):
        return mask.ravel()
    if isinstance(mask, Mapping) and isinstance(space, spaces.Dict):
        pairs = [(mask.get(key), part) for key, part in space.spaces.items()]
    elif isinstance(mask, tuple | list):
        alike = isinstance(space, spaces.Tuple) and len(space.spaces) == len(mask)
        pairs = list(zip(mask, space.spaces if alike else [space] * len(mask), strict=True))  # type: ignore[attr-defined]
    else:
        return np.ravel(mask)
    given = [_flat(part, of) for part, of in pairs if part is not None]
    return np.concatenate(given) if given else np.zeros(0)
