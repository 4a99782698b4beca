"""The agents of a scene by their names, as a parallel and as an AEC environment of PettingZoo.

See docs/guides/unity-environments.md#pettingzoo.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces
from gymnasium.error import ResetNeeded
from pettingzoo.utils.env import AECEnv, ParallelEnv

from trajtrainer.core.errors import SettingsError, UnsupportedError
from trajtrainer.core.steps import BoolArray, StepBatch
from trajtrainer.envs.scenes.scene import Batches, BehaviorSpaces, Decisions, Form, Player, Scene, mapped, pick
from trajtrainer.envs.unity.faults import ActionError

_LOCAL_ID = 0xFFFFFFFF
_MOST_KNOWN = 1_000
_MOST_GONE = 100_000


@dataclass(slots=True)
class AgentViews:
    """What agents see before their next decision, or at the end of their episode, by name."""

    observations: dict[str, Any] = field(default_factory=dict)
    rewards: dict[str, float] = field(default_factory=dict)
    terminations: dict[str, bool] = field(default_factory=dict)
    truncations: dict[str, bool] = field(default_factory=dict)
    infos: dict[str, dict[str, Any]] = field(default_factory=dict)


class _Row(NamedTuple):
    """One agent in a message. ``mask`` is bool [D], True = forbidden."""

    name: str
    reward: float
    observation: Any
    mask: BoolArray
    group: int
    interrupted: bool = False


class NamedAgents:
    """All agents of a scene, each from its first decision after a reset to the end of its episode.

    Unity begins the next episode of an agent on its own; here it is out until the next reset, and does nothing. One
    with a new id is a new agent.

    Args:
        env: see ``Player``.
        behavior: name of the behavior whose agents are played; None for all.
        observations, uint8_visual: see ``BehaviorSpaces``.
        time_scale, arguments: see ``Scene``.

    Attributes:
        agents: names of those whose episode continues.
        asked: those of them that ask for a decision, in the order of the message.
        possible_agents: all that are known. If they become too many, those of earlier episodes are dropped.

    Raises:
        SettingsError, EnvironmentFaultError: see ``Scene``.
        UnsupportedError: a behavior without observations or actions.
    """

    def __init__(
        self,
        env: Player,
        behavior: str | None,
        observations: Form,
        time_scale: float,
        arguments: Mapping[str, Any],
        *,
        uint8_visual: bool,
    ) -> None:
        self._scene = Scene(env, behavior, time_scale, arguments)
        self._form: Form = observations
        self._bytes = uint8_visual
        self._spaces: dict[str, BehaviorSpaces] = {}
        self.agents: list[str] = []
        self.asked: list[str] = []
        self.possible_agents: list[str] = []
        self._gone: set[str] = set()
        self._last: dict[str, _Row] = {}
        # Behavior id -> who asked in the last message: names, and masks [n, D].
        self._waiting: dict[str, tuple[list[str], BoolArray]] = {}
        try:
            self._take_in(self._scene.first, AgentViews())
        except BaseException:
            self.close()
            raise
        self.agents = []

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        """The space of an agent's observations, the same for all of its behavior."""
        return self._of(agent).observation_space

    def action_space(self, agent: str) -> spaces.Space[Any]:
        """The space of an agent's actions, the same for all of its behavior."""
        return self._of(agent).action_space

    def _of(self, agent: str) -> BehaviorSpaces:
        behavior_id = agent.rpartition("?agent_id=")[0]
        if behavior_id not in self._spaces:
            raise SettingsError(f"There is no agent {agent!r}. There are: {', '.join(self.possible_agents)}.")
        return self._spaces[behavior_id]

    def reset(self, seed: int | None, options: Mapping[str, Any] | None) -> AgentViews:
        """Start new episodes. Raises what ``Scene.begin`` raises."""
        batches = self._scene.begin(seed, options)
        if len(self.possible_agents) > _MOST_KNOWN:  # new ones in every episode
            self.possible_agents = []
        self.agents, self._gone, self._last = [], set(), {}
        turn = AgentViews()
        self._take_in(batches, turn)
        return turn

    def step(self, actions: Mapping[str, Any]) -> AgentViews:
        """Act for those that asked; agents without an action do nothing.

        Raises:
            ResetNeeded: there are no agents, as before the first reset and after the last one's end.
            SettingsError: an action for an agent that does not exist.
            UnityActionException: an action that is not of the action space.
            UnsupportedError: too many agents have come and gone.
            EnvironmentFaultError: the player fails.
        """
        if not self.agents:
            raise ResetNeeded("All episodes have ended, or none has begun: call reset() first.")
        for name in actions:
            if name not in self._last:
                raise SettingsError(f"There is an action for {name!r}, but the agents are: {', '.join(self.agents)}.")
        turn = AgentViews()
        for name in self.agents:
            self._report(self._last[name], turn, reward=0.0)
        self._take_in(self._scene.step(dict(self._decisions(actions))), turn)
        since = time.monotonic()
        while self.agents and not self.asked:
            self._scene.check_patience(since)
            self._take_in(self._scene.step(dict(self._decisions({}))), turn)
        return turn

    def _decisions(self, actions: Mapping[str, Any]) -> Iterator[tuple[str, Decisions]]:
        for behavior_id, (names, masks) in self._waiting.items():
            spaces_of = self._spaces[behavior_id]
            continuous, discrete = spaces_of.nothing(masks)
            for row, name in enumerate(names):
                if name in self.asked and actions.get(name) is not None:
                    one = spaces_of.decisions(spaces_of.batch_of_one(actions[name]))
                    if (one[0].shape, one[1].shape) != (continuous[:1].shape, discrete[:1].shape):
                        raise ActionError(f"{name}: {actions[name]!r} is not of {spaces_of.action_space}.")
                    continuous[row], discrete[row] = one[0][0], one[1][0]
            yield behavior_id, (continuous, discrete)

    def _take_in(self, batches: Batches, turn: AgentViews) -> None:
        """Take in a message: who ended, who is asked, who is new."""
        self._waiting, self.asked = {}, []
        for behavior_id, batch in batches.items():
            if behavior_id not in self._spaces:
                spec = self._scene.specs[behavior_id]
                made = BehaviorSpaces(spec, behavior_id, self._form, uint8_visual=self._bytes)
                self._spaces[behavior_id] = made
            rows = self._rows(behavior_id, batch)
            ended, asking = rows[: batch.num_terminal], rows[batch.num_terminal :]
            for row in ended:
                if row.name in self.agents:
                    self.agents.remove(row.name)
                    del self._last[row.name]
                    self._gone.add(row.name)
                    if len(self._gone) > _MOST_GONE:
                        raise UnsupportedError(
                            f"More than {_MOST_GONE} agents have come and gone since the last reset. Call reset() from "
                            "time to time."
                        )
                    self._report(row, turn, reward=turn.rewards.get(row.name, 0.0) + row.reward)
                    turn.terminations[row.name], turn.truncations[row.name] = not row.interrupted, row.interrupted
            self._waiting[behavior_id] = [row.name for row in asking], batch.mask[batch.num_terminal :]
            for row in asking:
                if row.name in self._gone:
                    continue
                is_new = row.name not in self.agents
                if is_new:
                    self.agents.append(row.name)
                    if row.name not in self.possible_agents:
                        self.possible_agents.append(row.name)
                self.asked.append(row.name)
                self._last[row.name] = row
                reward = 0.0 if is_new else turn.rewards.get(row.name, 0.0) + row.reward
                self._report(row, turn, reward=reward)
                turn.infos[row.name]["deciding"] = True

    def _rows(self, behavior_id: str, batch: StepBatch) -> list[_Row]:
        seen = self._spaces[behavior_id].observations(batch.obs)
        rewards = (batch.reward + batch.group_reward).tolist()
        ids = (batch.agent & _LOCAL_ID).tolist()
        interrupted = batch.interrupted.tolist() + [False] * batch.num_decisions
        return [
            _Row(
                f"{behavior_id}?agent_id={ids[row]}",
                rewards[row],
                mapped(pick(seen, row), np.copy),
                batch.mask[row],
                int(batch.group[row]),
                interrupted[row],
            )
            for row in range(len(batch))
        ]

    def _report(self, row: _Row, turn: AgentViews, *, reward: float) -> None:
        turn.observations[row.name] = row.observation
        turn.rewards[row.name] = reward
        turn.terminations[row.name] = turn.truncations[row.name] = False
        info: dict[str, Any] = {"deciding": False}
        if len(row.mask):
            info["action_mask"] = self._of(row.name).sample_mask((~row.mask).view(np.int8))
        if row.group:
            info["group_id"] = row.group
        turn.infos[row.name] = info

    def close(self) -> None:
        """End the player."""
        self._scene.close()


class NamedAgentsEnv:
    """What both kinds of PettingZoo environments have in common: names and spaces of the agents, and the end."""

    render_mode = None

    def __init__(
        self,
        env: Player = None,
        *,
        behavior: str | None = None,
        observations: Form = "auto",
        uint8_visual: bool = False,
        time_scale: float = 20.0,
        **arguments: Any,
    ) -> None:
        self.metadata = {"name": "unity_v0", "render_modes": [], "is_parallelizable": True}
        self._named = NamedAgents(env, behavior, observations, time_scale, arguments, uint8_visual=uint8_visual)

    @property
    def possible_agents(self) -> list[str]:
        """All that are known. Unity may add new ones at any time."""
        return list(self._named.possible_agents)

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        """The space of an agent's observations."""
        return self._named.observation_space(agent)

    def action_space(self, agent: str) -> spaces.Space[Any]:
        """The space of an agent's actions."""
        return self._named.action_space(agent)

    def close(self) -> None:
        """End the player."""
        self._named.close()


class UnityParallelEnv(NamedAgentsEnv, ParallelEnv[str, Any, Any]):  # type: ignore[misc, unused-ignore]
    """All agents of a scene, named ``Behavior?team=0?agent_id=3`` as in ML-Agents' own wrapper.

    A step ends when any agent asks for a decision. ``infos[agent]`` has ``deciding``: whether its next action counts,
    with discrete actions ``action_mask``, as ``action_space(agent).sample(mask=...)`` takes it, and ``group_id``. An
    agent that has ended is out until the next reset. Rewards are those of the agent and its group.

    Args:
        env: a build, ``sim:NAME``, None for the Editor, or a ``UnityEnvironment``.
        behavior: name of the only behavior that is played; None for all.
        observations, uint8_visual, time_scale, arguments: see ``UnityVectorEnv``.

    Raises:
        SettingsError: there is no such behavior.
        UnsupportedError: a behavior without observations or actions.
        EnvironmentFaultError: the player cannot be started or fails.
    """

    @property
    def agents(self) -> list[str]:
        """Those whose episode continues."""
        return list(self._named.agents)

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
        """Start new episodes.

        Args:
            seed: ignored: a player takes its seed when it starts.
            options: ``parameters`` (name -> number) are environment parameters of the game.

        Raises:
            SettingsError: parameters that cannot be sent.
            EnvironmentFaultError: the player fails.
        """
        turn = self._named.reset(seed, options)
        return turn.observations, turn.infos

    def step(
        self, actions: Mapping[str, Any]
    ) -> tuple[dict[str, Any], dict[str, float], dict[str, bool], dict[str, bool], dict[str, dict[str, Any]]]:
        """Act for all agents; those without an action do nothing.

        Raises:
            ResetNeeded: there are no agents.
            SettingsError: an action for an agent that does not exist.
            UnityActionException: an action that is not of the action space.
            EnvironmentFaultError: the player fails.
        """
        turn = self._named.step(actions)
        return turn.observations, turn.rewards, turn.terminations, turn.truncations, turn.infos


class UnityAECEnv(NamedAgentsEnv, AECEnv[str, Any, Any]):  # type: ignore[misc, unused-ignore]
    """All agents of a scene one after the other: those that ask for a decision, in their order.

    The game continues when the last of them has acted, so each agent acts on what it saw when it was asked. Names,
    infos, arguments and errors are those of ``UnityParallelEnv``.
    """

    def __init__(
        self,
        env: Player = None,
        *,
        behavior: str | None = None,
        observations: Form = "auto",
        uint8_visual: bool = False,
        time_scale: float = 20.0,
        **arguments: Any,
    ) -> None:
        super().__init__(
            env,
            behavior=behavior,
            observations=observations,
            uint8_visual=uint8_visual,
            time_scale=time_scale,
            **arguments,
        )
        self.agents: list[str] = []
        self.agent_selection = ""
        self.infos: dict[str, dict[str, Any]] = {}
        self.rewards: dict[str, float] = {}
        self._cumulative_rewards: dict[str, float] = {}
        self.terminations: dict[str, bool] = {}
        self.truncations: dict[str, bool] = {}
        self._queue: list[str] = []
        self._actions: dict[str, Any] = {}
        self._observations: dict[str, Any] = {}

    def observe(self, agent: str) -> Any:
        """What an agent saw last."""
        return self._observations[agent]

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        """Start new episodes. See ``UnityParallelEnv.reset``."""
        turn = self._named.reset(seed, options)
        self.agents = []
        self._skip_agent_selection = None
        for each in (self._observations, self.infos, self.rewards, self._cumulative_rewards):
            each.clear()
        self.terminations.clear()
        self.truncations.clear()
        self._take(turn)

    def step(self, action: Any) -> None:
        """Act for ``agent_selection``; None removes an agent whose episode has ended.

        Raises:
            ResetNeeded: there are no agents.
            UnityActionException: an action that is not of the action space.
            EnvironmentFaultError: the player fails.
        """
        if not self.agents:
            raise ResetNeeded("All episodes have ended, or none has begun: call reset() first.")
        agent = self.agent_selection
        if self.terminations[agent] or self.truncations[agent]:
            self._was_dead_step(action)
            return
        self._cumulative_rewards[agent] = 0.0
        self._clear_rewards()
        self._actions[agent] = action
        self._queue.pop(0)
        if self._queue:
            self.agent_selection = self._queue[0]
        else:
            self._take(self._named.step(self._actions))
        self._accumulate_rewards()
        self._deads_step_first()

    def _take(self, turn: AgentViews) -> None:
        for agent in turn.observations:
            if agent not in self.agents:
                self.agents.append(agent)
                self._cumulative_rewards[agent] = 0.0
        self._observations |= turn.observations
        self.rewards |= turn.rewards
        self.terminations |= turn.terminations
        self.truncations |= turn.truncations
        self.infos |= turn.infos
        self._actions, self._queue = {}, list(self._named.asked)
        self.agent_selection = (self._queue or self.agents)[0]
