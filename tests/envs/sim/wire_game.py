"""A game that is played over the wire: a player of its own, connected as a trainer connects to it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tests.envs.python.gymnasium_samples import action_batch
from tests.envs.test_select import NoLogs
from tests.ports import free_port
from trajtrainer.core.spec import BehaviorSpec
from trajtrainer.core.steps import EnvironmentEvent, LongArray, StepBatch
from trajtrainer.envs.protocol import Environment
from trajtrainer.envs.select import make_environment
from trajtrainer.envs.sim.simulation import Role, SimulatedActions, SimulationStep
from trajtrainer.settings.environment import EnvironmentSettings
from trajtrainer.settings.run import RunSettings


@dataclass
class WireRole:
    """What the messages tell of a role."""

    spec: BehaviorSpec
    num_agents: int
    ids: LongArray
    first_group: int
    groups: LongArray | None
    masked: bool = False


class WireGame:
    """A ``Game`` of what arrives."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        environment.reset({})
        event = self._wait()
        self._roles = {name: _role(spec, event.steps[name]) for name, spec in event.new_specs.items()}
        self.roles: Mapping[str, Role] = self._roles
        self.ids: Mapping[str, LongArray] = {name: role.ids for name, role in self._roles.items()}

    def reset(self) -> list[SimulationStep]:
        self._environment.reset({})
        return self._seen(self._wait())

    def step(self, actions: Sequence[SimulatedActions]) -> list[SimulationStep]:
        batches = [action_batch(chosen.continuous, chosen.discrete) for chosen in actions]
        self._environment.send(0, dict(zip(self._roles, batches, strict=True)))
        return self._seen(self._wait())

    def _wait(self) -> EnvironmentEvent:
        (event,) = self._environment.wait(60.0)
        return event

    def _seen(self, event: EnvironmentEvent) -> list[SimulationStep]:
        return [_step(role, event.steps[name]) for name, role in self._roles.items()]


def _role(spec: BehaviorSpec, batch: StepBatch) -> WireRole:
    first = int(batch.group.min())
    groups = (batch.group - first).astype(np.int64) if first else None
    return WireRole(spec, len(batch), batch.agent.copy(), first, groups)


def _step(role: WireRole, batch: StepBatch) -> SimulationStep:
    ended = batch.num_terminal
    agents = np.searchsorted(role.ids, batch.agent)
    assert (role.ids[agents] == batch.agent).all()
    groups = np.zeros_like(agents) if role.groups is None else role.groups[agents]
    assert (batch.group == groups + role.first_group).all(), "an agent stays in its group"
    return SimulationStep(
        observations=tuple(column[ended:] for column in batch.obs),
        reward=batch.reward[ended:],
        mask=None,
        ended=agents[:ended],
        ended_observations=tuple(column[:ended] for column in batch.obs),
        ended_reward=batch.reward[:ended],
        interrupted=batch.interrupted,
        deciding=None if len(agents) - ended == role.num_agents else agents[ended:],
        group_reward=batch.group_reward[ended:],
        ended_group_reward=batch.group_reward[:ended],
    )


@contextlib.contextmanager
def wire_game(name: str, *options: str, seed: int = 1) -> Iterator[WireGame]:
    """The game ``sim:name`` with options of its command line, in a process of its own."""
    settings = EnvironmentSettings(env_path=f"sim:{name}", env_args=list(options), seed=seed, base_port=free_port())
    environment = make_environment(RunSettings(env_settings=settings), NoLogs())
    try:
        yield WireGame(environment)
    finally:
        environment.close()
