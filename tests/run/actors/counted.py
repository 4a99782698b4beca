"""An environment whose observations tell where and when they were made."""

from __future__ import annotations

import itertools
import os
import time
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from numpy.typing import NDArray

from trajtrainer.experience.trajectory import PackedSteps
from trajtrainer.learning.trainers.trainer import Trainer


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


class Taken:
    """What trainers take in of it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._seen: list[tuple[Any, Any, Any]] = []
        count = Trainer._count

        def recording(trainer: Trainer, packed: PackedSteps) -> bool:
            # The learner's buffer is used again.
            self._seen.append((packed.obs[0].copy(), packed.offset.copy(), packed.agent.copy()))
            return count(trainer, packed)

        monkeypatch.setattr(Trainer, "_count", recording)

    def check(self, num_steps: int, least: int) -> NDArray[Any]:
        """See that it is ``num_steps`` steps, none twice and all in their order; returns their agents."""
        steps = np.concatenate([seen for seen, _, _ in self._seen])
        agents: NDArray[Any] = np.concatenate([np.repeat(agent, np.diff(offset)) for _, offset, agent in self._seen])
        assert len(steps) == num_steps > least
        told = np.column_stack([steps, agents])
        assert len(np.unique(told, axis=0)) == len(told), "a step was counted twice"
        for seen, offset, _ in self._seen:
            for start, stop in itertools.pairwise(offset):
                own = seen[start:stop]
                assert (own[:, :2] == own[0, :2]).all()
                assert (np.diff(own[:, 2]) == 1).all()
        return agents
