"""The steps of a ``mlagents_envs.base_env.BaseEnv`` as columns.

Shape legend: N agents of a step batch, T terminal rows of it, D sum of branch sizes, O an observation's own shape.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from mlagents_envs.base_env import DecisionSteps, TerminalSteps
from numpy.typing import ArrayLike, NDArray

from trajtrainer.core.errors import InvalidDataError
from trajtrainer.core.spec import BehaviorSpec, DimensionProperty, ObservationSpec
from trajtrainer.core.steps import ObservationArray, StepBatch, agent_ids

_PICTURE_RANK = 3
_MOVES, _STANDS = DimensionProperty.TRANSLATIONAL_EQUIVARIANCE, DimensionProperty.NONE


class BehaviorColumns:
    """One behaviour of a BaseEnv.

    Pictures that the environment announces as (height, width, channels), by their dimension properties, or where those
    are unspecified by their last dimension being the smallest, are turned to (channels, height, width).

    Args:
        name: of the behaviour.
        spec: as the environment announces it.

    Attributes:
        spec: as the trainer sees it.
    """

    def __init__(self, name: str, spec: BehaviorSpec) -> None:
        self.name = name
        self._channels_last = [_has_channels_last(sensor) for sensor in spec.observation_specs]
        sensors = [
            _turned(sensor) if turn else sensor
            for sensor, turn in zip(spec.observation_specs, self._channels_last, strict=True)
        ]
        self.spec = BehaviorSpec(sensors, spec.action_spec)

    def batch(self, worker: int, decisions: DecisionSteps, terminals: TerminalSteps) -> StepBatch:
        """Return the agents of one step, terminal rows first.

        Where no agent ended or none decides, what the environment gives for them may be empty in any form, as in
        ML-Agents: lists without arrays as well as arrays without rows.

        Raises:
            InvalidDataError: an observation or reward is NaN or infinite, or of another shape than announced.
        """
        num_terminal = len(terminals)
        obs = [steps.obs for steps in (terminals, decisions) if len(steps)]
        batch = StepBatch(
            agent=agent_ids(worker, _joined(terminals.agent_id, decisions.agent_id, np.int64)),
            obs=tuple(self._column(i, [part[i] for part in obs]) for i in range(len(self._channels_last))),
            reward=_joined(terminals.reward, decisions.reward, np.float32),
            group=_joined(terminals.group_id, decisions.group_id, np.int32),
            group_reward=_joined(terminals.group_reward, decisions.group_reward, np.float32),
            mask=self._mask(num_terminal, decisions),
            interrupted=np.asarray(terminals.interrupted, np.bool_),
            num_terminal=num_terminal,
        )
        self._check(batch)
        return batch

    def _column(self, index: int, parts: list[NDArray[Any]]) -> ObservationArray:
        column = parts[0] if len(parts) == 1 else np.concatenate(parts)
        if self._channels_last[index] and column.ndim == _PICTURE_RANK + 1:
            column = np.moveaxis(column, 3, 1)
        expected = tuple(self.spec.observation_specs[index].shape)
        if column.shape[1:] != expected:
            raise InvalidDataError(
                f"Behavior {self.name!r}, observation {index}: the environment sent the shape {column.shape[1:]}, "
                f"but announced {expected}."
            )
        # Copied in any case: an environment may use its arrays again.
        return np.array(column, np.uint8) if column.dtype == np.uint8 else np.array(column, np.float32)

    def _mask(self, num_terminal: int, decisions: DecisionSteps) -> NDArray[np.bool_]:
        mask = np.zeros((num_terminal + len(decisions), sum(self.spec.action_spec.discrete_branches)), np.bool_)
        if decisions.action_mask is not None and len(decisions) and mask.size:
            mask[num_terminal:] = np.concatenate(decisions.action_mask, axis=1)
        return mask

    def _check(self, batch: StepBatch) -> None:
        numbers: dict[str, NDArray[Any]] = {"reward": batch.reward, "group reward": batch.group_reward}
        numbers |= {f"observation {i}": column for i, column in enumerate(batch.obs) if column.dtype == np.float32}
        for what, column in numbers.items():
            if not np.isfinite(column).all():
                raise InvalidDataError(
                    f"Behavior {self.name!r}: the environment sent NaN or infinity as {what}, which no network can "
                    "learn from."
                )


def _has_channels_last(sensor: ObservationSpec) -> bool:
    if len(sensor.shape) != _PICTURE_RANK:
        return False
    properties = tuple(sensor.dimension_property)
    if properties == (_MOVES, _MOVES, _STANDS):
        return True
    unspecified = properties == (DimensionProperty.UNSPECIFIED,) * _PICTURE_RANK
    return unspecified and sensor.shape[2] < min(sensor.shape[:2])


def _turned(sensor: ObservationSpec) -> ObservationSpec:
    height, width, channels = sensor.shape
    return sensor._replace(shape=(channels, height, width), dimension_property=(_STANDS, _MOVES, _MOVES))


def _joined(terminal: ArrayLike, deciding: ArrayLike, dtype: Any) -> NDArray[Any]:
    return np.concatenate([np.asarray(terminal, dtype), np.asarray(deciding, dtype)])
