"""A scene as a parallel environment of PettingZoo."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gymnasium import spaces
from gymnasium.error import ResetNeeded
from pettingzoo.utils.env import AECEnv, ParallelEnv

from trajtrainer.scenes.named_agents import Cast, Turn
from trajtrainer.scenes.scene import Player
from trajtrainer.scenes.spaces import Form


class CastEnv:
    """What environments of PettingZoo have from a ``Cast``: names and spaces of the agents, and the end."""

    render_mode = None

    def __init__(self, cast: Cast) -> None:
        self.metadata = {"name": "unity_v0", "render_modes": [], "is_parallelizable": True}
        self._cast = cast

    @property
    def possible_agents(self) -> list[str]:
        """All that are known. Unity may bring new ones at any time."""
        return list(self._cast.possible_agents)

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        """Return the space of an agent's observations."""
        return self._cast.observation_space(agent)

    def action_space(self, agent: str) -> spaces.Space[Any]:
        """Return the space of an agent's actions."""
        return self._cast.action_space(agent)

    def close(self) -> None:
        """End the player."""
        self._cast.close()


class UnityParallelEnv(CastEnv, ParallelEnv[str, Any, Any]):  # type: ignore[misc, unused-ignore]
    """All agents of a scene, named ``Behavior?team=0?agent_id=3`` as in ML-Agents' own wrapper.

    A step ends when any agent asks for a decision. ``infos[agent]`` has ``deciding``: whether its next action counts,
    with discrete actions ``action_mask``, as ``action_space(agent).sample(mask=...)`` takes it, and ``group_id``. Who
    has ended is out until the next reset. Rewards are those of the agent and its group.

    Args:
        env: a build, ``sim:NAME``, None for the Editor, or a ``UnityEnvironment``.
        behavior: name of the only behaviour that is played; None for all.
        observations, uint8_visual, time_scale, arguments: see ``UnityVectorEnv``.

    Raises:
        SettingsError: there is no such behaviour.
        UnsupportedError: a behaviour without observations or actions.
        EnvironmentFaultError: the player cannot be started or fails.
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
        super().__init__(Cast(env, behavior, observations, time_scale, arguments, uint8_visual=uint8_visual))

    @property
    def agents(self) -> list[str]:
        """Those whose episode goes on."""
        return list(self._cast.agents)

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
        """Begin all episodes anew.

        Args:
            seed: of no use: a player takes its seed at its start.
            options: ``parameters`` (name -> number) are environment parameters of the game.

        Raises:
            SettingsError: parameters that cannot be sent.
            EnvironmentFaultError: the player fails.
        """
        turn = self._cast.reset(seed, options)
        return turn.observations, turn.infos

    def step(
        self, actions: Mapping[str, Any]
    ) -> tuple[dict[str, Any], dict[str, float], dict[str, bool], dict[str, bool], dict[str, dict[str, Any]]]:
        """Act for all agents; those without an action do nothing.

        Raises:
            ResetNeeded: there is nobody.
            SettingsError: an action for an agent that is not there.
            UnityActionException: an action that is not of the action space.
            EnvironmentFaultError: the player fails.
        """
        turn = self._cast.step(actions)
        return turn.observations, turn.rewards, turn.terminations, turn.truncations, turn.infos


class UnityAECEnv(CastEnv, AECEnv[str, Any, Any]):  # type: ignore[misc, unused-ignore]
    """All agents of a scene one after the other: those that ask for a decision, in their order.

    The game goes on when the last of them has acted, so that each agent acts upon what it saw when it was asked. Names,
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
        super().__init__(Cast(env, behavior, observations, time_scale, arguments, uint8_visual=uint8_visual))
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
        """Return what an agent saw last."""
        return self._observations[agent]

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        """Begin all episodes anew. See ``UnityParallelEnv.reset``."""
        turn = self._cast.reset(seed, options)
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
            ResetNeeded: there is nobody.
            UnityActionException: an action that is not of the action space.
            EnvironmentFaultError: the player fails.
        """
        if not self.agents:
            raise ResetNeeded("All episodes are over, or have not begun: call reset() first.")
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
            self._take(self._cast.step(self._actions))
        self._accumulate_rewards()
        self._deads_step_first()

    def _take(self, turn: Turn) -> None:
        for agent in turn.observations:
            if agent not in self.agents:
                self.agents.append(agent)
                self._cumulative_rewards[agent] = 0.0
        self._observations |= turn.observations
        self.rewards |= turn.rewards
        self.terminations |= turn.terminations
        self.truncations |= turn.truncations
        self.infos |= turn.infos
        self._actions, self._queue = {}, list(self._cast.asked)
        self.agent_selection = (self._queue or self.agents)[0]
