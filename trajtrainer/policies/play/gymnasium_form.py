"""Conversion between Gymnasium spaces and the inputs and outputs of a loaded policy.

Shape legend: N agents.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector.utils import concatenate, create_empty_array

from trajtrainer.core.errors import InvalidDataError
from trajtrainer.core.spec import BehaviorSpec
from trajtrainer.core.steps import ActionBatch, BoolArray, ObservationArray
from trajtrainer.envs.python.gymnasium_agents import AgentSpaces
from trajtrainer.envs.python.gymnasium_observations import SMALLEST_PICTURE, MaxItems


class SpacesForm:
    """Observations and actions in Gymnasium spaces. N agents are batched as in a vectorized environment.

    Args:
        observation_space: observation space of one agent.
        action_space: action space of one agent.
        where: source of the spaces, for error messages.
        smallest_picture: see ``ObservationLayout``; None for the default of environments without ``--env-args``.
        max_items: see ``ObservationLayout``.

    Raises:
        UnsupportedError: a space is not supported.
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
        self._agents = AgentSpaces(
            observation_space, action_space, where, smallest_picture=smallest, max_items=max_items
        )
        self.spec: BehaviorSpec = self._agents.spec

    def ask(self, observations: Any, mask: Any) -> tuple[Sequence[ObservationArray], BoolArray, bool]:
        """Convert observations and masks in the same way as ``ColumnsForm.ask``."""
        number = _number(self._observation_space, observations)
        space = self._observation_space
        rows = [observations] if number is None else [_row(space, observations, index) for index in range(number)]
        masks = [mask] if number is None or mask is None else mask
        infos: Sequence[Mapping[str, Any]] = [{}] * len(rows) if mask is None else [{"action_mask": m} for m in masks]
        if len(infos) != len(rows):
            raise InvalidDataError(f"Expected one mask for each of the {len(rows)} observations, found {len(infos)}.")
        return self._agents.finite_columns(rows), self._agents.masks.rows(rows, infos), number is None

    def answer(self, actions: ActionBatch, *, is_single: bool) -> Any:
        """Return the actions of all agents, or the action of a single agent."""
        rows = self._agents.actions(actions)
        if is_single:
            return rows[0]
        batch: Any = create_empty_array(self._action_space, len(rows))
        return concatenate(self._action_space, rows, batch)


def _row(space: spaces.Space[Any], observations: Any, index: int) -> Any:
    match space:
        case spaces.Dict():
            return {key: _row(part, observations[key], index) for key, part in space.spaces.items()}
        case spaces.Tuple():
            return tuple(_row(part, observations[place], index) for place, part in enumerate(space.spaces))
    return observations[index]


def _number(space: spaces.Space[Any], observations: Any) -> int | None:
    """Return the number of observations, from the first array; None for a single observation.

    Raises:
        InvalidDataError: the observations do not match the space.
    """
    try:
        while isinstance(space, spaces.Dict | spaces.Tuple):
            key = next(iter(space.spaces)) if isinstance(space, spaces.Dict) else 0
            space, observations = space[key], observations[key]  # type: ignore[index]
    except (KeyError, IndexError, TypeError) as error:
        raise InvalidDataError(f"The observation does not fit the space {space}: {error!r}.") from error
    if isinstance(space, spaces.Sequence):  # Lists of different lengths cannot form an array.
        shape = np.shape(observations[0]) if len(observations) else ()
        return None if not len(observations) or shape == space.feature_space.shape else len(observations)
    array = np.asarray(observations)
    return len(array) if array.ndim > len(space.shape or ()) else None
