"""A Unity player with the interface of ``mlagents_envs``, for users who write their own training loop.

See docs/explanation/mlagents-behavior.md#python-api and docs/train/unity-environments.md.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from mlagents_envs.base_env import (
    ActionTuple,
    BaseEnv,
    BehaviorMapping,
    BehaviorSpec,
    DecisionSteps,
    TerminalSteps,
)
from numpy.typing import NDArray

from trajtrainer.core.steps import LOCAL_ID, EnvironmentEvent, StepBatch
from trajtrainer.core.version import API_VERSION
from trajtrainer.envs.unity.faults import ActionError
from trajtrainer.envs.unity.proto.communicator_pb2 import UnityRLCapabilitiesProto
from trajtrainer.envs.unity.session import BASE_PORT, EDITOR_PORT, PlayerSession
from trajtrainer.settings.flags import python_names

_ARGUMENTS = tuple(inspect.signature(PlayerSession).parameters)


class UnityEnvironment(PlayerSession, BaseEnv):
    """Replaces ``mlagents_envs.environment.UnityEnvironment``, with the same arguments, methods and exceptions.

    The arguments are those of ``PlayerSession``. Pictures are (channels, height, width), regardless of the package's
    version. ``close`` may be called more than once, and leaving a ``with`` block closes the environment.

    >>> with UnityEnvironment("sim:3DBall", seed=1) as env:  # doctest: +SKIP
    ...     env.reset()
    ...     name = next(iter(env.behavior_specs))
    ...     decision_steps, terminal_steps = env.get_steps(name)
    ...     env.set_actions(name, env.behavior_specs[name].action_spec.random_action(len(decision_steps)))
    ...     env.step()
    """

    API_VERSION = API_VERSION
    DEFAULT_EDITOR_PORT = EDITOR_PORT
    BASE_ENVIRONMENT_PORT = BASE_PORT

    _has_been_reset = False

    if not TYPE_CHECKING:  # type checkers see PlayerSession.__init__ instead
        __init__ = python_names(_ARGUMENTS)(PlayerSession.__init__)

    @property
    def academy_capabilities(self) -> UnityRLCapabilitiesProto:
        """The capabilities that the player announced."""
        return self.capabilities

    @property
    def behavior_specs(self) -> Mapping[str, BehaviorSpec]:
        """The specs of all behaviors seen so far."""
        specs: Mapping[str, BehaviorSpec] = BehaviorMapping(self._specs)
        return specs

    def receive(self) -> EnvironmentEvent:
        with python_names(_ARGUMENTS):
            return super().receive()

    def reset(self) -> None:
        """Start new episodes and wait for the first observations. Raises what ``poll`` raises."""
        self._actions: dict[str, ActionTuple] = {}
        self.start_reset()
        self.receive()
        self._has_been_reset = True

    def step(self) -> None:
        """Send the actions that have been set, and zeros for other agents, and wait for the next observations.

        The first step is a reset. Raises what ``poll`` raises.
        """
        if not self._has_been_reset:
            self.reset()
            return
        self.send({name: (action.continuous, action.discrete) for name, action in self._actions.items()})
        self._actions = {}
        self.receive()

    def get_steps(self, behavior_name: str) -> tuple[DecisionSteps, TerminalSteps]:
        """Return the agents that ask for a decision in the last message, and the agents whose episode ended in it.

        Raises:
            ActionError: there is no such behavior.
        """
        spec = self._spec(behavior_name)
        batch = self._steps.get(behavior_name)
        if batch is None:
            return DecisionSteps.empty(spec), TerminalSteps.empty(spec)
        deciding, ended = slice(batch.num_terminal, None), slice(0, batch.num_terminal)
        branches = spec.action_spec.discrete_branches
        masks = np.split(batch.mask[deciding], np.cumsum(branches)[:-1], axis=1) if branches else None
        decision_steps = DecisionSteps(  # type: ignore[no-untyped-call]
            _observations(batch, deciding),
            batch.reward[deciding],
            (batch.agent[deciding] & LOCAL_ID).astype(np.int32),
            masks,
            batch.group[deciding],
            batch.group_reward[deciding],
        )
        terminal_steps = TerminalSteps(  # type: ignore[no-untyped-call]
            _observations(batch, ended),
            batch.reward[ended],
            batch.interrupted,
            (batch.agent[ended] & LOCAL_ID).astype(np.int32),
            batch.group[ended],
            batch.group_reward[ended],
        )
        return decision_steps, terminal_steps

    def set_actions(self, behavior_name: str, action: ActionTuple) -> None:
        """Set the actions of all agents that ask for a decision, in their order.

        Raises:
            ActionError: there is no such behavior.
            UnityActionException: the number of agents or actions is wrong.
        """
        spec = self._spec(behavior_name)
        if behavior_name in self._steps:
            count = self._steps[behavior_name].num_decisions
            self._actions[behavior_name] = spec.action_spec._validate_action(action, count, behavior_name)

    def set_action_for_agent(self, behavior_name: str, agent_id: int, action: ActionTuple) -> None:
        """Set the action of one agent. Other agents keep the actions set for them, or zeros by default.

        Raises:
            ActionError: there is no such behavior.
            UnityActionException: the number of actions is wrong.
            IndexError: the agent did not ask for a decision.
        """
        spec = self._spec(behavior_name).action_spec
        batch = self._steps.get(behavior_name)
        if batch is None:
            return
        action = spec._validate_action(action, 1, behavior_name)
        ids = batch.agent[batch.num_terminal :] & LOCAL_ID
        places = np.flatnonzero(ids == agent_id)
        if len(places) == 0:
            raise IndexError(f"The agent {agent_id} of {behavior_name!r} did not ask for a decision in the last step.")
        actions = self._actions.setdefault(behavior_name, spec.empty_action(len(ids)))
        actions.continuous[places[0]] = action.continuous[0]
        actions.discrete[places[0]] = action.discrete[0]

    def _spec(self, behavior_name: str) -> BehaviorSpec:
        if behavior_name not in self._specs:
            raise ActionError(
                f"There is no behavior {behavior_name!r}. The behaviors are: "
                f"{', '.join(map(repr, self._specs)) or 'none'}."
            )
        return self._specs[behavior_name]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _observations(batch: StepBatch, rows: slice) -> list[NDArray[Any]]:
    """Return observations in ML-Agents' form: f32, with pictures in 0..1."""
    found: list[NDArray[Any]] = [column[rows] for column in batch.obs]
    return [column / np.float32(255.0) if column.dtype == np.uint8 else column for column in found]
