"""An environment in which everything is uneven: lengths of episodes, sizes of observations, rewards."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray


class Wander(gymnasium.Env[Any, Any]):
    """Drifts by its action and by chance, and ends when it is far away."""

    def __init__(self) -> None:
        self.observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float32)
        self.action_space = spaces.Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[NDArray[np.float32], dict[str, Any]]:
        super().reset(seed=seed)
        self.steps, self.place = 0, 0.0
        return self._see(), {}

    def step(self, action: NDArray[np.float32]) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        self.steps += 1
        self.place += float(action[0]) + float(self.np_random.normal())
        return self._see(), -abs(self.place), abs(self.place) > 4, self.steps == 40, {}

    def _see(self) -> NDArray[np.float32]:
        return np.array([self.place, 50 + self.steps, self.np_random.normal()], np.float32)
