"""A scene with one agent as a Gymnasium environment."""

from __future__ import annotations

from copy import copy
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode

from trajtrainer.core.errors import UnsupportedError
from trajtrainer.envs.scenes.scene import Player, pick
from trajtrainer.envs.scenes.vector import Infos, UnityVectorEnv
from trajtrainer.envs.unity.environment import UnityEnvironment

ID = "trajtrainer/Unity-v0"
"""Under which Gymnasium makes both kinds of environments, once ``trajtrainer.gymnasium`` is imported."""


class UnityEnv(gymnasium.Env[Any, Any]):
    """A scene with one agent.

    After an episode's end, ``reset`` shows the next one, which Unity has begun on its own; before it, or with
    ``options={"parameters": {name: number}}``, it resets the player. ``info`` has ``agent_id`` and, with discrete
    actions, ``action_mask``, as ``action_space.sample(mask=...)`` takes it.

    The arguments are those of ``UnityVectorEnv``.

    Raises:
        SettingsError, EnvironmentFaultError: see ``UnityVectorEnv``.
        UnsupportedError: there are several agents, or agents without observations or actions.
    """

    def __init__(self, env: Player = None, **arguments: Any) -> None:
        self.metadata = {"render_modes": []}
        self._agents = UnityVectorEnv(env, autoreset_mode=AutoresetMode.DISABLED, **arguments)
        if self._agents.num_envs != 1:
            self._agents.close()
            raise UnsupportedError(
                f"The scene has {self._agents.num_envs} agents of {self._agents.behavior!r}, and UnityEnv supports "
                "one. Use trajtrainer.gymnasium.UnityVectorEnv, or trajtrainer.pettingzoo if they belong together."
            )
        self.observation_space = self._agents.single_observation_space
        self.action_space = self._agents.single_action_space
        self._has_ended = False
        if not isinstance(env, UnityEnvironment):
            self.spec = copy(gymnasium.spec(ID))
            self.spec.kwargs = {"env": env, **arguments}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Infos]:
        """Begin an episode.

        Args:
            seed: of ``np_random`` only: a player takes its seed when it starts.
            options: ``parameters`` (name -> number) are environment parameters of the game.

        Raises:
            SettingsError: parameters that cannot be sent.
            EnvironmentFaultError: the player fails.
        """
        super().reset(seed=seed)
        if self._has_ended and not options:
            options = {"reset_mask": np.ones(1, np.bool_)}
        self._has_ended = False
        observations, infos = self._agents.reset(seed=seed, options=options)
        return pick(observations, 0), self._info(infos)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, Infos]:
        """Act, until the agent asks for the next decision or its episode has ended.

        Raises:
            ResetNeeded: before the first reset, or after an episode's end.
            UnityActionException: an action that is not of the action space.
            EnvironmentFaultError: the player fails.
        """
        batch = self._agents.spaces.batch_of_one(action)
        observations, rewards, terminations, truncations, infos = self._agents.step(batch)
        terminated, truncated = bool(terminations[0]), bool(truncations[0])
        self._has_ended = terminated or truncated
        return pick(observations, 0), float(rewards[0]), terminated, truncated, self._info(infos)

    def _info(self, infos: Infos) -> Infos:
        info: Infos = {"agent_id": int(infos["agent_id"][0])}
        if "action_mask" in infos:
            info["action_mask"] = self._agents.spaces.sample_mask(infos["action_mask"][0])
        return info

    def close(self) -> None:
        """End the player."""
        self._agents.close()
