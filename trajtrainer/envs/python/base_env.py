"""The steps of a ``mlagents_envs.base_env.BaseEnv`` as columns.

Shape legend: N agents in a step batch, T terminal rows in it, D sum of branch sizes, O shape of one observation.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from mlagents_envs.base_env import ActionTuple, BaseEnv, DecisionSteps, TerminalSteps
from numpy.typing import ArrayLike, NDArray

from trajtrainer.core.errors import InvalidDataError
from trajtrainer.core.numeric import numbers_in
from trajtrainer.core.spec import BehaviorSpec, DimensionProperty, ObservationSpec
from trajtrainer.core.steps import ActionBatch, EnvironmentEvent, ObservationArray, StepBatch, agent_ids
from trajtrainer.envs.in_process import InProcessEnvironment
from trajtrainer.envs.protocol import Parameters
from trajtrainer.envs.unity import side_channels
from trajtrainer.settings.environment import EngineSettings

logger = logging.getLogger(__name__)

_PICTURE_RANK = 3
_MOVES, _STANDS = DimensionProperty.TRANSLATIONAL_EQUIVARIANCE, DimensionProperty.NONE


class BehaviorColumns:
    """One behavior of a BaseEnv.

    Pictures that are announced as (height, width, channels) are transposed to (channels, height, width). They are
    recognized by their dimension properties or, if these are unspecified, by their last dimension, which must be the
    smallest.

    Args:
        name: name of the behavior.
        spec: the spec that the environment announces.

    Attributes:
        spec: the spec that is passed to the trainer, with transposed pictures.
    """

    def __init__(self, name: str, spec: BehaviorSpec) -> None:
        self.name = name
        self._channels_last: list[bool] = []
        sensors = []
        for sensor in spec.observation_specs:
            self._channels_last.append(_has_channels_last(sensor))
            if self._channels_last[-1]:
                height, width, channels = sensor.shape
                properties = _STANDS, _MOVES, _MOVES
                sensor = sensor._replace(shape=(channels, height, width), dimension_property=properties)
            sensors.append(sensor)
        self.spec = BehaviorSpec(sensors, spec.action_spec)

    def batch(self, worker: int, decisions: DecisionSteps, terminals: TerminalSteps) -> StepBatch:
        """Return the agents of one step, terminal rows first.

        As in ML-Agents, the environment may return empty lists or empty arrays if no agent ended or none decides.

        Raises:
            InvalidDataError: an observation or reward is not numeric, or its shape differs from the announced one.
        """
        num_terminal = len(terminals)
        obs = [steps.obs for steps in (terminals, decisions) if len(steps)]
        mask = np.zeros((num_terminal + len(decisions), sum(self.spec.action_spec.discrete_branches)), np.bool_)
        if decisions.action_mask is not None and len(decisions) and mask.size:
            mask[num_terminal:] = np.concatenate(decisions.action_mask, axis=1)
        return StepBatch(
            agent=agent_ids(worker, self._joined("agent id", terminals.agent_id, decisions.agent_id, np.int64)),
            obs=tuple(self._column(i, [part[i] for part in obs]) for i in range(len(self._channels_last))),
            reward=self._joined("reward", terminals.reward, decisions.reward, np.float32),
            group=self._joined("group id", terminals.group_id, decisions.group_id, np.int32),
            group_reward=self._joined("group reward", terminals.group_reward, decisions.group_reward, np.float32),
            mask=mask,
            interrupted=np.asarray(terminals.interrupted, np.bool_),
            num_terminal=num_terminal,
        )

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
        # Always copy, because an environment may reuse its arrays.
        return self._numbers(f"observation {index}", column, np.uint8 if column.dtype == np.uint8 else np.float32)

    def _joined(self, what: str, terminal: ArrayLike, deciding: ArrayLike, dtype: Any) -> NDArray[Any]:
        return np.concatenate([self._numbers(what, terminal, dtype), self._numbers(what, deciding, dtype)])

    def _numbers(self, what: str, values: ArrayLike, dtype: Any) -> NDArray[Any]:
        try:
            return numbers_in(values, dtype)
        except TypeError as error:
            raise InvalidDataError(f"Behavior {self.name!r}: the environment's {what} is unusable: {error}.") from error


def _has_channels_last(sensor: ObservationSpec) -> bool:
    if len(sensor.shape) != _PICTURE_RANK:
        return False
    properties = tuple(sensor.dimension_property)
    if properties == (_MOVES, _MOVES, _STANDS):
        return True
    unspecified = properties == (DimensionProperty.UNSPECIFIED,) * _PICTURE_RANK
    return unspecified and sensor.shape[2] < min(sensor.shape[:2])


class TrainerChannels:
    """The trainer's side channels (engine, parameters, statistics), for an environment that accepts them."""

    def __init__(self, engine: EngineSettings) -> None:
        self._engine = side_channels.EngineConfigurationChannel()
        side_channels.queue_engine(self._engine, engine)
        self.parameters = side_channels.EnvironmentParametersChannel()
        self.statistics = side_channels.StatisticsChannel()

    def all(self) -> list[side_channels.SideChannel]:
        """The channels to pass to the environment."""
        return [self._engine, self.parameters, self.statistics]


@dataclass(slots=True)
class BaseEnvWorker:
    """An environment, and the side channels passed to its factory, if any."""

    env: BaseEnv
    channels: TrainerChannels | None = None


class BaseEnvEnvironment(InProcessEnvironment):
    """One or more BaseEnvs, stepped sequentially.

    Environment parameters, engine settings and statistics only work if the environment's factory accepts the trainer's
    side channels. Otherwise, parameters are ignored with a warning.

    Args:
        workers: the environments; each has its own agents.
        name: name for error messages.
    """

    def __init__(self, workers: Sequence[BaseEnvWorker], *, name: str | None = None) -> None:
        super().__init__(type(workers[0].env).__name__ if name is None else name, len(workers))
        self._workers = list(workers)
        self._behaviors: list[dict[str, BehaviorColumns]] = [{} for _ in workers]
        self._has_warned = False

    def set_parameters(self, parameters: Parameters) -> None:
        """Send parameters through the side channels; see ``Environment``.

        Raises:
            SettingsError: a name or number cannot be sent.
        """
        for worker in self._workers:
            if worker.channels is not None:
                for key, sampler in parameters.items():
                    side_channels.queue_parameter(worker.channels.parameters, key, sampler)
        if parameters and not self._has_warned and any(worker.channels is None for worker in self._workers):
            self._has_warned = True
            logger.warning(
                "The environment %s does not accept environment parameters (not sent: %s). Give its factory an "
                "argument 'side_channels' to receive the channels for them.",
                self.name,
                ", ".join(parameters),
            )

    def _reset_worker(self, worker: int) -> EnvironmentEvent:
        self._workers[worker].env.reset()
        return self._event(worker, is_reset=True)

    def _step_worker(self, worker: int, actions: Mapping[str, ActionBatch]) -> EnvironmentEvent:
        env = self._workers[worker].env
        for behavior, batch in actions.items():
            env.set_actions(behavior, ActionTuple(continuous=batch.env_continuous, discrete=batch.discrete))
        env.step()
        return self._event(worker, is_reset=False)

    def _event(self, worker: int, *, is_reset: bool) -> EnvironmentEvent:
        env, known = self._workers[worker].env, self._behaviors[worker]
        event = EnvironmentEvent(worker, {}, is_reset=is_reset)
        for name in env.behavior_specs:
            decisions, terminals = env.get_steps(name)
            if name not in known:
                known[name] = BehaviorColumns(name, env.behavior_specs[name])
                event.new_specs[name] = known[name].spec
            if len(decisions) or len(terminals):
                event.steps[name] = known[name].batch(worker, decisions, terminals)
        channels = self._workers[worker].channels
        if channels is not None:
            event.statistics = channels.statistics.take()
        return event

    def _close(self) -> None:
        self._close_each([worker.env for worker in self._workers])
        self._workers = []
