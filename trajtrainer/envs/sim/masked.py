"""GridWorld and Hybrid: tasks that forbid some actions.

See docs/explanation/mlagents-behavior.md#built-in-tasks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from trajtrainer.core.spec import ActionSpec, BehaviorSpec
from trajtrainer.core.steps import BoolArray, FloatArray, LongArray
from trajtrainer.envs.sim.canvas import COLORS, GRAY, WHITE, Canvas
from trajtrainer.envs.sim.simulation import (
    Agents,
    EnvironmentParameters,
    EpisodicSimulation,
    Observations,
    SimulatedActions,
    SimulationOptions,
    one_hot,
    option,
    picture_sensor,
    vector_sensor,
)

MAX_DECISIONS = 100
STEP_REWARD = -0.01
# Change of row and column for each action: stay, up, down, left, right.
MOVES = np.array([[0, 0], [-1, 0], [1, 0], [0, -1], [0, 1]], dtype=np.int64)
EMPTY, AGENT, PLUS, CROSS = range(4)

SPEED = 0.2  # maximum distance per decision along each axis
REACH = 0.3  # maximum distance along each axis at which the parcel is within reach
TOOLS = 3


@dataclass(frozen=True, slots=True)
class GridOptions(SimulationOptions):
    """Options of ``GridWorld``."""

    agents: int = option(9, "number of agents")
    camera: tuple[int, ...] = option((64, 84), "height,width of the picture")
    grid: int = option(5, "cells along each side")

    def __post_init__(self) -> None:
        SimulationOptions.__post_init__(self)
        if self.grid < 2:
            raise ValueError(f"--grid must be at least 2, found {self.grid}")
        if len(self.camera) != 2 or min(self.camera) < self.grid:
            raise ValueError(f"--camera must be height,width of at least --grid ({self.grid}), found {self.camera}")


class GridWorld(EpisodicSimulation):
    """Walk to the correct one of two goals on a grid, a green plus and a red cross.

    The agent observes which of the two is correct (a goal signal, one-hot of 2) and the grid as a picture. It
    chooses to stay or to go up, down, left or right; moves into a wall are forbidden and do nothing.

    The reward is -0.01 per decision, but 1 for reaching the correct goal and -1 for the wrong one, which both end the
    episode. Episodes are interrupted after 100 decisions. On the 5 x 5 grid, shortest paths score 0.977 on average, and
    random actions about -0.3.
    """

    masked = True

    def __init__(self, options: GridOptions, random: np.random.Generator, parameters: EnvironmentParameters) -> None:
        height, width = options.camera
        sensors = [vector_sensor(2, "GoalSignal", goal=True), picture_sensor(3, height, width, "GridCamera")]
        spec = BehaviorSpec(sensors, ActionSpec(0, (len(MOVES),)))
        super().__init__(spec, options.agents, random, parameters, max_decisions=MAX_DECISIONS)
        n = options.agents
        self._grid = options.grid
        self._places: LongArray = np.zeros((n, 3, 2), dtype=np.int64)  # row and column of agent, plus and cross
        self._goal: LongArray = np.zeros(n, dtype=np.int64)  # 0 for the plus, 1 for the cross
        self._camera = _Camera(options.grid, height, width)

    def _begin(self, agents: LongArray) -> None:
        n = len(agents)
        cells = self._grid**2
        drawn = self._random.random((n, cells + 1))
        places = drawn[:, :cells].argpartition(2, axis=1)[:, :3]  # draw three different cells
        order = np.argsort(np.take_along_axis(drawn, places, axis=1), axis=1)
        places = np.take_along_axis(places, order, axis=1)
        self._places[agents] = np.stack((places // self._grid, places % self._grid), axis=2)
        self._goal[agents] = drawn[:, cells] < 0.5

    def _advance(self, actions: SimulatedActions) -> tuple[FloatArray, BoolArray]:
        agent = self._places[:, 0]
        np.clip(agent + MOVES[actions.discrete[:, 0]], 0, self._grid - 1, out=agent)
        on_plus, on_cross = (self._places[:, 1:] == agent[:, None]).all(axis=2).T
        arrived = on_plus | on_cross
        right = np.where(self._goal == 0, on_plus, on_cross)
        reward = np.where(arrived, np.where(right, 1.0, -1.0), STEP_REWARD)
        return reward.astype(np.float32), arrived

    def _mask(self) -> BoolArray:
        row, column = self._places[:, 0].T
        last = self._grid - 1
        return np.stack(
            (np.zeros_like(row, dtype=np.bool_), row == 0, row == last, column == 0, column == last), axis=1
        )

    def paint(self, number: int, canvas: Canvas) -> None:
        """Paint the camera's picture, with the symbol of the goal in the corner."""
        (picture,) = self._camera.pictures(self._places[[number]])
        canvas.paste(Image.fromarray(picture.transpose(1, 2, 0)))
        canvas.text(-0.9, 0.9, "+x"[self._goal[number]])

    def _observe(self, agents: Agents) -> Observations:
        return one_hot(self._goal[agents], 2), self._camera.pictures(self._places[agents])


class _Camera:
    """A camera above the grid: one sprite per cell, with walls around the grid to fill the picture."""

    def __init__(self, grid: int, height: int, width: int) -> None:
        self._grid = grid
        self._size = min(height, width) // grid
        self._shape = (height, width)
        self._sprites = _sprites(self._size)

    def pictures(self, places: LongArray) -> NDArray[np.uint8]:
        """Draw pictures, u8 [n, 3, height, width]; ``places``, i64 [n, 3, 2], are for agent, plus and cross."""
        n, grid, side = len(places), self._grid, self._grid * self._size
        cells = np.full((n, grid, grid), EMPTY, dtype=np.int64)
        rows = np.arange(n)
        for kind, place in ((PLUS, 1), (CROSS, 2), (AGENT, 0)):  # the agent is drawn over a goal
            cells[rows, places[:, place, 0], places[:, place, 1]] = kind
        drawn = self._sprites[cells]  # [n, row, column, 3, size, size]
        pictures = np.zeros((n, 3, *self._shape), dtype=np.uint8)
        top, left = (self._shape[0] - side) // 2, (self._shape[1] - side) // 2
        inside = pictures[:, :, top : top + side, left : left + side]
        inside[:] = drawn.transpose(0, 3, 1, 4, 2, 5).reshape(n, 3, side, side)
        return pictures


def _sprites(size: int) -> NDArray[np.uint8]:
    """Draw the sprite of each kind of cell, u8 [4, 3, size, size]."""
    ground, blue, green, red = (90, 90, 90), (40, 80, 255), (30, 220, 60), (240, 40, 40)
    across = np.abs(np.arange(size) - (size - 1) / 2)
    broad = max(1.0, size / 8)
    plus = (across[:, None] < broad) | (across[None, :] < broad)
    cross = np.abs(across[:, None] - across[None, :]) < broad
    sprites = np.empty((4, 3, size, size), dtype=np.uint8)
    sprites[:] = np.array(ground, dtype=np.uint8)[:, None, None]
    for kind, color, shape in ((AGENT, blue, np.ones_like(plus)), (PLUS, green, plus), (CROSS, red, cross)):
        sprites[kind][:, shape] = np.array(color, dtype=np.uint8)[:, None]
    return sprites


@dataclass(frozen=True, slots=True)
class HybridOptions(SimulationOptions):
    """Options of ``Hybrid``."""

    agents: int = option(10, "number of agents")


class Hybrid(EpisodicSimulation):
    """Drive to a parcel in the square [-1, 1]², and open it with the tool that it needs.

    There are two continuous actions (velocity), a branch of 3 (which tool) and a branch of 2 (whether to use it). The
    agent observes two sensors: "Motion" (own position, relative position of the parcel; 4 numbers) and "Task" (the tool
    that the parcel needs, the tool that is broken, whether the parcel is within reach; 7 numbers). The broken tool is
    always forbidden, and using a tool is forbidden while the parcel is out of reach.

    Using the needed tool gives 1 and ends the episode; using the other tool gives -0.1. Every decision costs 0.01, and
    after 40 decisions the episode is interrupted. A forbidden choice ends the episode with -1, which never happens to
    an agent that respects the masks. Driving straight to the parcel and using the needed tool at once scores 0.95 on
    average, and random actions that respect the masks about -0.1.
    """

    masked = True

    def __init__(self, options: HybridOptions, random: np.random.Generator, parameters: EnvironmentParameters) -> None:
        spec = BehaviorSpec([vector_sensor(4, "Motion"), vector_sensor(7, "Task")], ActionSpec(2, (TOOLS, 2)))
        super().__init__(spec, options.agents, random, parameters, max_decisions=40)
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

    def paint(self, number: int, canvas: Canvas) -> None:
        """Paint the parcel in the color of the needed tool, and the broken tool in the corner."""
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
