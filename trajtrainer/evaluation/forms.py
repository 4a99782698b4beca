"""The forms in which observations come to a policy and its actions go.

Shape legend: N agents, O an observation's own shape, D sum of branch sizes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from trajtrainer.core.errors import InvalidDataError
from trajtrainer.core.spec import ActionTuple, BehaviorSpec
from trajtrainer.core.steps import ActionBatch, BoolArray, ObservationArray


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
