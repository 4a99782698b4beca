"""Sorter, which observes a list of varying length, and Match3, a board game with masked moves.

See docs/explanation/mlagents-behavior.md#built-in-tasks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trajtrainer.core.spec import ActionSpec, BehaviorSpec
from trajtrainer.core.steps import BoolArray, FloatArray, LongArray
from trajtrainer.envs.sim.canvas import BLUE, COLORS, GRAY, GREEN, WHITE, Canvas
from trajtrainer.envs.sim.simulation import (
    Agents,
    EnvironmentParameters,
    EpisodicSimulation,
    Observations,
    SimulatedActions,
    SimulationOptions,
    entities_sensor,
    option,
    picture_sensor,
    vector_sensor,
)

MOST_TILES = 20
TILE_SIZE = 6
RADIUS = 1.0  # radius of the circle with the 20 places for tiles
REACH = 0.25
SPEED = 0.2  # distance per move; small enough that each tile is the nearest tile from some reachable position
MAX_DECISIONS = 400
MOVE_COST = 1.0 / MAX_DECISIONS
_SITES = np.arange(MOST_TILES) * (2.0 * np.pi / MOST_TILES)
_CIRCLE = RADIUS * np.stack((np.cos(_SITES), np.sin(_SITES)), axis=1)

REWARD = 0.1  # reward per point
SPECIAL_SHARE = 0.15
SPECIAL_POINTS = 4
_Board = NDArray[np.int8]
EMPTY = -1


@dataclass(frozen=True, slots=True)
class SorterOptions(SimulationOptions):
    """Options of ``Sorter``."""

    agents: int = option(16, "number of agents")


class Sorter(EpisodicSimulation):
    """Press up to 20 numbered tiles, which are placed on a circle, in ascending order.

    The branches are 3 (left, stay, right), 3 (back, stay, forward) and 2 (do nothing, press).

    The agent observes the tiles as a list of entities of 6 numbers (number / 20, relative position (2), whether it has
    been pressed, whether it is within reach, 1) and a vector of 4 numbers (own position (2), fraction of the tiles that
    have been pressed, whether an unpressed tile is within reach). A press applies to the nearest unpressed tile, and
    does nothing if that tile is out of reach. Pressing the unpressed tile with the lowest number gives 1; pressing
    another one gives -1 and ends the episode. Every decision costs 1/400, and the episode is interrupted after 400
    decisions.

    The environment parameter ``num_tiles`` (default 2, at most 20) is drawn when an episode starts. With 2 tiles,
    pressing them in order along the shortest paths scores 1.96, and random actions about -0.1.
    """

    def __init__(self, options: SorterOptions, random: np.random.Generator, parameters: EnvironmentParameters) -> None:
        sensors = [entities_sensor(MOST_TILES, TILE_SIZE, "Tiles"), vector_sensor(4)]
        spec = BehaviorSpec(sensors, ActionSpec(0, (3, 3, 2)))
        super().__init__(spec, options.agents, random, parameters, max_decisions=MAX_DECISIONS)
        n = options.agents
        self._place: NDArray[np.float64] = np.zeros((n, 2))
        self._tiles: NDArray[np.float64] = np.zeros((n, MOST_TILES, 2))  # positions, in the order of the observation
        self._number: LongArray = np.zeros((n, MOST_TILES), dtype=np.int64)  # the tiles' numbers from 1; 0 for no tile
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

    def _advance(self, actions: SimulatedActions) -> tuple[FloatArray, BoolArray]:
        choice = actions.discrete
        way = self._tiles - self._place[:, None]
        distance = np.where((self._number > 0) & ~self._pressed, np.hypot(way[..., 0], way[..., 1]), np.inf)
        nearest = distance.argmin(axis=1)
        pressed = (choice[:, 2] == 1) & (distance[self._rows, nearest] <= REACH)
        left = np.where(np.isfinite(distance), self._number, MOST_TILES + 1)
        right = pressed & (self._number[self._rows, nearest] == left.min(axis=1))
        self._pressed[self._rows[right], nearest[right]] = True
        reward = right * 1.0 - (pressed & ~right) - MOVE_COST
        self._place = np.clip(self._place + SPEED * (choice[:, :2] - 1), -RADIUS, RADIUS)
        done = (self._pressed | (self._number == 0)).all(axis=1)
        return reward.astype(np.float32), done | (pressed & ~right)

    def paint(self, number: int, canvas: Canvas) -> None:
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


@dataclass(frozen=True, slots=True)
class Match3Options(SimulationOptions):
    """Options of ``Match3``."""

    agents: int = option(8, "number of agents")
    rows: int = option(6, "rows of the board")
    columns: int = option(6, "columns of the board")
    kinds: int = option(5, "kinds of cells")
    moves: int = option(50, "moves in an episode")

    def __post_init__(self) -> None:
        SimulationOptions.__post_init__(self)
        if min(self.rows, self.columns) < 4 or self.kinds < 3 or self.moves < 1:
            raise ValueError(
                "Match3 needs at least 4 --rows, 4 --columns, 3 --kinds and 1 --moves, found "
                f"{self.rows}, {self.columns}, {self.kinds}, {self.moves}"
            )


class Match3(EpisodicSimulation):
    """Swap neighboring cells of a board to get three or more of a kind in a row. Some cells are special.

    A move (one branch) swaps two neighbors. Moves that do not result in three of a kind in a row are forbidden.

    The agent observes two pictures with one-hot channels: the kinds (kinds, rows, columns) and the special cells (1,
    rows, columns). After a move, all rows and columns of three or more of a kind are cleared, the cells above fall
    down, and new cells come in from the top, until no more cells can be cleared. A cleared cell gives 0.1, and a
    special cell 0.4. An episode is interrupted after its number of moves; a board without a possible move is replaced.
    A forbidden move does nothing. With the default options, random moves score about 38, and always taking the move
    with the most points about 43.
    """

    masked = True

    def __init__(self, options: Match3Options, random: np.random.Generator, parameters: EnvironmentParameters) -> None:
        rows, columns, kinds = options.rows, options.columns, options.kinds
        sensors = [
            picture_sensor(kinds, rows, columns, "Match3 Cell Types"),
            picture_sensor(1, rows, columns, "Match3 Special Types"),
        ]
        self._swaps = _swaps(rows, columns)
        spec = BehaviorSpec(sensors, ActionSpec(0, (len(self._swaps),)))
        super().__init__(spec, options.agents, random, parameters, max_decisions=options.moves)
        self._kinds = kinds
        self._cells: _Board = np.zeros((options.agents, rows, columns), dtype=np.int8)
        self._special: BoolArray = np.zeros((options.agents, rows, columns), dtype=np.bool_)
        self._allowed: BoolArray = np.zeros((options.agents, len(self._swaps)), dtype=np.bool_)

    def _begin(self, agents: LongArray) -> None:
        self._cells[agents] = EMPTY
        self._cascade(agents)

    def _advance(self, actions: SimulatedActions) -> tuple[FloatArray, BoolArray]:
        everyone = np.arange(self.num_agents)
        move = actions.discrete[:, 0]
        order = np.where(self._allowed[everyone, move, None], self._swaps[move], np.arange(self._swaps.shape[1]))
        for board in (self._cells, self._special):
            board[:] = np.take_along_axis(board.reshape(self.num_agents, -1), order, axis=1).reshape(board.shape)
        points = self._cascade(everyone)
        return (REWARD * points).astype(np.float32), np.zeros(self.num_agents, dtype=np.bool_)

    def _cascade(self, agents: LongArray) -> NDArray[np.float64]:
        """Clear, drop and refill cells until none can be cleared and a move is possible; return each agent's points."""
        points = np.zeros(len(agents))
        todo = np.arange(len(agents))
        while len(todo):
            chosen = agents[todo]
            cells = self._cells[chosen]
            cleared = in_a_row(cells)
            points[todo] += (cleared * np.where(self._special[chosen], SPECIAL_POINTS, 1)).sum(axis=(1, 2))
            cells[cleared] = EMPTY
            self._fall_and_fill(chosen, cells)
            stuck = np.zeros(len(todo), dtype=np.bool_)
            calm: BoolArray = ~np.logical_or.reduce(in_a_row(self._cells[chosen]), axis=(1, 2))
            allowed = allowed_swaps(self._cells[chosen[calm]], self._swaps)
            self._allowed[chosen[calm]] = allowed
            stuck[calm] = ~allowed.any(axis=1)
            self._cells[chosen[stuck]] = EMPTY
            todo = todo[~calm | stuck]
        return points

    def _fall_and_fill(self, agents: LongArray, cells: _Board) -> None:
        order = np.argsort(cells != EMPTY, axis=1, kind="stable")  # moves empty cells to the top
        cells = np.take_along_axis(cells, order, axis=1)
        special = np.take_along_axis(self._special[agents], order, axis=1)
        drawn = self._random.random((len(agents), 2, *cells.shape[1:]))
        empty = cells == EMPTY
        self._cells[agents] = np.where(empty, (drawn[:, 0] * self._kinds).astype(np.int8), cells)
        self._special[agents] = np.where(empty, drawn[:, 1] < SPECIAL_SHARE, special)

    def _mask(self) -> BoolArray:
        return ~self._allowed

    def paint(self, number: int, canvas: Canvas) -> None:
        """Paint the board; special cells have a dot."""
        rows, columns = self._cells[number].shape
        canvas.reach = max(rows, columns) / 2
        for (row, column), kind in np.ndenumerate(self._cells[number]):
            x, y = column - (columns - 1) / 2, (rows - 1) / 2 - row
            canvas.box(x, y, 0.9, 0.9, COLORS[int(kind) % len(COLORS)])
            if self._special[number, row, column]:
                canvas.disc(x, y, 0.2, WHITE)

    def _observe(self, agents: Agents) -> Observations:
        kinds = np.arange(self._kinds, dtype=np.int8)[:, None, None]
        cells = (self._cells[agents][:, None] == kinds) * np.uint8(255)
        return cells, self._special[agents][:, None] * np.uint8(255)


def in_a_row(cells: _Board) -> BoolArray:
    """Return which cells of boards [..., rows, columns] are in a row or column of three or more of a kind."""
    found = np.zeros(cells.shape, dtype=np.bool_)
    filled = cells != EMPTY
    for axis in (-1, -2):
        board, marks = np.moveaxis(cells, axis, -1), np.moveaxis(found, axis, -1)
        same = (board[..., 1:] == board[..., :-1]) & np.moveaxis(filled, axis, -1)[..., 1:]
        three = same[..., 1:] & same[..., :-1]
        for shift in range(3):
            marks[..., shift : shift + three.shape[-1]] |= three
    return found


def allowed_swaps(cells: _Board, swaps: LongArray) -> BoolArray:
    """Return which swaps result in three of a kind in a row, bool [n, swaps].

    The boards [n, rows, columns] must not contain three of a kind in a row yet.
    """
    n, rows, columns = cells.shape
    swapped = cells.reshape(n, rows * columns)[:, swaps].reshape(n, len(swaps), rows, columns)
    allowed: BoolArray = np.logical_or.reduce(in_a_row(swapped), axis=(2, 3))
    return allowed


def _swaps(rows: int, columns: int) -> LongArray:
    """Return every swap as the resulting order of the cells, i64 [swaps, rows * columns].

    Swaps with the right neighbor come first, row by row, then swaps with the neighbor below.
    """
    cells = np.arange(rows * columns).reshape(rows, columns)
    pairs = [*zip(cells[:, :-1].flat, cells[:, 1:].flat, strict=True)]
    pairs += zip(cells[:-1].flat, cells[1:].flat, strict=True)
    orders = np.tile(np.arange(rows * columns), (len(pairs), 1))
    for order, (a, b) in zip(orders, pairs, strict=True):
        order[[a, b]] = b, a
    return orders
