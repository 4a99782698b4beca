"""Basic: walk on a line to the large goal, past a small one (docs/explanation/mlagents-behavior.md#built-in-tasks)."""

from __future__ import annotations

import numpy as np

from trajtrainer.core.spec import BehaviorSpec
from trajtrainer.core.steps import BoolArray, FloatArray, LongArray
from trajtrainer.sim.drawing import BLUE, GRAY, GREEN, YELLOW, Canvas
from trajtrainer.sim.simulation import (
    Agents,
    EnvironmentParameters,
    EpisodicSimulation,
    Observations,
    SimulatedActions,
    SimulationOptions,
    action_spec,
    one_hot,
    vector_sensor,
)

LENGTH = 20
START = 10
SMALL_GOAL = 7
LARGE_GOAL = 17


class Basic(EpisodicSimulation):
    """Observes its place as one-hot of 20, chooses to stay, go left or go right.

    -0.01 per decision; the small goal at 7 gives 0.1 more, the large one at 17 gives 1 more, and both end the
    episode. No limit. The best score is 0.93 (seven steps to the right); going straight to the small goal gives 0.07.
    """

    def __init__(
        self, options: SimulationOptions, random: np.random.Generator, parameters: EnvironmentParameters
    ) -> None:
        spec = BehaviorSpec([vector_sensor(LENGTH)], action_spec(branches=(3,)))
        super().__init__(spec, options.agents, random, parameters)
        self._place = np.full(self.num_agents, START, dtype=np.int64)
        self._move = np.array([0, -1, 1], dtype=np.int64)
        self._reward = np.full(LENGTH, -0.01, dtype=np.float32)
        self._reward[SMALL_GOAL] += 0.1
        self._reward[LARGE_GOAL] += 1.0

    def _begin(self, agents: LongArray) -> None:
        self._place[agents] = START

    def _advance(self, actions: SimulatedActions) -> tuple[FloatArray, BoolArray]:
        self._place = np.clip(self._place + self._move[actions.discrete[:, 0]], 0, LENGTH - 1)
        return self._reward[self._place], (self._place == SMALL_GOAL) | (self._place == LARGE_GOAL)

    def draw(self, number: int, canvas: Canvas) -> None:
        canvas.reach = LENGTH / 2
        for cell in range(LENGTH):
            goal = {SMALL_GOAL: YELLOW, LARGE_GOAL: GREEN}.get(cell, GRAY)
            canvas.box(cell - (LENGTH - 1) / 2, 0.0, 0.9, 2.0, goal)
        canvas.disc(self._place[number] - (LENGTH - 1) / 2, 0.0, 0.8, BLUE)

    def _observe(self, agents: Agents) -> Observations:
        return (one_hot(self._place[agents], LENGTH),)
