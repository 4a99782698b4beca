"""Any ``mlagents_envs.base_env.BaseEnv``: each is a worker."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mlagents_envs.base_env import ActionTuple, BaseEnv

from trajtrainer.core.steps import ActionBatch, EnvironmentEvent
from trajtrainer.envs.base_env_columns import BehaviorColumns
from trajtrainer.envs.in_process import InProcessEnvironment
from trajtrainer.envs.protocol import Parameters
from trajtrainer.settings.environment import EngineSettings
from trajtrainer.unity.side_channels import (
    EngineConfigurationChannel,
    EnvironmentParametersChannel,
    SideChannel,
    StatisticsChannel,
    queue_engine,
    queue_parameter,
)

logger = logging.getLogger(__name__)


class TrainerChannels:
    """The side channels of a trainer, for an environment that takes some: engine, parameters, statistics."""

    def __init__(self, engine: EngineSettings) -> None:
        self._engine = EngineConfigurationChannel()
        queue_engine(self._engine, engine)
        self.parameters = EnvironmentParametersChannel()
        self.statistics = StatisticsChannel()

    def all(self) -> list[SideChannel]:
        """Return the channels to hand to the environment."""
        return [self._engine, self.parameters, self.statistics]


@dataclass(slots=True)
class BaseEnvWorker:
    """An environment and the channels that were given to it, if any."""

    env: BaseEnv
    channels: TrainerChannels | None = None


class BaseEnvEnvironment(InProcessEnvironment):
    """BaseEnvs, stepped one after the other.

    Environment parameters and engine settings reach environments whose factory took our side channels, and so do
    statistics come from them; for others, parameters are dropped with a warning.

    Args:
        workers: the environments; each has its own agents.
        name: for messages.
    """

    def __init__(self, workers: Sequence[BaseEnvWorker], *, name: str | None = None) -> None:
        super().__init__(type(workers[0].env).__name__ if name is None else name, len(workers))
        self._workers = list(workers)
        self._behaviors: list[dict[str, BehaviorColumns]] = [{} for _ in workers]
        self._has_warned = False

    def set_parameters(self, parameters: Parameters) -> None:
        """See ``Environment``.

        Raises:
            SettingsError: a name or number that cannot be sent.
        """
        for worker in self._workers:
            if worker.channels is not None:
                for key, sampler in parameters.items():
                    queue_parameter(worker.channels.parameters, key, sampler)
        if parameters and not self._has_warned and any(worker.channels is None for worker in self._workers):
            self._has_warned = True
            logger.warning(
                "The environment %s takes no environment parameters (%s are not sent). A factory with an argument "
                "'side_channels' is given the channels for them.",
                self.name,
                ", ".join(parameters),
            )

    def _begin(self, worker: int) -> EnvironmentEvent:
        self._workers[worker].env.reset()
        return self._event(worker, is_reset=True)

    def _go_on(self, worker: int, actions: Mapping[str, ActionBatch]) -> EnvironmentEvent:
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
        for number, worker in enumerate(self._workers):
            self.call = ("close", number)
            with contextlib.suppress(Exception):
                worker.env.close()
        self._workers = []
