"""A scene as a parallel environment of PettingZoo."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gymnasium import spaces
from pettingzoo.utils.env import ParallelEnv

from trajtrainer.wrappers.cast import Cast
from trajtrainer.wrappers.scene import Player
from trajtrainer.wrappers.spaces import Form


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
