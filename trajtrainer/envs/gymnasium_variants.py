"""Environments of others in the form in which the field compares algorithms on them.

``gym:trajtrainer.envs.gymnasium_variants:ID`` with one of these ids:

- ``CartPoleNoVel-v1``, ``PendulumNoVel-v1``: nobody sees the velocities, so an agent must remember what it saw before.
  The ids are those of Stable-Baselines3's zoo.
- ``MiniGrid-DoorKey-5x5-Flat-v0``: what the agent sees of the grid, and its mission, as one vector (needs minigrid).
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

# Id -> the environment it is made of, and the places of the velocities in its observations.
_VELOCITIES = {
    "CartPoleNoVel-v1": ("CartPole-v1", (1, 3)),
    "PendulumNoVel-v1": ("Pendulum-v1", (2,)),
}
_FLAT = {"MiniGrid-DoorKey-5x5-Flat-v0": "MiniGrid-DoorKey-5x5-v0"}


class _Hidden(gymnasium.ObservationWrapper[NDArray[np.float32], Any, NDArray[np.float32]]):
    """Show zeros at some places of a vector."""

    def __init__(self, env: gymnasium.Env[Any, Any], places: tuple[int, ...]) -> None:
        super().__init__(env)
        self._places = list(places)

    def observation(self, observation: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the observation without what stands at these places."""
        observation = observation.copy()
        observation[self._places] = 0.0
        return observation


def without_velocities(env_id: str, **arguments: Any) -> gymnasium.Env[Any, Any]:
    """Make one of the environments without velocities."""
    name, places = _VELOCITIES[env_id]
    return _Hidden(gymnasium.make(name, **arguments), places)


def flat_minigrid(env_id: str, **arguments: Any) -> gymnasium.Env[Any, Any]:
    """Make one of the environments of MiniGrid whose observations are vectors."""
    from minigrid.wrappers import FlatObsWrapper

    flat: gymnasium.Env[Any, Any] = FlatObsWrapper(gymnasium.make(_FLAT[env_id], **arguments))
    return flat


def _register() -> None:
    makers = {**dict.fromkeys(_VELOCITIES, without_velocities), **dict.fromkeys(_FLAT, flat_minigrid)}
    for env_id, make in makers.items():
        if env_id not in gymnasium.registry:
            gymnasium.register(env_id, entry_point=f"{__name__}:{make.__name__}", kwargs={"env_id": env_id})


_register()
