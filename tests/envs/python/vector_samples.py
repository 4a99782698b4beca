"""Vectorized environments of Gymnasium whose every number can be told apart."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space


class CountingVector(VectorEnv[Any, Any, Any]):
    """Copy i ends after ``lengths[i]`` steps, observes (i, episode, step) and pays 100 * i + 10 * episode + step.

    Odd copies are truncated, the others terminated. Hands out the same array every time.
    """

    def __init__(self, lengths: tuple[int, ...] = (2, 3, 3), mode: Any = AutoresetMode.NEXT_STEP) -> None:
        self.num_envs = len(lengths)
        self.lengths = np.array(lengths)
        self.mode = mode
        self.metadata = {"autoreset_mode": mode, "render_modes": ["rgb_array"]}
        self.single_observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float64)
        self.single_action_space = spaces.Discrete(4, start=10)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self.array = np.zeros((self.num_envs, 3))
        self.array[:, 0] = np.arange(self.num_envs)
        self.over = np.zeros(self.num_envs, np.bool_)
        self.seeds: list[Any] = []
        self.actions: list[list[int | None]] = []
        self.closed_times = 0

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        if options is None:
            self.seeds.append(seed)
            self.array[:, 1:] = (1, 0)
            self.over[:] = False
            return self.array, {}
        assert self.mode is AutoresetMode.DISABLED
        assert (options["reset_mask"] == self.over).all()
        self._next_episode(self.over)
        self.over = np.zeros(self.num_envs, np.bool_)
        return self.array, {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        assert self.action_space.contains(actions)
        begins, self.over = self.over, np.zeros(self.num_envs, np.bool_)
        assert self.mode is AutoresetMode.NEXT_STEP or not begins.any()
        self.actions.append([None if over else int(action) for over, action in zip(begins, actions, strict=True)])
        self.array[~begins, 2] += 1
        self._next_episode(begins)
        rewards = np.where(begins, 999.0, self.array @ [100, 10, 1])  # 999: nobody has earned it
        ended = self.array[:, 2] == self.lengths
        odd = np.arange(self.num_envs) % 2 == 1
        infos = {}
        if self.mode is AutoresetMode.SAME_STEP and ended.any():
            final = np.full(self.num_envs, None, object)
            for copy in np.flatnonzero(ended):
                final[copy] = self.array[copy].copy()
            infos = {"final_obs": final, "_final_obs": ended.copy()}
            self._next_episode(ended)
        else:
            self.over = ended
        return self.array, rewards, ended & ~odd, ended & odd, infos

    def _next_episode(self, which: Any) -> None:
        self.array[which, 1] += 1
        self.array[which, 2] = 0

    def close_extras(self, **_: Any) -> None:
        self.closed_times += 1


def make_counting(num_envs: int, **_: Any) -> CountingVector:
    return CountingVector((2,) * num_envs)


gymnasium.register("CountingVector-v0", vector_entry_point="tests.envs.python.vector_samples:make_counting")
