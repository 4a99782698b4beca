"""Environments that count their own steps, and whose observations are numbered, so that no two steps look alike.

A copy writes one byte per step into a file of its own, so that what it made is known whatever becomes of its process.
"""

from __future__ import annotations

import os
import threading
import time
from itertools import count, pairwise
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from numpy.typing import NDArray
from pettingzoo.utils.env import ParallelEnv

from tests.envs.duel import Duel
from trajtrainer.experience.trajectory import PackedSteps
from trajtrainer.learning.rewards.signal import ExtrinsicReward

EPISODE = 8
# Numbers in observations are multiples of these: exact in 32 bits, and so small that networks hardly notice.
_COPY, _STEP = 2.0**-12, 2.0**-20


class _Count:
    """The file of one copy, or of one agent of it."""

    def __init__(self, folder: str) -> None:
        for number in count():
            try:
                self._file = os.open(f"{folder}/{number}", os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_APPEND)
            except FileExistsError:
                continue
            self.copy, self.made = number, 0
            break

    def add(self, steps: int = 1) -> None:
        os.write(self._file, bytes(steps))
        self.made += steps

    @property
    def seen(self) -> tuple[float, float]:
        """What the next step sees."""
        return self.copy * _COPY, self.made * _STEP


def made(folder: Path) -> dict[int, int]:
    """The steps that each copy has made, of those that have made any."""
    sizes = {int(file.name): file.stat().st_size for file in folder.iterdir()}
    return {copy: size for copy, size in sizes.items() if size}


class Numbered(gymnasium.Env[Any, Any]):
    """Eight steps per episode; pays 1 for the action that equals the light, which is one of two.

    Args:
        folder: of the counts.
        seed: of the light.
        copies: how many have to be there before the first step, so that no actor is done before another has begun.

    Attributes:
        seed: the same.
        steps: of the episode.
        threads: those that have stepped a copy in this process.
        num_open: copies in this process that are not closed.
    """

    threads: ClassVar[set[threading.Thread]] = set()
    num_open: ClassVar[int] = 0

    def __init__(self, folder: str, seed: int = 0, copies: int = 1) -> None:
        self.observation_space = spaces.Box(-1, 1, (3,), np.float32)
        self.action_space = spaces.Discrete(2)
        self._count = _Count(folder)
        self.seed, self.steps = seed, 0
        self._lights = np.random.default_rng(seed)
        self._folder, self._copies = Path(folder), copies
        Numbered.num_open += 1

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[NDArray[np.float32], dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return self._see(), {}

    def step(self, action: int) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        Numbered.threads.add(threading.current_thread())
        end_s = time.monotonic() + 30.0
        while not self._count.made and len(list(self._folder.iterdir())) < self._copies and time.monotonic() < end_s:
            time.sleep(0.02)
        self._count.add()
        self.steps += 1
        reward = float(action == (self._light > 0))
        return self._see(), reward, self.steps == EPISODE, False, {}

    def close(self) -> None:
        Numbered.num_open -= 1

    def _see(self) -> NDArray[np.float32]:
        self._light = float(self._lights.choice([-1.0, 1.0]))
        return np.array([self._light, *self._count.seen], np.float32)


class NumberedPair(ParallelEnv):  # type: ignore[misc]
    """Two agents of two behaviors, each as in ``Numbered``."""

    metadata: ClassVar[dict[str, Any]] = {"name": "pair", "render_modes": []}

    def __init__(self, folder: str) -> None:
        self.possible_agents = ["red_0", "blue_0"]
        self.agents: list[str] = []
        self._games = {agent: Numbered(folder, seed) for seed, agent in enumerate(self.possible_agents)}

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return self._games[agent].observation_space

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return self._games[agent].action_space

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        self.agents = [*self.possible_agents]
        return {agent: self._games[agent].reset()[0] for agent in self.agents}, {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, Any]) -> tuple[dict[str, Any], ...]:
        found = {agent: self._games[agent].step(action) for agent, action in actions.items()}
        if any(ended for _, _, ended, _, _ in found.values()):
            self.agents = []
        return tuple({agent: parts[place] for agent, parts in found.items()} for place in range(5))

    def close(self) -> None:
        for game in self._games.values():
            game.close()


class NumberedDuel(Duel):
    """A duel in which every number of an agent comes with one that no other has."""

    def __init__(self, folder: str, **options: Any) -> None:
        super().__init__(**options)
        self._count = _Count(folder)

    def step(self) -> None:
        self._count.add(sum(len(side.ids) for side in self._sides.values()))
        super().step()

    def _show(self) -> None:
        super()._show()
        number = self._count.made
        for side in self._sides.values():
            side.seen[:, 1] += _STEP * (number + np.arange(len(side.ids)))
            number += len(side.ids)


class Learned:
    """What learners count of these environments, trajectory by trajectory.

    Taken where the reward of new steps is evaluated: once for each step, in their order, in the learner's process.

    Attributes:
        folder: of the environments' counts.
        num_steps: counted so far.
        num_updates: that have ended; a test that looks at lags has to count them.
        lags: of each trajectory the policies by which its last step was older than the newest one, and its steps.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self.lags: list[tuple[int, int]] = []
        self.num_updates = 0
        self.folder = folder
        self._lock = threading.Lock()
        self._seen: list[NDArray[Any]] = []
        self.num_steps = 0
        collect = ExtrinsicReward.collect

        def recording(signal: ExtrinsicReward, packed: PackedSteps) -> Any:
            self._add(packed)
            return collect(signal, packed)

        monkeypatch.setattr(ExtrinsicReward, "collect", recording)

    def _add(self, packed: PackedSteps) -> None:
        with self._lock:  # several learners may have threads of their own
            self.num_steps += len(packed)
            for start, stop in pairwise(packed.offset.tolist()):
                self._seen.append(packed.obs[0][start:stop].copy())
                self.lags.append((self.num_updates - int(packed["version"][stop - 1]), stop - start))

    @property
    def ahead(self) -> int:
        """Steps that were made and are not counted yet."""
        return sum(made(self.folder).values()) - self.num_steps

    def check(self, num_steps: int, most_left: int) -> None:
        """See that each copy's steps were counted once, in their order, and none was left out.

        Args:
            num_steps: that the run has counted.
            most_left: steps that a copy may have made after its last trajectory that was counted.
        """
        by_copy: dict[int, list[NDArray[Any]]] = {}
        for trajectory in self._seen:
            copies, numbers = np.rint(trajectory[:, 1] / _COPY), np.rint(trajectory[:, 2] / _STEP)
            assert len(np.unique(copies)) == 1, "a trajectory of several copies"
            by_copy.setdefault(int(copies[0]), []).append(numbers)
        assert sum(map(len, self._seen)) == num_steps
        steps = made(self.folder)
        assert by_copy.keys() <= steps.keys()
        for copy, total in steps.items():
            counted = np.concatenate(by_copy.get(copy, [np.zeros(0)]))
            assert np.array_equal(counted, np.arange(len(counted))), (
                f"copy {copy}: a step was lost, or counted twice: {counted.tolist()} of {total}"
            )
            assert 0 <= total - len(counted) <= most_left, f"copy {copy}: {total} made, {len(counted)} counted"

    def check_duel(self, num_steps: int) -> None:
        """The same for those of a duel, most of whose teams only play: no step was counted twice."""
        numbers = np.concatenate([trajectory[:, 1] for trajectory in self._seen])
        assert len(numbers) == len(np.unique(numbers)) == num_steps
