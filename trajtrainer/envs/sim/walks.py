"""Basic, Memory and Chase: small tasks in which an agent has to get to the right place.

See docs/explanation/mlagents-behavior.md#built-in-tasks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trajtrainer.core.spec import ActionSpec, BehaviorSpec
from trajtrainer.core.steps import BoolArray, FloatArray, LongArray
from trajtrainer.envs.sim.canvas import BLUE, GRAY, GREEN, RED, YELLOW, Canvas
from trajtrainer.envs.sim.simulation import (
    Agents,
    EnvironmentParameters,
    EpisodicSimulation,
    Observations,
    SimulatedActions,
    SimulationOptions,
    one_hot,
    option,
    vector_sensor,
)

LENGTH = 20
START = 10
SMALL_GOAL = 7
LARGE_GOAL = 17

SHOWN_DECISIONS = 2
FORWARD, BACK, LEFT, RIGHT = range(4)
STEP = 0.1  # distance along an axis for an action of 1
REACH = 0.1  # distance at which the target counts as reached
MAX_DECISIONS = 200


class Basic(EpisodicSimulation):
    """Walk along a line of 20 cells to a small or a large goal.

    The agent observes its position as a one-hot vector of 20, and chooses to stay, go left or go right. The reward is
    -0.01 per decision, plus 0.1 at the small goal (cell 7) or 1 at the large goal (cell 17). Both goals end the
    episode, which has no other limit. The best score is 0.93 (seven steps to the right); going straight to the small
    goal scores 0.07.
    """

    def __init__(
        self, options: SimulationOptions, random: np.random.Generator, parameters: EnvironmentParameters
    ) -> None:
        spec = BehaviorSpec([vector_sensor(LENGTH)], ActionSpec(0, (3,)))
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

    def paint(self, number: int, canvas: Canvas) -> None:
        canvas.reach = LENGTH / 2
        for cell in range(LENGTH):
            goal = {SMALL_GOAL: YELLOW, LARGE_GOAL: GREEN}.get(cell, GRAY)
            canvas.box(cell - (LENGTH - 1) / 2, 0.0, 0.9, 2.0, goal)
        canvas.disc(self._place[number] - (LENGTH - 1) / 2, 0.0, 0.8, BLUE)

    def _observe(self, agents: Agents) -> Observations:
        return (one_hot(self._place[agents], LENGTH),)


@dataclass(frozen=True, slots=True)
class MemoryOptions(SimulationOptions):
    """Options of ``MemoryCorridor``."""

    agents: int = option(16, "number of agents")
    length: int = option(6, "steps from the start of the corridor to its doors")

    def __post_init__(self) -> None:
        SimulationOptions.__post_init__(self)
        if self.length < SHOWN_DECISIONS:
            raise ValueError(f"--length must be at least {SHOWN_DECISIONS}, found {self.length}")


class MemoryCorridor(EpisodicSimulation):
    """Remember a sign at the start of a corridor to choose the correct one of two doors at its end.

    The agent chooses to go forward, back, through the left door or through the right door (a branch of 4). It observes
    4 numbers: the sign for left and the sign for right (shown only for the first two decisions, before any agent can
    reach the doors), its progress (0 to 1), and whether it is at the doors. The door that the sign showed gives 1, and
    the other door -1. Both end the episode. There are no other rewards. Episodes are interrupted after 8 times the
    length. An agent that remembers the sign scores 1; an agent that forgets it or acts at random scores 0 on average.
    """

    def __init__(self, options: MemoryOptions, random: np.random.Generator, parameters: EnvironmentParameters) -> None:
        spec = BehaviorSpec([vector_sensor(4)], ActionSpec(0, (4,)))
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

    def paint(self, number: int, canvas: Canvas) -> None:
        """Paint the correct door green, and brighter while the sign is shown."""
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


@dataclass(frozen=True, slots=True)
class ChaseOptions(SimulationOptions):
    """Options of ``Chase``."""

    agents: int = option(4, "number of agents")


class Chase(EpisodicSimulation):
    """Walk to a target in the plane; the agent and the target start at random positions in [-1, 1]².

    The agent observes both positions. The reward is the decrease in distance, plus 1 at the target. An episode ends at
    the target, or is interrupted after 200 decisions. Going straight to the target scores 1.99 on average. The
    environment parameter ``reach`` is the distance at which a target counts as reached.
    """

    def __init__(self, options: ChaseOptions, random: np.random.Generator, parameters: EnvironmentParameters) -> None:
        spec = BehaviorSpec([vector_sensor(4)], ActionSpec(2, ()))
        super().__init__(spec, options.agents, random, parameters, max_decisions=MAX_DECISIONS)
        self._places: NDArray[np.float64] = np.zeros((options.agents, 4))
        self._reach = np.full(options.agents, REACH)

    def _begin(self, agents: LongArray) -> None:
        self._places[agents] = self._random.uniform(-1.0, 1.0, (len(agents), 4))
        self._reach[agents] = self._parameters.draw("reach", REACH, len(agents))

    def _advance(self, actions: SimulatedActions) -> tuple[FloatArray, BoolArray]:
        before = self._distances()
        self._places[:, :2] += STEP * np.clip(actions.continuous, -1.0, 1.0)
        now = self._distances()
        reached: BoolArray = now < self._reach
        return (before - now + reached).astype(np.float32), reached

    def _distances(self) -> NDArray[np.float64]:
        distances: NDArray[np.float64] = np.linalg.norm(self._places[:, :2] - self._places[:, 2:], axis=1)
        return distances

    def paint(self, number: int, canvas: Canvas) -> None:
        canvas.reach = 1.5
        x, y, target_x, target_y = self._places[number].tolist()
        canvas.disc(target_x, target_y, float(self._reach[number]), GREEN)
        canvas.disc(x, y, 0.06, BLUE)

    def _observe(self, agents: Agents) -> Observations:
        return (self._places[agents].astype(np.float32),)
