"""Match3: swap neighbors on a board so that three of a kind lie in a row.

See docs/explanation/mlagents-behavior.md#built-in-tasks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trajtrainer.core.spec import BehaviorSpec
from trajtrainer.core.steps import BoolArray, FloatArray, LongArray
from trajtrainer.sim.drawing import COLORS, WHITE, Canvas
from trajtrainer.sim.simulation import (
    Agents,
    EnvironmentParameters,
    EpisodicSimulation,
    Observations,
    SimulatedActions,
    SimulationOptions,
    action_spec,
    option,
    picture_sensor,
)

REWARD = 0.1  # per point
SPECIAL_SHARE = 0.15
SPECIAL_POINTS = 4
_Board = NDArray[np.int8]
EMPTY = -1


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
                "Match3 needs at least 4 --rows and --columns, 3 --kinds and 1 of --moves, found "
                f"{self.rows}, {self.columns}, {self.kinds}, {self.moves}"
            )


class Match3(EpisodicSimulation):
    """A board of cells of several kinds, some of them special.

    A move (one branch) swaps two neighbors; those that bring no three of a kind into a row are forbidden.

    Observes two pictures with one-hot channels: the kinds (kinds, rows, columns) and the specials (1, rows, columns).
    All rows of three or more are cleared, cells above fall down, new ones come from above, until nothing is left to
    clear. A cleared cell gives 0.1, a special one 0.4. An episode is interrupted after its number of moves; a board
    without any move is replaced. A forbidden move does nothing. With the default options random
    moves score about 38, taking the most points at once about 43.
    """

    masked = True

    def __init__(self, options: Match3Options, random: np.random.Generator, parameters: EnvironmentParameters) -> None:
        rows, columns, kinds = options.rows, options.columns, options.kinds
        sensors = [
            picture_sensor(kinds, rows, columns, "Match3 Cell Types"),
            picture_sensor(1, rows, columns, "Match3 Special Types"),
        ]
        self._swaps = _swaps(rows, columns)
        spec = BehaviorSpec(sensors, action_spec(branches=(len(self._swaps),)))
        super().__init__(spec, options.agents, random, parameters, max_decisions=options.moves)
        self._kinds = kinds
        self._cells: _Board = np.zeros((options.agents, rows, columns), dtype=np.int8)
        self._special: BoolArray = np.zeros((options.agents, rows, columns), dtype=np.bool_)
        self._allowed: BoolArray = np.zeros((options.agents, len(self._swaps)), dtype=np.bool_)

    def _begin(self, agents: LongArray) -> None:
        self._cells[agents] = EMPTY
        self._settle(agents)

    def _advance(self, actions: SimulatedActions) -> tuple[FloatArray, BoolArray]:
        everyone = np.arange(self.num_agents)
        move = actions.discrete[:, 0]
        order = np.where(self._allowed[everyone, move, None], self._swaps[move], np.arange(self._swaps.shape[1]))
        for board in (self._cells, self._special):
            board[:] = np.take_along_axis(board.reshape(self.num_agents, -1), order, axis=1).reshape(board.shape)
        points = self._settle(everyone)
        return (REWARD * points).astype(np.float32), np.zeros(self.num_agents, dtype=np.bool_)

    def _settle(self, agents: LongArray) -> NDArray[np.float64]:
        """Clear, drop and refill until nothing is left to clear, and make sure that there is a move.

        Returns the points of each of ``agents``.
        """
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
        order = np.argsort(cells != EMPTY, axis=1, kind="stable")  # the empty ones to the top
        cells = np.take_along_axis(cells, order, axis=1)
        special = np.take_along_axis(self._special[agents], order, axis=1)
        drawn = self._random.random((len(agents), 2, *cells.shape[1:]))
        empty = cells == EMPTY
        self._cells[agents] = np.where(empty, (drawn[:, 0] * self._kinds).astype(np.int8), cells)
        self._special[agents] = np.where(empty, drawn[:, 1] < SPECIAL_SHARE, special)

    def _mask(self) -> BoolArray:
        return ~self._allowed

    def draw(self, number: int, canvas: Canvas) -> None:
        """Special cells have a dot."""
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
    """Which cells of boards [..., rows, columns] lie in a row or column of three or more of their kind."""
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
    """Which swaps bring three of a kind into a row, bool [n, swaps].

    Boards [n, rows, columns] have none before.
    """
    n, rows, columns = cells.shape
    swapped = cells.reshape(n, rows * columns)[:, swaps].reshape(n, len(swaps), rows, columns)
    allowed: BoolArray = np.logical_or.reduce(in_a_row(swapped), axis=(2, 3))
    return allowed


def _swaps(rows: int, columns: int) -> LongArray:
    """Every swap as the order in which it leaves the cells, i64 [swaps, rows * columns].

    First with the right neighbor, row by row, then with the one below.
    """
    cells = np.arange(rows * columns).reshape(rows, columns)
    pairs = [*zip(cells[:, :-1].flat, cells[:, 1:].flat, strict=True)]
    pairs += zip(cells[:-1].flat, cells[1:].flat, strict=True)
    orders = np.tile(np.arange(rows * columns), (len(pairs), 1))
    for order, (a, b) in zip(orders, pairs, strict=True):
        order[[a, b]] = b, a
    return orders
