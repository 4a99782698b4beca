"""An agent with Gymnasium spaces as a behaviour: observations, actions and action masks.

Shape legend: N agents, D sum of branch sizes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from trajtrainer.core.errors import InvalidDataError
from trajtrainer.core.spec import BehaviorSpec
from trajtrainer.core.steps import ActionBatch, BoolArray, ObservationArray
from trajtrainer.envs.gymnasium_actions import ActionLayout
from trajtrainer.envs.gymnasium_observations import SMALLEST_PICTURE, MaxItems, ObservationLayout

_OBSERVATION, _MASK = "observation", "action_mask"


class AgentSpaces:
    """The spaces of one kind of agent.

    Masks (1 = allowed) are taken from a Dict observation whose keys are exactly ``observation`` and ``action_mask``, as
    PettingZoo's games have it, or else from ``action_mask`` of an agent's info. Either is one array, or one per branch.

    Args:
        observation_space: of the agents.
        action_space: of the agents.
        where: whose they are, for messages.
        smallest_picture, max_items: see ``ObservationLayout``.

    Attributes:
        spec: the behaviour.

    Raises:
        UnsupportedError: a space that cannot be translated.
    """

    def __init__(
        self,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        where: str,
        smallest_picture: int = SMALLEST_PICTURE,
        max_items: MaxItems = None,
    ) -> None:
        self._where = where
        self._masked = isinstance(observation_space, spaces.Dict) and set(observation_space) == {_OBSERVATION, _MASK}
        seen = observation_space[_OBSERVATION] if self._masked else observation_space  # type: ignore[index]
        self._observations = ObservationLayout(seen, where, smallest_picture, max_items)
        self._actions = ActionLayout(action_space, where)
        self.spec = BehaviorSpec(self._observations.specs, self._actions.spec)
        self._num_choices = sum(self._actions.spec.discrete_branches)

    def columns(self, observations: Sequence[Any]) -> tuple[ObservationArray, ...]:
        """Return a column per sensor.

        Raises:
            InvalidDataError: an observation is not of the space.
        """
        if self._masked:
            observations = [observation[_OBSERVATION] for observation in observations]
        return self._observations.columns(observations)

    def batch_columns(self, observations: Any) -> tuple[ObservationArray, ...]:
        """Return what ``columns`` does, of observations that are one array [N, ...] for each leaf of the space.

        Raises:
            InvalidDataError: an observation is not of the space.
        """
        return self._observations.batch_columns(observations[_OBSERVATION] if self._masked else observations)

    def masks(self, observations: Sequence[Any], infos: Sequence[Mapping[str, Any]]) -> BoolArray:
        """Return bool [N, D], True = forbidden.

        Raises:
            InvalidDataError: a mask of another size than the actions.
        """
        forbidden = np.zeros((len(observations), self._num_choices), np.bool_)
        if self._num_choices and (self._masked or any(infos)):
            masks = (o[_MASK] for o in observations) if self._masked else (info.get(_MASK) for info in infos)
            for row, mask in zip(forbidden, masks, strict=True):
                if mask is not None:
                    self._read_mask(mask, row)
        return forbidden

    def batch_masks(self, observations: Any, infos: Mapping[str, Any], number: int) -> BoolArray:
        """Return what ``masks`` does, of N observations and infos as a vectorized environment of Gymnasium gives them.

        There the infos have an array [N, ...] under a name, and which copies it counts for under ``_name``, if not all.

        Raises:
            InvalidDataError: masks of another number or size than the actions.
        """
        forbidden = np.zeros((number, self._num_choices), np.bool_)
        masks = observations[_MASK] if self._masked else infos.get(_MASK)
        if not self._num_choices or masks is None:
            return forbidden
        counts = np.ones(number, np.bool_) if self._masked else infos.get(f"_{_MASK}", np.ones(number, np.bool_))
        # A tuple has an array [N, size] for each branch.
        rows = list(zip(*masks, strict=True)) if isinstance(masks, tuple) else masks
        if len(rows) != number or len(counts) != number:
            raise InvalidDataError(f"{self._where}: there are action_masks for {len(rows)} of {number} copies.")
        for row, mask, has_one in zip(forbidden, rows, counts, strict=True):
            if has_one and mask is not None:
                self._read_mask(mask, row)
        return forbidden

    def _read_mask(self, mask: Any, row: BoolArray) -> None:
        allowed = np.concatenate([np.ravel(part) for part in mask]) if isinstance(mask, tuple | list) else mask
        if np.size(allowed) != len(row):
            raise InvalidDataError(
                f"{self._where}: an action_mask has {np.size(allowed)} entries, expected {len(row)}, one for each "
                f"choice of the discrete actions {self._actions.spec.discrete_branches}."
            )
        row[:] = np.ravel(allowed) == 0

    def actions(self, batch: ActionBatch) -> Sequence[Any]:
        """Return N actions that the action space contains."""
        return self._actions.actions(batch)
