"""An environment whose observations tell where and when they were made."""

from __future__ import annotations

import os
import time
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray


class Counted(gymnasium.Env[Any, Any]):
    """Sees its process, the episode and the step; an episode has five steps, each of which takes a while."""

    def __init__(self, pause_s: float = 0.0005) -> None:
        self.observation_space = spaces.Box(0, 1e7, (3,), np.float32)
        self.action_space = spaces.Discrete(2)
        self.episode = -1
        self.pause_s = pause_s

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[NDArray[np.float32], dict[str, Any]]:
        super().reset(seed=seed)
        self.episode, self.steps = self.episode + 1, 0
        return self._see(), {}

    def step(self, action: int) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        time.sleep(self.pause_s)
        self.steps += 1
        return self._see(), 1.0, self.steps == 5, False, {}

    def _see(self) -> NDArray[np.float32]:
        return np.array([os.getpid() % 1_000_000, self.episode, self.steps], np.float32)
