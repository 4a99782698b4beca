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
"""The id for ``gymnasium.make`` and ``gymnasium.make_vec``, registered when ``trajtrainer.gymnasium`` is imported."""


class UnityEnv(gymnasium.Env[Any, Any]):
    """A scene with one agent.

    After the end of an episode, ``reset`` returns the start of the next episode, which Unity has already begun on its
    own. In the middle of an episode, or with ``options={"parameters": {name: number}}``, it resets the player. ``info``
    contains ``agent_id`` and, with discrete actions, ``action_mask`` in the form that ``action_space.sample(mask=...)``
    takes.

    The arguments are those of ``UnityVectorEnv``.

    Raises:
        SettingsError, EnvironmentFaultError: see ``UnityVectorEnv``.
        UnsupportedError: there are several agents, or they have no observations or no actions.
    """

    def __init__(self, env: Player = None, **arguments: Any) -> None:
        self.metadata = {"render_modes": []}
        self._agents = UnityVectorEnv(env, autoreset_mode=AutoresetMode.DISABLED, **arguments)
        if self._agents.num_envs != 1:
            self._agents.close()
            raise UnsupportedError(
                f"The scene has {self._agents.num_envs} agents of {self._agents.behavior!r}, but UnityEnv "
                "supports only one. Use trajtrainer.gymnasium.UnityVectorEnv, or trajtrainer.pettingzoo if the agents "
                "interact."
            )
        self.observation_space = self._agents.single_observation_space
        self.action_space = self._agents.single_action_space
        self._has_ended = False
        if not isinstance(env, UnityEnvironment):
            self.spec = copy(gymnasium.spec(ID))
            self.spec.kwargs = {"env": env, **arguments}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Infos]:
        """Start an episode.

        Args:
            seed: seed of ``np_random`` only, because a player reads its seed when it starts.
            options: ``parameters`` (name -> number) are environment parameters of the game.

        Raises:
            SettingsError: a parameter cannot be sent.
            EnvironmentFaultError: the player fails.
        """
        super().reset(seed=seed)
        if self._has_ended and not options:
            options = {"reset_mask": np.ones(1, np.bool_)}
        self._has_ended = False
        observations, infos = self._agents.reset(seed=seed, options=options)
        return pick(observations, 0), self._info(infos)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, Infos]:
        """Act, and wait until the agent asks for the next decision or its episode has ended.

        Raises:
            ResetNeeded: ``reset`` has not been called, or the episode has ended.
            UnityActionException: the action is not in the action space.
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
        """Shut down the player."""
        self._agents.close()
