"""A Gymnasium environment whose returns tell the seed, the actions and the parameters."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces

from tests.learning.nn.specs import behavior, vector
from tests.policies.onnx.test_onnx import random_actor
from trajtrainer.learning.nn.actor import Actor

SPEC = behavior([vector(2)], 0, (2,))


class Walk(gymnasium.Env[Any, Any]):
    """Starts somewhere, by the seed; each step pays where it is, plus the action, plus the parameter ``bonus``.

    It takes 2 or 3 steps, and uses up random numbers on the way.

    Args:
        render_mode: None or "rgb_array".
        shape: of the pictures.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 5}  # noqa: RUF012

    def __init__(self, render_mode: str | None = None, shape: tuple[int, int] = (20, 30)) -> None:
        self.observation_space = spaces.Box(-10, 10, (2,), np.float32)
        self.action_space = spaces.Discrete(2)
        self.render_mode = render_mode
        self.shape = tuple(shape)
        self.steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.bonus = (options or {}).get("bonus", 0.0)
        self.start = float(self.np_random.integers(-8, 8))
        self.steps = 0
        return np.array([self.start, 0], np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.np_random.random(3)
        self.steps += 1
        over = self.steps == (2 if self.start < 0 else 3)
        reward = self.start + float(action) + self.bonus
        return np.array([self.start, self.steps], np.float32), reward, over, False, {}

    def render(self) -> Any:
        return np.full((*self.shape, 3), [120 + 10 * int(self.start), 80 * self.steps, 0], np.uint8)


class Blind(Walk):
    """Has nothing to look at."""

    metadata = {"render_modes": []}  # noqa: RUF012

    def __init__(self) -> None:
        super().__init__()


def chooser(action: int, certainty: float = 9.0) -> Actor:
    """An actor that all but always chooses this."""
    actor = random_actor(SPEC)
    with torch.no_grad():
        for name, parameter in actor.head.named_parameters():
            parameter.zero_()
            if name.endswith("bias"):
                parameter[action] = certainty
    return actor


class Endless(Walk):
    """Its episodes that start on the right do not end."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        observation, reward, over, late, info = super().step(action)
        return observation, reward, over and self.start < 0, late, info
