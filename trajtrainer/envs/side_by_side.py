"""Environments in this process as the workers of one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from trajtrainer.core.steps import ActionBatch, EnvironmentEvent, agent_ids
from trajtrainer.envs.in_process import InProcessEnvironment
from trajtrainer.envs.protocol import Environment, Parameters


class SideBySide(InProcessEnvironment):
    """Environments of one worker each, which never let wait.

    Args:
        name: for messages.
        environments: at least one.
    """

    def __init__(self, name: str, environments: Sequence[Environment]) -> None:
        super().__init__(name, len(environments))
        self._environments = list(environments)

    def seed_episodes(self, first: int, step: int = 1) -> bool:
        """See ``InProcessEnvironment``."""
        every = step * len(self._environments)
        seeded = [
            isinstance(environment, InProcessEnvironment) and environment.seed_episodes(first + copy * step, every)
            for copy, environment in enumerate(self._environments)
        ]
        return all(seeded)

    def set_parameters(self, parameters: Parameters) -> None:
        """See ``Environment``."""
        for environment in self._environments:
            environment.set_parameters(parameters)

    def _begin(self, worker: int) -> EnvironmentEvent:
        self._environments[worker].reset({})
        return self._next(worker)

    def _go_on(self, worker: int, actions: Mapping[str, ActionBatch]) -> EnvironmentEvent:
        self._environments[worker].send(0, actions)
        return self._next(worker)

    def _next(self, worker: int) -> EnvironmentEvent:
        (event,) = self._environments[worker].wait()
        event.worker = worker
        for batch in event.steps.values():
            batch.agent = agent_ids(worker, batch.agent)
        return event

    def _close(self) -> None:
        for copy, environment in enumerate(self._environments):
            self.call = ("close", copy)
            environment.close()
