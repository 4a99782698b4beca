"""Wrappers whose doing shows in the numbers, and things that are none."""

from __future__ import annotations

from typing import Any

import gymnasium
from pettingzoo.utils import BaseParallelWrapper


class Times(gymnasium.ObservationWrapper[Any, Any, Any]):
    """Multiplies what is observed, and fails where the environment's name is too long."""

    def __init__(self, env: gymnasium.Env[Any, Any], factor: float = 10.0, longest: int = 99) -> None:
        super().__init__(env)
        self.factor = factor
        if len(type(env.unwrapped).__name__) > longest:
            raise ValueError("the name is too long.")

    def observation(self, observation: Any) -> Any:
        return observation * self.factor


class Plus(gymnasium.ObservationWrapper[Any, Any, Any]):
    """Adds to what is observed."""

    def observation(self, observation: Any) -> Any:
        return observation + 1


class Double(BaseParallelWrapper[Any, Any, Any]):  # type: ignore[misc]  # PettingZoo has no types
    """Pays twice as much."""

    def step(self, actions: Any) -> Any:
        observations, rewards, *rest = super().step(actions)
        return observations, {agent: 2 * reward for agent, reward in rewards.items()}, *rest


def halved(env: gymnasium.Env[Any, Any]) -> gymnasium.Env[Any, Any]:
    return gymnasium.wrappers.TransformReward(env, lambda reward: float(reward) / 2)


def forgetful(env: gymnasium.Env[Any, Any]) -> str:
    return "what?"
