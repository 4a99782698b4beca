"""A scheme for environments: corridor:LENGTH is a corridor of LENGTH cells with a reward at its end."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from trajtrainer import EnvironmentScheme, SettingsError


class Corridor(gymnasium.Env[Any, Any]):
    """Action 1 walks to the end of the corridor, action 0 away from it. Each step costs a little."""

    observation_space = spaces.Box(0.0, 1.0, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, length: int, slip: float) -> None:
        self._length, self._slip = length, slip
        self._cell = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._cell = 0
        return self._seen(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        is_forward = (action == 1) != (self.np_random.random() < self._slip)
        self._cell = min(max(self._cell + (1 if is_forward else -1), 0), self._length - 1)
        is_there = self._cell == self._length - 1
        return self._seen(), 1.0 if is_there else -0.05, is_there, False, {}

    def _seen(self) -> Any:
        return np.array([self._cell / (self._length - 1)], np.float32)


def make(length: str, slip: float = 0.0) -> Corridor:
    """Make one copy. ``slip`` can be set with ``--env-args slip=0.1``."""
    return Corridor(int(length), slip)


def check(length: str) -> None:
    """Check the name before anything starts."""
    if not length.isdecimal() or int(length) < 2:
        raise SettingsError(f"--env corridor:{length}: expected corridor:LENGTH, with at least 2 cells.")


ROW = EnvironmentScheme(example="corridor:LENGTH such as corridor:6", factory=make, check=check)
