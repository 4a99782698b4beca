"""Small environments whose every number can be told apart."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from trajtrainer.core.steps import ActionBatch, EnvironmentEvent


class CountingEnv(gymnasium.Env[Any, Any]):
    """Observes (seed of the first reset, episode, step); ends after ``length`` steps; pays 10 * episode + step.

    Args:
        length: steps of an episode.
        truncates: the end is a truncation.
        terminates: the end is a termination (both may be).
    """

    def __init__(self, length: int = 3, *, truncates: bool = False, terminates: bool = True) -> None:
        self.observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float64)
        self.action_space = spaces.Discrete(4, start=10)
        self.length = length
        self.truncates = truncates
        self.terminates = terminates
        self.seed: int | None = None
        self.seeds: list[int | None] = []
        self.options: list[dict[str, Any] | None] = []
        self.actions: list[Any] = []
        self.episode = 0
        self.steps = 0
        self.closed = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.seeds.append(seed)
        self.options.append(options)
        if seed is not None:
            self.seed = seed
        self.episode += 1
        self.steps = 0
        return self._observation(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.actions.append(action)
        self.steps += 1
        ended = self.steps == self.length
        reward = 10.0 * self.episode + self.steps
        return self._observation(), reward, ended and self.terminates, ended and self.truncates, {}

    def close(self) -> None:
        self.closed = True

    def _observation(self) -> Any:
        return np.array([-1 if self.seed is None else self.seed, self.episode, self.steps], np.float64)


class SpacesEnv(gymnasium.Env[Any, Any]):
    """Samples its observations, and notes the actions that it receives. Never ends."""

    def __init__(self, observation_space: spaces.Space[Any], action_space: spaces.Space[Any]) -> None:
        self.observation_space = observation_space
        self.action_space = action_space
        self.observations: list[Any] = []
        self.actions: list[Any] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.actions.append(action)
        return self._observe(), 0.0, False, False, {}

    def _observe(self) -> Any:
        self.observations.append(self.observation_space.sample())
        return self.observations[-1]


def action_batch(continuous: Any, discrete: Any) -> ActionBatch:
    """Actions [N, C] within [-1, 1] and [N, K]."""
    continuous = np.asarray(continuous, np.float32)
    discrete = np.asarray(discrete, np.int32)
    count = max(len(continuous), len(discrete))
    continuous = continuous.reshape(count, -1)
    discrete = discrete.reshape(count, -1)
    return ActionBatch(
        continuous=3 * continuous,
        discrete=discrete,
        env_continuous=continuous,
        log_prob=np.zeros((count, continuous.shape[1] + discrete.shape[1]), np.float32),
        entropy=np.zeros(count, np.float32),
        memory=np.zeros((count, 0), np.float32),
        version=0,
    )


def zeros(event: EnvironmentEvent, specs: dict[str, Any]) -> dict[str, ActionBatch]:
    """The first choice for every agent that asks."""
    return {
        name: action_batch(
            np.zeros((batch.num_decisions, specs[name].action_spec.continuous_size)),
            np.zeros((batch.num_decisions, len(specs[name].action_spec.discrete_branches))),
        )
        for name, batch in event.steps.items()
        if batch.num_decisions
    }
