"""Sorter: press tiles in the order of their numbers; a list of entities of varying length.

See docs/explanation/mlagents-behavior.md#built-in-tasks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trajtrainer.core.spec import BehaviorSpec
from trajtrainer.core.steps import BoolArray, FloatArray, LongArray
from trajtrainer.sim.drawing import BLUE, GRAY, GREEN, Canvas
from trajtrainer.sim.simulation import (
    Agents,
    EnvironmentParameters,
    EpisodicSimulation,
    Observations,
    SimulatedActions,
    SimulationOptions,
    action_spec,
    entities_sensor,
    option,
    vector_sensor,
)

MOST_TILES = 20
TILE_SIZE = 6
RADIUS = 1.0  # of the circle on which the tiles lie, 20 places
REACH = 0.25
SPEED = 0.2  # so that some place is nearest to any tile
MAX_DECISIONS = 400
MOVE_COST = 1.0 / MAX_DECISIONS
_SITES = np.arange(MOST_TILES) * (2.0 * np.pi / MOST_TILES)
_CIRCLE = RADIUS * np.stack((np.cos(_SITES), np.sin(_SITES)), axis=1)


@dataclass(frozen=True, slots=True)
class SorterOptions(SimulationOptions):
    """Options of ``Sorter``."""

    agents: int = option(16, "number of agents")


class Sorter(EpisodicSimulation):
    """An agent inside a circle of up to 20 numbered tiles.

    Branches: 3 (left, stay, right), 3 (back, stay, forward) and 2 (press).

    Observes the tiles as a list of entities of 6 numbers (number / 20, the way to it (2), whether it was pressed,
    whether it is in reach, 1) and a vector of 4 (place (2), part of the tiles that were pressed, whether one that was
    not is in reach). Press means the nearest tile that has not been pressed; out of reach it does nothing. The tile
    with the lowest number that is left gives 1, another one -1 and the end. Every decision costs 1/400, and after 400
    of them the episode is interrupted.

    Environment parameter ``num_tiles`` (2), drawn when an episode begins, up to 20. Pressing them in order by the
    direct ways scores 1.96 with 2 tiles, random actions about -0.1.
    """

    def __init__(self, options: SorterOptions, random: np.random.Generator, parameters: EnvironmentParameters) -> None:
        sensors = [entities_sensor(MOST_TILES, TILE_SIZE, "Tiles"), vector_sensor(4)]
        spec = BehaviorSpec(sensors, action_spec(branches=(3, 3, 2)))
        super().__init__(spec, options.agents, random, parameters, max_decisions=MAX_DECISIONS)
        n = options.agents
        self._place: NDArray[np.float64] = np.zeros((n, 2))
        self._tiles: NDArray[np.float64] = np.zeros((n, MOST_TILES, 2))  # in the order in which they are shown
        self._number: LongArray = np.zeros((n, MOST_TILES), dtype=np.int64)  # 1 to 20; 0 for no tile
        self._pressed: BoolArray = np.zeros((n, MOST_TILES), dtype=np.bool_)
        self._rows = np.arange(n)

    def _begin(self, agents: LongArray) -> None:
        n = len(agents)
        drawn = self._random.random((n, 2, MOST_TILES))
        count = np.clip(np.round(self._parameters.draw("num_tiles", 2.0, n)), 1, MOST_TILES)
        self._place[agents] = 0.0
        self._tiles[agents] = _CIRCLE[drawn[:, 0].argsort(axis=1)]
        there = np.arange(MOST_TILES) < count[:, None]
        self._number[agents] = np.where(there, drawn[:, 1].argsort(axis=1) + 1, 0)
        self._pressed[agents] = False

    def _distance(self) -> NDArray[np.float64]:
        """The distance from each agent to its tiles that are still to be pressed, f64 [N, MOST_TILES].

        Infinite to the others.
        """
        way = self._tiles - self._place[:, None]
        return np.where((self._number > 0) & ~self._pressed, np.hypot(way[..., 0], way[..., 1]), np.inf)

    def _advance(self, actions: SimulatedActions) -> tuple[FloatArray, BoolArray]:
        choice = actions.discrete
        distance = self._distance()
        nearest = distance.argmin(axis=1)
        pressed = (choice[:, 2] == 1) & (distance[self._rows, nearest] <= REACH)
        left = np.where(np.isfinite(distance), self._number, MOST_TILES + 1)
        right = pressed & (self._number[self._rows, nearest] == left.min(axis=1))
        self._pressed[self._rows[right], nearest[right]] = True
        reward = right * 1.0 - (pressed & ~right) - MOVE_COST
        self._place = np.clip(self._place + SPEED * (choice[:, :2] - 1), -RADIUS, RADIUS)
        done = (self._pressed | (self._number == 0)).all(axis=1)
        return reward.astype(np.float32), done | (pressed & ~right)

    def draw(self, number: int, canvas: Canvas) -> None:
        canvas.reach = 1.3
        for (x, y), label, pressed in zip(
            self._tiles[number].tolist(), self._number[number].tolist(), self._pressed[number], strict=True
        ):
            if label:
                canvas.box(x, y, 0.28, 0.28, GREEN if pressed else GRAY)
                canvas.text(x, y, str(label))
        x, y = self._place[number].tolist()
        canvas.disc(x, y, 0.08, BLUE)

    def _observe(self, agents: Agents) -> Observations:
        place, number, pressed = self._place[agents], self._number[agents], self._pressed[agents]
        there = number > 0
        way = self._tiles[agents] - place[:, None]
        near = (np.hypot(way[..., 0], way[..., 1]) <= REACH) & there
        tiles = np.zeros((*number.shape, TILE_SIZE), dtype=np.float32)
        tiles[..., 0] = number / MOST_TILES
        tiles[..., 1:3] = way
        tiles[..., 3] = pressed
        tiles[..., 4] = near
        tiles[..., 5] = 1.0
        tiles[~there] = 0.0
        vector = np.empty((len(place), 4), dtype=np.float32)
        vector[:, :2] = place
        vector[:, 2] = pressed.sum(axis=1) / there.sum(axis=1)
        vector[:, 3] = (near & ~pressed).any(axis=1)
        return tiles, vector
