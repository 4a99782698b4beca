"""A Gymnasium environment that writes down the random numbers of each episode."""

from __future__ import annotations

import json
import os
import random
import time
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import numpy as np

_PATIENCE_S = 120.0


class DrawingWorld(gymnasium.Env[np.ndarray, np.ndarray]):
    """Episodes of four steps.

    Args:
        folder: of the files, one for each copy in each process.
        copies: how many must have begun an episode before any begins its second one.
    """

    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
    made: ClassVar[int] = 0

    def __init__(self, folder: str, copies: int = 1) -> None:
        DrawingWorld.made += 1
        self.at_start = np.random.random()
        self._copies = copies
        self._file = Path(folder) / f"{os.getpid()}-{DrawingWorld.made}.jsonl"
        self._steps = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        deadline_s = time.monotonic() + _PATIENCE_S
        while self._file.exists() and len(list(self._file.parent.iterdir())) < self._copies:
            assert time.monotonic() < deadline_s
            time.sleep(0.01)
        drawn = {
            "own": self.np_random.random(),
            "np": np.random.random(),
            "py": random.random(),
            "at_start": self.at_start,
            "seed": seed,
            **(options or {}),
        }
        with self._file.open("a") as file:
            file.write(f"{json.dumps(drawn)}\n")
        self._steps = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self._steps += 1
        return np.zeros(2, np.float32), 1.0, self._steps == 4, False, {}


def drawn(folder: Path) -> list[list[dict[str, Any]]]:
    """What each copy has drawn in each of its episodes; the folder is empty afterwards."""
    copies = []
    for file in sorted(folder.iterdir()):
        copies.append([json.loads(line) for line in file.read_text().splitlines()])
        file.unlink()
    return copies
