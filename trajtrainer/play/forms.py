"""The forms in which observations come to a policy and its actions go.

Shape legend: N agents, O an observation's own shape, D sum of branch sizes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from gymnasium import spaces
from gymnasium.vector.utils import concatenate, create_empty_array

from trajtrainer.core.errors import InvalidDataError
from trajtrainer.core.spec import ActionTuple, BehaviorSpec
from trajtrainer.core.steps import ActionBatch, BoolArray, ObservationArray
from trajtrainer.envs.gymnasium_agents import AgentSpaces
from trajtrainer.envs.gymnasium_observations import SMALLEST_PICTURE, MaxItems


class Asked(NamedTuple):
    """Observations as a policy takes them: per sensor [N, *O]; bool [N, D]; whether they are those of one agent."""

    obs: Sequence[ObservationArray]
    mask: BoolArray
    is_single: bool


class Form(Protocol):
    """The way in which observations come and actions go."""

    @property
    def spec(self) -> BehaviorSpec:
        """What the agents see and do."""

    def ask(self, observations: Any, mask: Any) -> Asked:
        """Return the observations of one agent, or of several, as columns.

        Raises:
            InvalidDataError: they do not fit.
        """

    def answer(self, actions: ActionBatch, *, is_single: bool) -> Any:
        """Return the actions of all agents, or of the one."""


class ColumnsForm:
    """Observations as an array per sensor, actions as ``mlagents_envs`` takes them.

    Args:
        spec: of the behaviour.
    """

    def __init__(self, spec: BehaviorSpec) -> None:
        self._spec = spec

    @property
    def spec(self) -> BehaviorSpec:
        """As it was given."""
        return self._spec

    def ask(self, observations: Any, mask: Any) -> Asked:
        """See ``Form``."""
        sensors = self.spec.observation_specs
        given = [observations] if len(sensors) == 1 and not isinstance(observations, list | tuple) else observations
        if len(given) != len(sensors):
            raise InvalidDataError(
                f"There are {len(given)} observations, expected one for each of the sensors "
                f"{', '.join(f'{sensor.name} {tuple(sensor.shape)}' for sensor in sensors)}."
            )
        columns = [_column(values) for values in given]
        is_single = columns[0].ndim == len(sensors[0].shape)
        columns = [column[None] for column in columns] if is_single else columns
        number = len(columns[0]) if columns[0].ndim else 0
        for sensor, column in zip(sensors, columns, strict=True):
            if column.shape != (number, *sensor.shape):
                found = column.shape[1:] if is_single else column.shape
                raise InvalidDataError(
                    f"The observation of sensor {sensor.name!r} has the shape {found}, expected {tuple(sensor.shape)}, "
                    f"or {('N', *sensor.shape)} for N agents."
                )
        return Asked(columns, self._mask(mask, number), is_single)

    def _mask(self, mask: Any, number: int) -> BoolArray:
        choices = sum(self.spec.action_spec.discrete_branches)
        if mask is None or not choices:
            return np.zeros((number, choices), np.bool_)
        if isinstance(mask, list | tuple):  # one for each branch
            mask = np.concatenate([np.atleast_2d(branch) for branch in mask], axis=1)
        if np.size(mask) != number * choices:
            raise InvalidDataError(f"The mask has {np.size(mask)} entries, expected {number} x {choices}.")
        return np.asarray(mask, np.bool_).reshape(number, choices)

    def answer(self, actions: ActionBatch, *, is_single: bool) -> ActionTuple:  # noqa: ARG002
        """See ``Form``. It has a row even for one agent, as ``mlagents_envs`` wants it."""
        return ActionTuple(continuous=actions.env_continuous, discrete=actions.discrete)


def _column(values: Any) -> ObservationArray:
    column = np.asarray(values)
    return column if column.dtype == np.uint8 else column.astype(np.float32, copy=False)


class SpacesForm:
    """The spaces of an environment, in and out. N agents come and go as those of a vectorised environment.

    Args:
        observation_space: of one agent.
        action_space: of one agent.
        where: whose they are, for messages.
        smallest_picture: see ``ObservationLayout``; None for what the environments have without ``--env-args``.
        max_items: see ``ObservationLayout``.

    Raises:
        UnsupportedError: a space that has no translation.
    """

    def __init__(
        self,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        where: str,
        smallest_picture: int | None = None,
        max_items: MaxItems = None,
    ) -> None:
        self._observation_space, self._action_space = observation_space, action_space
        smallest = SMALLEST_PICTURE if smallest_picture is None else min(SMALLEST_PICTURE, smallest_picture)
        self._agents = AgentSpaces(observation_space, action_space, where, smallest, max_items)

    @property
    def spec(self) -> BehaviorSpec:
        """The same as sensors and actions."""
        return self._agents.spec

    def ask(self, observations: Any, mask: Any) -> Asked:
        """See ``Form``."""
        number = _number(self._observation_space, observations)
        space = self._observation_space
        rows = [observations] if number is None else [_row(space, observations, index) for index in range(number)]
        masks = [mask] if number is None or mask is None else mask
        infos: Sequence[Mapping[str, Any]] = [{}] * len(rows) if mask is None else [{"action_mask": m} for m in masks]
        if len(infos) != len(rows):
            raise InvalidDataError(f"There are {len(infos)} masks for {len(rows)} observations.")
        return Asked(self._agents.columns(rows), self._agents.masks(rows, infos), number is None)

    def answer(self, actions: ActionBatch, *, is_single: bool) -> Any:
        """See ``Form``."""
        rows = self._agents.actions(actions)
        if is_single:
            return rows[0]
        batch: Any = create_empty_array(self._action_space, len(rows))
        return concatenate(self._action_space, rows, batch)


def _row(space: spaces.Space[Any], observations: Any, index: int) -> Any:
    """Return one observation of several."""
    match space:
        case spaces.Dict():
            return {key: _row(part, observations[key], index) for key, part in space.spaces.items()}
        case spaces.Tuple():
            return tuple(_row(part, observations[place], index) for place, part in enumerate(space.spaces))
    return observations[index]


def _number(space: spaces.Space[Any], observations: Any) -> int | None:
    """Return how many observations these are, by their first array; None for a single one.

    Raises:
        InvalidDataError: they are not of the space.
    """
    try:
        while isinstance(space, spaces.Dict | spaces.Tuple):
            key = next(iter(space.spaces)) if isinstance(space, spaces.Dict) else 0
            space, observations = space[key], observations[key]  # type: ignore[index]
    except (KeyError, IndexError, TypeError) as error:
        raise InvalidDataError(f"The observation does not fit the space {space}: {error!r} is missing.") from error
    if isinstance(space, spaces.Sequence):  # lists of different lengths are no array
        shape = np.shape(observations[0]) if len(observations) else ()
        return None if not len(observations) or shape == space.feature_space.shape else len(observations)
    array = np.asarray(observations)
    return len(array) if array.ndim > len(space.shape or ()) else None
