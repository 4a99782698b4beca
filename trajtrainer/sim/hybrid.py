"""Hybrid: drive to a parcel with continuous actions and open it with the right tool by discrete ones."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trajtrainer.core.spec import BehaviorSpec
from trajtrainer.core.steps import BoolArray, FloatArray, LongArray
from trajtrainer.sim.drawing import COLORS, GRAY, WHITE, Canvas
from trajtrainer.sim.simulation import (
    Agents,
    EnvironmentParameters,
    EpisodicSimulation,
    Observations,
    SimulatedActions,
    SimulationOptions,
    action_spec,
    one_hot,
    option,
    vector_sensor,
)

SPEED = 0.2  # per decision and axis
REACH = 0.3  # along each axis
TOOLS = 3
MAX_DECISIONS = 40


@dataclass(frozen=True, slots=True)
class HybridOptions(SimulationOptions):
    """Options of ``Hybrid``."""

    agents: int = option(10, "number of agents")


class Hybrid(EpisodicSimulation):
    """An agent on the square [-1, 1]²: two continuous actions (velocity), a branch of 3 (a tool), one of 2 (use it).

    Observes two sensors: "Motion" (own place, way to the parcel; 4) and "Task" (the tool that the parcel needs, the
    tool that is broken, whether the parcel is within reach; 7). Forbidden: the broken tool, always; use, out of reach.
    Using the needed tool gives 1 and ends the episode, using the other one gives -0.1; every decision costs 0.01, and
    after 40 of them the episode is interrupted. A forbidden choice ends the episode with -1: an agent that honors the
    masks never sees that. Driving straight to the parcel and using the needed tool at once scores 0.95 on average,
    random actions that honor the masks about -0.1.
    """

    masked = True

    def __init__(self, options: HybridOptions, random: np.random.Generator, parameters: EnvironmentParameters) -> None:
        spec = BehaviorSpec([vector_sensor(4, "Motion"), vector_sensor(7, "Task")], action_spec(2, (TOOLS, 2)))
        super().__init__(spec, options.agents, random, parameters, max_decisions=MAX_DECISIONS)
        n = self.num_agents
        self._place: NDArray[np.float64] = np.zeros((n, 2))
        self._parcel: NDArray[np.float64] = np.zeros((n, 2))
        self._needed: LongArray = np.zeros(n, dtype=np.int64)
        self._broken: LongArray = np.zeros(n, dtype=np.int64)
        self._rows = np.arange(n)

    def _begin(self, agents: LongArray) -> None:
        drawn = self._random.random((len(agents), 6))
        self._place[agents] = 2.0 * drawn[:, 0:2] - 1.0
        self._parcel[agents] = 2.0 * drawn[:, 2:4] - 1.0
        needed = (TOOLS * drawn[:, 4]).astype(np.int64)
        self._needed[agents] = needed
        self._broken[agents] = (needed + 1 + (2 * drawn[:, 5]).astype(np.int64)) % TOOLS

    def _within_reach(self) -> BoolArray:
        way = np.abs(self._parcel - self._place)
        within: BoolArray = np.maximum.reduce(way, axis=1) <= REACH
        return within

    def _advance(self, actions: SimulatedActions) -> tuple[FloatArray, BoolArray]:
        continuous, discrete = actions
        mask = self._mask()
        tool = discrete[:, 0]
        used = discrete[:, 1] == 1
        forbidden = mask[self._rows, tool] | mask[self._rows, TOOLS + discrete[:, 1]]
        opened = used & (tool == self._needed)
        reward = np.where(opened, 0.99, np.where(used, -0.11, -0.01))
        reward[forbidden] = -1.0
        self._place = np.clip(self._place + SPEED * np.clip(continuous, -1.0, 1.0), -1.0, 1.0)
        return reward.astype(np.float32), opened | forbidden

    def _mask(self) -> BoolArray:
        mask = np.zeros((self.num_agents, TOOLS + 2), dtype=np.bool_)
        mask[self._rows, self._broken] = True
        mask[:, TOOLS + 1] = ~self._within_reach()
        return mask

    def draw(self, number: int, canvas: Canvas) -> None:
        """The parcel in the color of its tool, the broken tool in the corner."""
        canvas.reach = 1.3
        x, y = self._parcel[number].tolist()
        canvas.box(x, y, 2 * REACH, 2 * REACH, GRAY)
        canvas.box(x, y, 0.2, 0.2, COLORS[self._needed[number]])
        canvas.box(1.15, 1.15, 0.15, 0.15, COLORS[self._broken[number]])
        canvas.text(1.15, 1.15, "x")
        x, y = self._place[number].tolist()
        canvas.disc(x, y, 0.08, WHITE)

    def _observe(self, agents: Agents) -> Observations:
        place = self._place[agents]
        motion = np.concatenate((place, self._parcel[agents] - place), axis=1, dtype=np.float32)
        task = np.concatenate(
            (
                one_hot(self._needed[agents], TOOLS),
                one_hot(self._broken[agents], TOOLS),
                self._within_reach()[agents, None],
            ),
            axis=1,
            dtype=np.float32,
        )
        return (motion, task)
