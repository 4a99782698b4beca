"""Variants of Gymnasium environments for the configurations in ``config/gym``."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.wrappers import TransformObservation
from numpy.typing import NDArray

# Maps each ID to the original environment and the indices of the velocities in its observations.
_VELOCITIES = {"CartPoleNoVel-v1": ("CartPole-v1", [1, 3]), "PendulumNoVel-v1": ("Pendulum-v1", [2])}
_FLAT = {"MiniGrid-DoorKey-5x5-Flat-v0": "MiniGrid-DoorKey-5x5-v0"}


def without_velocities(env_id: str, **arguments: Any) -> gymnasium.Env[Any, Any]:
    """Make an environment whose observed velocities are replaced by zeros."""
    name, places = _VELOCITIES[env_id]

    def hide(observation: NDArray[np.float32]) -> NDArray[np.float32]:
        observation = observation.copy()
        observation[places] = 0.0
        return observation

    env = gymnasium.make(name, **arguments)
    return TransformObservation(env, hide, env.observation_space)


def flat_minigrid(env_id: str, **arguments: Any) -> gymnasium.Env[Any, Any]:
    """Make a MiniGrid environment with vector observations."""
    from minigrid.wrappers import FlatObsWrapper

    flat: gymnasium.Env[Any, Any] = FlatObsWrapper(gymnasium.make(_FLAT[env_id], **arguments))
    return flat


for _id, _make in {**dict.fromkeys(_VELOCITIES, without_velocities), **dict.fromkeys(_FLAT, flat_minigrid)}.items():
    if _id not in gymnasium.registry:
        gymnasium.register(_id, entry_point=f"{__name__}:{_make.__name__}", kwargs={"env_id": _id})
