"""The agents of a scene as the environments of a Stable-Baselines3 ``VecEnv``."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.spaces import Tuple
from gymnasium.vector import AutoresetMode, VectorEnv

from trajtrainer.core.errors import UnsupportedError

try:
    from stable_baselines3.common.vec_env import VecEnv
except ImportError as error:
    raise ImportError(
        "as_stable_baselines3() needs the package stable-baselines3, which is not installed. Install it with: pip "
        "install stable-baselines3"
    ) from error

_MASKS = "action_masks"


class UnityVecEnv(VecEnv):  # type: ignore[misc, unused-ignore]
    """A ``UnityVectorEnv`` as a Stable-Baselines3 ``VecEnv``. MaskablePPO uses ``env_method("action_masks")``.

    Args:
        envs: the environment, in the autoreset mode ``SAME_STEP``.

    Raises:
        UnsupportedError: the mode differs, or a space is a Tuple, which Stable-Baselines3 does not support.
    """

    def __init__(self, envs: VectorEnv[Any, Any, Any]) -> None:
        if envs.metadata["autoreset_mode"] is not AutoresetMode.SAME_STEP:
            raise UnsupportedError("Stable-Baselines3 needs autoreset_mode=AutoresetMode.SAME_STEP.")
        for space in (envs.single_observation_space, envs.single_action_space):
            if isinstance(space, Tuple):
                raise UnsupportedError(
                    f"Stable-Baselines3 does not support Tuple spaces such as {space}. Use observations='dict', and "
                    "agents whose actions are continuous or discrete, not both."
                )
        self._envs = envs
        self._actions: Any = None
        self._masks: Any = None
        super().__init__(envs.num_envs, envs.single_observation_space, envs.single_action_space)

    def reset(self) -> Any:
        """Start new episodes, and return the observations."""
        observations, infos = self._envs.reset(seed=self._seeds[0], options=self._options[0])
        self._reset_seeds()
        self._reset_options()
        self._masks = infos.get("action_mask")
        return observations

    def step_async(self, actions: Any) -> None:
        self._actions = actions

    def step_wait(self) -> Any:
        """Step, and return observations, rewards, dones, and an info for each agent."""
        observations, rewards, terminations, truncations, infos = self._envs.step(self._actions)
        self._masks = infos.get("action_mask")
        endings: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        dones = terminations | truncations
        for agent in np.flatnonzero(dones):
            endings[agent] = {
                "terminal_observation": infos["final_obs"][agent],
                "TimeLimit.truncated": bool(truncations[agent]),
            }
        return observations, rewards, dones, endings

    def close(self) -> None:
        """Shut down the player."""
        self._envs.close()

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        """Return an attribute of the vector environment, once for each of ``indices``."""
        if attr_name == _MASKS and self._masks is None:
            raise AttributeError(_MASKS)
        value = self._masks if attr_name == _MASKS else getattr(self._envs, attr_name)
        return [value for _ in self._get_indices(indices)]

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:  # noqa: ARG002
        """Set an attribute of the vector environment."""
        setattr(self._envs, attr_name, value)

    def env_method(self, method_name: str, *_: Any, indices: Any = None, **__: Any) -> list[Any]:
        """Return the agents' masks for ``action_masks``. No other method can be called for a single agent."""
        if method_name != _MASKS:
            raise AttributeError(f"The agents of a scene have no method {method_name!r}, only {_MASKS!r}.")
        return [self._masks[index].astype(np.bool_) for index in self._get_indices(indices)]

    def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:  # noqa: ARG002
        """Return False for each agent, because single agents have no wrappers."""
        return [False for _ in self._get_indices(indices)]
