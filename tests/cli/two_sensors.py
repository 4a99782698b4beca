"""An environment whose agent has two vectors."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Two(gymnasium.Env[Any, Any]):
    """Nothing happens."""

    def __init__(self) -> None:
        self.observation_space = spaces.Dict(
            {"b": spaces.Box(-1.0, 1.0, (4,), np.float32), "a": spaces.Box(-1.0, 1.0, (2,), np.float32)}
        )
        self.action_space = spaces.Box(-1.0, 1.0, (2,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return {"a": np.zeros(2, np.float32), "b": np.zeros(4, np.float32)}, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self.reset()[0], 0.0, True, False, {}
