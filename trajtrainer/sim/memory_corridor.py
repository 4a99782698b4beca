"""Memory: a small version of Unity's Hallway. A sign at the beginning of a corridor shows the right door at its end."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trajtrainer.core.spec import BehaviorSpec
from trajtrainer.core.steps import BoolArray, FloatArray, LongArray
from trajtrainer.sim.drawing import BLUE, GRAY, GREEN, RED, Canvas
from trajtrainer.sim.simulation import (
    Agents,
    EnvironmentParameters,
    EpisodicSimulation,
    Observations,
    SimulatedActions,
    SimulationOptions,
    action_spec,
    option,
    vector_sensor,
)

SHOWN_DECISIONS = 2
FORWARD, BACK, LEFT, RIGHT = range(4)


@dataclass(frozen=True, slots=True)
class MemoryOptions(SimulationOptions):
    """Options of ``MemoryCorridor``."""

    agents: int = option(16, "number of agents")
    length: int = option(6, "steps from the beginning of the corridor to its doors")

    def __post_init__(self) -> None:
        SimulationOptions.__post_init__(self)
        if self.length < SHOWN_DECISIONS:
            raise ValueError(f"--length must be at least {SHOWN_DECISIONS}, found {self.length}")


class MemoryCorridor(EpisodicSimulation):
    """Chooses to go forward, back, through the left or the right door (a branch of 4); the doors are at the end.

    Observes 4 numbers: the sign for left, the sign for right (only at the first two decisions, when no agent can be
    at the doors yet), how far it has come (0 to 1), whether it is at the doors. The door that the sign showed gives
    1, the other -1, and both end the episode; nothing else counts. It is interrupted after 8 times the length.
    An agent that remembers scores 1; one that does not, or acts at random, scores 0 on average.
    """

    def __init__(self, options: MemoryOptions, random: np.random.Generator, parameters: EnvironmentParameters) -> None:
        spec = BehaviorSpec([vector_sensor(4)], action_spec(branches=(4,)))
        super().__init__(spec, options.agents, random, parameters, max_decisions=8 * options.length)
        self._length = options.length
        self._place: LongArray = np.zeros(options.agents, dtype=np.int64)
        self._door: LongArray = np.zeros(options.agents, dtype=np.int64)
        self._move = np.array([1, -1, 0, 0], dtype=np.int64)

    def _begin(self, agents: LongArray) -> None:
        self._place[agents] = 0
        self._door[agents] = np.where(self._random.random(len(agents)) < 0.5, LEFT, RIGHT)

    def _advance(self, actions: SimulatedActions) -> tuple[FloatArray, BoolArray]:
        choice = actions.discrete[:, 0]
        through = (self._place == self._length) & (choice >= LEFT)
        reward = np.where(through, np.where(choice == self._door, 1.0, -1.0), 0.0)
        self._place = np.clip(self._place + self._move[choice], 0, self._length)
        return reward.astype(np.float32), through

    def draw(self, number: int, canvas: Canvas) -> None:
        """The door of the sign is green, brighter as long as the sign is shown."""
        canvas.reach = self._length / 2 + 1.5
        start = -self._length / 2
        canvas.box(0.0, 0.0, self._length + 1.0, 1.0, GRAY)
        shown = self._decisions[number] < SHOWN_DECISIONS
        for door, y in ((LEFT, 1.0), (RIGHT, -1.0)):
            right = door == self._door[number]
            canvas.box(-start, y, 0.8, 0.8, (GREEN if shown else (40, 110, 60)) if right else RED)
        canvas.disc(start + float(self._place[number]), 0.0, 0.4, BLUE)

    def _observe(self, agents: Agents) -> Observations:
        place, door = self._place[agents], self._door[agents]
        shown = self._decisions[agents] < SHOWN_DECISIONS
        seen = (shown & (door == LEFT), shown & (door == RIGHT), place / self._length, place == self._length)
        return (np.stack(seen, axis=1, dtype=np.float32, casting="unsafe"),)
