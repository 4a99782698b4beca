"""The agents of a scene as a parallel and as an AEC environment of PettingZoo.

See docs/train/unity-environments.md#pettingzoo.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.error import ResetNeeded
from pettingzoo.utils.conversions import parallel_to_aec_wrapper
from pettingzoo.utils.env import ParallelEnv

from trajtrainer.core.errors import SettingsError, UnsupportedError
from trajtrainer.core.steps import BoolArray
from trajtrainer.envs.scenes.scene import Batches, BehaviorSpaces, Decisions, Form, Player, Scene, mapped, pick
from trajtrainer.envs.unity.faults import ActionError

Infos = dict[str, dict[str, Any]]
_LOCAL_ID = 0xFFFFFFFF
_MOST_KNOWN = 1_000
_MOST_GONE = 100_000
_NOT_BEGUN = "All episodes have ended, or none has started: call reset() first."


@dataclass(slots=True)
class _Views:
    """Results for the agents that decide next or whose episode has ended, by agent name."""

    observations: dict[str, Any] = field(default_factory=dict)
    rewards: dict[str, float] = field(default_factory=dict)
    terminations: dict[str, bool] = field(default_factory=dict)
    truncations: dict[str, bool] = field(default_factory=dict)
    infos: Infos = field(default_factory=dict)

    def add(self, agent: str, observation: Any, reward: float, info: dict[str, Any]) -> None:
        self.observations[agent] = observation
        self.rewards[agent] = self.rewards.get(agent, 0.0) + reward
        self.terminations[agent] = self.truncations[agent] = False
        self.infos[agent] = info


class UnityParallelEnv(ParallelEnv[str, Any, Any]):  # type: ignore[misc, unused-ignore]
    """All agents of a scene, named ``Behavior?team=0?agent_id=3`` as in ML-Agents' own wrapper.

    A step lasts until any agent asks for a decision. ``infos[agent]`` contains ``deciding`` (whether the agent's next
    action counts), with discrete actions ``action_mask`` in the form that ``action_space(agent).sample(mask=...)``
    takes, and ``group_id`` for agents in a group. An agent whose episode has ended is removed until the next reset. An
    agent with a new id is a new agent. Rewards include those of the agent's group.

    Args:
        env: a build, ``sim:NAME``, None for the Editor, or a ``UnityEnvironment``.
        behavior: name of the only behavior to play; None for all.
        observations, uint8_visual, time_scale, arguments: see ``UnityVectorEnv``.

    Attributes:
        possible_agents: all known agents; Unity may add new ones at any time. If there are too many, those of earlier
            episodes are dropped.

    Raises:
        SettingsError: there is no such behavior.
        UnsupportedError: a behavior has no observations or no actions.
        EnvironmentFaultError: the player cannot be started or fails.
    """

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
        self.possible_agents: list[str] = []
        self._form: Form = observations
        self._bytes = uint8_visual
        self._spaces: dict[str, BehaviorSpaces] = {}
        self._last: dict[str, tuple[Any, dict[str, Any]]] = {}  # observation and info of each agent in an episode
        self._gone: set[str] = set()  # agents whose episode has ended since the reset
        self._asked: list[str] = []
        # By behavior id: names and masks, [n, D], of agents that wait for an action, including agents from earlier
        # episodes.
        self._waiting: dict[str, tuple[list[str], BoolArray]] = {}
        self._scene = Scene(env, behavior, time_scale, arguments)
        try:
            self._begin(self._scene.first)
        except BaseException:
            self.close()
            raise
        self._last.clear()

    @property
    def agents(self) -> list[str]:
        """The agents whose episode continues."""
        return list(self._last)

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        """Return the observation space of an agent, which is the same for all agents of its behavior."""
        return self._spaces_of(agent).observation_space

    def action_space(self, agent: str) -> spaces.Space[Any]:
        """Return the action space of an agent, which is the same for all agents of its behavior."""
        return self._spaces_of(agent).action_space

    def _spaces_of(self, agent: str) -> BehaviorSpaces:
        behavior_id = agent.rpartition("?agent_id=")[0]
        if behavior_id not in self._spaces:
            raise SettingsError(f"There is no agent {agent!r}. The agents are: {', '.join(self.possible_agents)}.")
        return self._spaces[behavior_id]

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[dict[str, Any], Infos]:
        """Start new episodes.

        Args:
            seed: ignored, because a player reads its seed when it starts.
            options: ``parameters`` (name -> number) are environment parameters of the game.

        Raises:
            SettingsError: a parameter cannot be sent.
            EnvironmentFaultError: the player fails.
        """
        batches = self._scene.begin(seed, options)
        if len(self.possible_agents) > _MOST_KNOWN:  # happens if the scene creates new agents in every episode
            self.possible_agents.clear()
        views = self._begin(batches)
        return views.observations, views.infos

    def step(
        self, actions: Mapping[str, Any]
    ) -> tuple[dict[str, Any], dict[str, float], dict[str, bool], dict[str, bool], Infos]:
        """Act for all agents. Agents without an action in ``actions`` do nothing.

        Raises:
            ResetNeeded: there are no agents, because ``reset`` has not been called or all episodes have ended.
            SettingsError: there is an action for an agent that does not exist.
            UnityActionException: an action is not in the action space.
            UnsupportedError: too many agents have come and gone since the reset.
            EnvironmentFaultError: the player fails.
        """
        if not self._last:
            raise ResetNeeded(_NOT_BEGUN)
        for name in actions:
            if name not in self._last:
                raise SettingsError(f"There is an action for {name!r}, but the agents are: {', '.join(self._last)}.")
        views = _Views()
        for name, (observation, info) in self._last.items():
            views.add(name, observation, 0.0, {**info, "deciding": False})
        self._take_in(self._scene.step(dict(self._decisions(actions))), views)
        since = time.monotonic()
        while self._last and not self._asked:
            self._scene.check_patience(since)
            self._take_in(self._scene.step(dict(self._decisions({}))), views)
        return views.observations, views.rewards, views.terminations, views.truncations, views.infos

    def _decisions(self, actions: Mapping[str, Any]) -> Iterator[tuple[str, Decisions]]:
        for behavior_id, (names, masks) in self._waiting.items():
            own = self._spaces[behavior_id]
            continuous, discrete = own.nothing(masks)
            for row, name in enumerate(names):
                if name in self._last and actions.get(name) is not None:
                    one = own.decisions(own.batch_of_one(actions[name]))
                    if (one[0].shape, one[1].shape) != (continuous[:1].shape, discrete[:1].shape):
                        raise ActionError(f"{name}: {actions[name]!r} is not in {own.action_space}.")
                    continuous[row], discrete[row] = one[0][0], one[1][0]
            yield behavior_id, (continuous, discrete)

    def _begin(self, batches: Batches) -> _Views:
        """Start an episode with the message that follows a reset."""
        self._last, self._gone, views = {}, set(), _Views()
        self._take_in(batches, views)
        return views

    def _take_in(self, batches: Batches, views: _Views) -> None:
        """Process a message: which agents have ended, which ask for a decision, and which are new."""
        self._asked, self._waiting = [], {}
        for behavior_id, batch in batches.items():
            if behavior_id not in self._spaces:
                spec = self._scene.specs[behavior_id]
                self._spaces[behavior_id] = BehaviorSpaces(spec, behavior_id, self._form, uint8_visual=self._bytes)
            seen, ends = self._spaces[behavior_id].observations(batch.obs), batch.num_terminal
            rewards = (batch.reward + batch.group_reward).tolist()
            names = [f"{behavior_id}?agent_id={number}" for number in (batch.agent & _LOCAL_ID).tolist()]
            self._waiting[behavior_id] = names[ends:], batch.mask[ends:]
            for row, name in enumerate(names):
                is_end, is_known = row < ends, name in self._last
                if name in self._gone or (is_end and not is_known):
                    continue
                observation = mapped(pick(seen, row), np.copy)
                info: dict[str, Any] = {"deciding": not is_end}
                if batch.mask.shape[1]:
                    info["action_mask"] = self._spaces[behavior_id].sample_mask((~batch.mask[row]).view(np.int8))
                if batch.group[row]:
                    info["group_id"] = int(batch.group[row])
                # A reward at the start of an episode is not the result of any decision.
                views.add(name, observation, rewards[row] if is_known else 0.0, info)
                if is_end:
                    views.truncations[name] = bool(batch.interrupted[row])
                    views.terminations[name] = not batch.interrupted[row]
                    self._leave(name)
                    continue
                if name not in self.possible_agents:
                    self.possible_agents.append(name)
                self._asked.append(name)
                self._last[name] = observation, info

    def _leave(self, name: str) -> None:
        del self._last[name]
        self._gone.add(name)
        if len(self._gone) > _MOST_GONE:
            raise UnsupportedError(
                f"More than {_MOST_GONE} agents have come and gone since the last reset. Call reset() from time to "
                "time."
            )

    def close(self) -> None:
        """Shut down the player."""
        self._scene.close()


class _InTurn(UnityParallelEnv):
    """Lists only the agents that ask for a decision, so that no other agents get a turn."""

    @property
    def agents(self) -> list[str]:
        return list(self._asked)


class UnityAECEnv(parallel_to_aec_wrapper):  # type: ignore[misc, unused-ignore]
    """All agents of a scene, of which those that ask for a decision act one at a time, in order.

    The game continues once the last of them has acted, so each agent acts on its observation from the start of the
    round. Names, infos, arguments and errors are the same as for ``UnityParallelEnv``.
    """

    def __init__(self, env: Player = None, **arguments: Any) -> None:
        self.agents: list[str] = []
        super().__init__(_InTurn(env, **arguments))

    def step(self, action: Any) -> None:
        """Act for ``agent_selection``; None removes an agent whose episode has ended.

        Raises:
            ResetNeeded: there are no agents.
            UnityActionException: the action is not in the action space.
            EnvironmentFaultError: the player fails.
        """
        if not self.agents:
            raise ResetNeeded(_NOT_BEGUN)
        super().step(action)
