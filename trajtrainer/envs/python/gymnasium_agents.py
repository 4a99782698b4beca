"""The spaces of a Gymnasium agent as a behavior: observations, actions and action masks.

Shape legend: N agents, D sum of branch sizes.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from trajtrainer.core import steps
from trajtrainer.core.errors import InvalidDataError, UnsupportedError
from trajtrainer.core.numeric import first_not_finite
from trajtrainer.core.spec import ActionSpec, BehaviorSpec
from trajtrainer.core.steps import ActionBatch, BoolArray, FloatArray, IntArray, ObservationArray
from trajtrainer.envs.python.gymnasium_masks import OBSERVATION, AgentMasks
from trajtrainer.envs.python.gymnasium_observations import (
    SUPPORTED,
    Key,
    ObservationLayout,
    at,
    parts_of,
)

# Larger bounds are limits of the data type, and count as no bounds.
_UNBOUNDED_REAL = 1e30
_UNBOUNDED_WHOLE = 2.0**31 - 1

# Converts the actions of a batch, f32 [N, C] and i32 [N, K], to N actions of a space or of a part of it.
_Assemble = Callable[[FloatArray, IntArray], Sequence[Any]]
# Converts N actions of a leaf of the space to the trainer's actions, [N, columns of the leaf].
_Read = Callable[[Sequence[Any]], NDArray[Any]]


class _Leaf(NamedTuple):
    """A leaf of the space: the keys that lead to it, its columns, and a function that reads it."""

    path: tuple[Key, ...]
    columns: slice
    read: _Read


class ActionLayout:
    """Maps an action space to a trainer's actions, in the order of the space (Gymnasium sorts a Dict's keys).

    - Box: continuous actions. Actions in [-1, 1] are scaled to the bounds, and rounded for integer Boxes. A Box needs
      finite bounds, because otherwise the scale of its actions is unknown.
    - Discrete: a branch. MultiDiscrete: a branch per number. MultiBinary: a branch of size 2 per number.
    - Dict and Tuple: the actions of their parts in order. If they are both continuous and discrete, they are hybrid
      actions.

    Args:
        space: the action space.
        where: name of the space's owner, for error messages.

    Raises:
        UnsupportedError: the space is of another kind, or has no actions.
    """

    def __init__(self, space: spaces.Space[Any], where: str) -> None:
        self._where = where
        self._size = 0
        self._branches: list[int] = []
        self._continuous: list[_Leaf] = []
        self._discrete: list[_Leaf] = []
        self._assemble = self._add(space, ())
        self.spec = ActionSpec(self._size, tuple(self._branches))
        if not self._size and not self._branches:
            raise UnsupportedError(f"{where}: the action space {space} is empty.")

    def actions(self, batch: ActionBatch) -> Sequence[Any]:
        """Return N actions of the space, in the order of the batch."""
        return self._assemble(batch.env_continuous, batch.discrete)

    def decisions(self, actions: Sequence[Any]) -> tuple[FloatArray, IntArray]:
        """Invert ``actions``: return continuous f32 [N, C] and discrete i32 [N, K] for N actions of the space."""
        continuous = np.zeros((len(actions), self.spec.continuous_size), np.float32)
        discrete = np.zeros((len(actions), self.spec.discrete_size), np.int32)
        for columns, leaves in ((continuous, self._continuous), (discrete, self._discrete)):
            for leaf in leaves:
                values = actions
                for key in leaf.path:
                    values = [value[key] for value in values]
                columns[:, leaf.columns] = leaf.read(values)
        return continuous, discrete

    def _add(self, space: spaces.Space[Any], path: tuple[Key, ...]) -> _Assemble:
        """Assign the next columns of a batch to a space or a part of it."""
        match space:
            case spaces.Dict() | spaces.Tuple():
                parts = {key: self._add(part, (*path, key)) for key, part in parts_of(space).items()}

                def assemble_parts(continuous: FloatArray, discrete: IntArray) -> Sequence[Any]:
                    rows = list(zip(*(part(continuous, discrete) for part in parts.values()), strict=True))
                    if isinstance(space, spaces.Tuple):
                        return rows
                    return [dict(zip(parts, row, strict=True)) for row in rows]

                return assemble_parts
            case spaces.Box() if math.prod(space.shape):
                columns = slice(self._size, self._size + math.prod(space.shape))
                self._size = columns.stop
                limit = _UNBOUNDED_WHOLE if np.issubdtype(space.dtype, np.integer) else _UNBOUNDED_REAL
                low, high = space.low.astype(np.float64), space.high.astype(np.float64)
                if not ((low > -limit) & (high < limit)).all():
                    raise UnsupportedError(
                        f"{self._where}: the action space {space}{at(path)} has no finite bounds, so the range of "
                        "the actions is unknown. Set low and high, or rescale it with "
                        "gymnasium.wrappers.TransformAction."
                    )
                assemble, read = _box(space, columns)
                self._continuous.append(_Leaf(path, columns, read))
                return assemble
            case spaces.Discrete():
                column, start = self._add_branches([int(space.n)], path, space.start).start, int(space.start)

                def assemble_choice(_: FloatArray, discrete: IntArray) -> Sequence[Any]:
                    values: list[int] = discrete[:, column].tolist()
                    return [value + start for value in values] if start else values

                return assemble_choice
            case spaces.MultiDiscrete() if space.nvec.size:
                return _numbers(space, self._add_branches(space.nvec.ravel().tolist(), path, space.start), space.start)
            case spaces.MultiBinary() if math.prod(space.shape):
                columns = self._add_branches([2] * math.prod(space.shape), path, 0)
                return _numbers(space, columns, np.zeros(space.shape, np.int64))
        raise UnsupportedError(
            f"{self._where}: the action space {space}{at(path)} cannot be converted to actions. Supported spaces are "
            f"{SUPPORTED}; none may be empty. A wrapper (gymnasium.ActionWrapper) can convert it."
        )

    def _add_branches(self, sizes: list[int], path: tuple[Key, ...], first: Any) -> slice:
        columns = slice(len(self._branches), len(self._branches) + len(sizes))
        self._branches += sizes
        starts = np.broadcast_to(np.ravel(first), len(sizes))
        self._discrete.append(
            _Leaf(path, columns, lambda values: np.array(values, np.int64).reshape(-1, len(sizes)) - starts)
        )
        return columns


def _box(space: spaces.Box, columns: slice) -> tuple[_Assemble, _Read]:
    low, high = space.low.astype(np.float64).ravel(), space.high.astype(np.float64).ravel()
    whole = np.issubdtype(space.dtype, np.integer)
    # Extend the range by half an integer at both ends, so that each integer gets an equal share of [-1, 1].
    margin = 0.5 if whole else 0.0
    center, half = (low + high) / 2, (high - low) / 2 + margin
    smallest, largest = space.low.ravel(), space.high.ravel()

    def assemble(continuous: FloatArray, _: IntArray) -> Sequence[Any]:
        stretched = continuous[:, columns] * half + center
        if whole:
            stretched = np.rint(stretched)
        # Clip again, because the cast may round a number past a bound.
        values = np.clip(np.clip(stretched, low, high).astype(space.dtype), smallest, largest)
        rows: list[Any] = list(values.reshape(-1, *space.shape))
        return rows if space.shape else [np.asarray(row) for row in rows]

    def read(values: Sequence[Any]) -> NDArray[Any]:
        shrunk: NDArray[Any] = np.array(values, np.float64).reshape(-1, len(half)) - center
        decided: NDArray[Any] = np.divide(shrunk, half, out=np.zeros_like(shrunk), where=half > 0)
        return decided

    return assemble, read


def _numbers(space: spaces.MultiDiscrete | spaces.MultiBinary, columns: slice, start: Any) -> _Assemble:
    def assemble(_: FloatArray, discrete: IntArray) -> Sequence[Any]:
        return list((discrete[:, columns].reshape(-1, *space.shape) + start).astype(space.dtype))

    return assemble


class AgentSpaces:
    """The spaces of agents that share a behavior.

    Args:
        observation_space: observation space of the agents.
        action_space: action space of the agents.
        where: name of the owner, for error messages.
        reading: ``smallest_picture`` and ``max_items``; see ``ObservationLayout``.

    Attributes:
        spec: spec of the behavior.
        masks: reader of the agents' action masks.

    Raises:
        UnsupportedError: a space cannot be translated.
    """

    def __init__(
        self,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        where: str,
        **reading: Any,
    ) -> None:
        self._where = where
        self._actions = ActionLayout(action_space, where)
        branches = self._actions.spec.discrete_branches
        self.masks = AgentMasks(observation_space, action_space, branches, where)
        seen = observation_space[OBSERVATION] if self.masks.is_paired else observation_space  # type: ignore[index]
        self._observations = ObservationLayout(seen, where, **reading)
        self.spec = BehaviorSpec(self._observations.specs, self._actions.spec)
        self._announced = False

    def event(
        self,
        worker: int,
        agent: steps.LongArray,
        obs: tuple[ObservationArray, ...],
        reward: FloatArray,
        mask: BoolArray,
        interrupted: BoolArray,
    ) -> steps.EnvironmentEvent:
        """Build the event of an environment whose agents all have this behavior, named ``where``, and no groups.

        See ``batch`` for the other arguments. The first event announces the behavior.
        """
        new_specs = {} if self._announced else {self._where: self.spec}
        self._announced = True
        batch = self.batch(agent, np.zeros(len(agent), np.int32), obs, reward, mask, interrupted)
        return steps.EnvironmentEvent(worker, {self._where: batch}, new_specs)

    def batch(
        self,
        agent: steps.LongArray,
        group: IntArray,
        obs: tuple[ObservationArray, ...],
        reward: FloatArray,
        mask: BoolArray,
        interrupted: BoolArray,
    ) -> steps.StepBatch:
        """Build a batch of T terminal rows, followed by the agents that decide; ``mask`` is only for the latter."""
        num_terminal = len(interrupted)
        if num_terminal:
            mask = np.concatenate([np.zeros((num_terminal, mask.shape[1]), np.bool_), mask])
        group_reward = np.zeros(len(agent), np.float32)
        return steps.StepBatch(agent, obs, reward, group, group_reward, mask, interrupted, num_terminal)

    def columns(self, observations: Any, *, is_batch: bool = False) -> tuple[ObservationArray, ...]:
        """Return a column per sensor; see ``ObservationLayout.columns``."""
        if self.masks.is_paired:
            observations = observations[OBSERVATION] if is_batch else [each[OBSERVATION] for each in observations]
        return self._observations.columns(observations, is_batch=is_batch)

    def finite_columns(self, observations: Sequence[Any]) -> tuple[ObservationArray, ...]:
        """Like ``columns``, but rejects NaN and infinity, for observations that no ``Gate`` checks.

        Raises:
            InvalidDataError: an observation does not match the space, or contains NaN or infinity.
        """
        columns = self.columns(observations)
        place = first_not_finite(columns)
        if place is not None:
            sensor = self.spec.observation_specs[place[0]].name
            raise InvalidDataError(f"{self._where}: an observation contains NaN or infinity (sensor {sensor!r}).")
        return columns

    def actions(self, batch: ActionBatch) -> Sequence[Any]:
        """Return N actions of the action space."""
        return self._actions.actions(batch)
