"""Match3: rows and moves against a slow search, and what a move does to a board."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.envs.sim.scripts import Policy, make, play, random_policy
from trajtrainer.envs.sim.puzzles import in_a_row
from trajtrainer.envs.sim.simulation import SimulatedActions, SimulationStep

Board = list[list[int]]


def slow_rows(board: Board) -> list[list[bool]]:
    """Cells in rows of three or more, by looking at every triple."""
    rows, columns = len(board), len(board[0])
    found = [[False] * columns for _ in range(rows)]
    for r in range(rows):
        for c in range(columns):
            for down, right in ((0, 1), (1, 0)):
                line = [(r + i * down, c + i * right) for i in range(3)]
                if line[-1][0] < rows and line[-1][1] < columns:
                    kinds = {board[a][b] for a, b in line}
                    if len(kinds) == 1 and -1 not in kinds:
                        for a, b in line:
                            found[a][b] = True
    return found


@given(st.lists(st.lists(st.integers(-1, 2), min_size=5, max_size=5), min_size=4, max_size=6))
def test_rows_of_three_are_found(board: Board) -> None:
    assert in_a_row(np.array([board], dtype=np.int8))[0].tolist() == slow_rows(board)


def boards(step: SimulationStep) -> list[Board]:
    """The kinds of all cells, from the pictures; every cell has one."""
    cells = step.observations[0]
    assert ((cells == 255).sum(axis=1) == 1).all()
    return cells.argmax(axis=1).tolist()  # type: ignore[no-any-return]


def swaps(rows: int, columns: int) -> list[tuple[int, int, int, int]]:
    beside = [(r, c, r, c + 1) for r in range(rows) for c in range(columns - 1)]
    return beside + [(r, c, r + 1, c) for r in range(rows - 1) for c in range(columns)]


def test_exactly_the_moves_that_bring_a_row_are_allowed() -> None:
    simulation = make("Match3", agents=4)
    act = random_policy(simulation)
    step = simulation.reset()
    for _ in range(25):
        assert step.mask is not None
        for board, mask in zip(boards(step), step.mask.tolist(), strict=True):
            assert not any(map(any, slow_rows(board))), "nothing is left to clear"
            for forbidden, (r, c, r2, c2) in zip(mask, swaps(6, 6), strict=True):
                board[r][c], board[r2][c2] = board[r2][c2], board[r][c]
                assert forbidden != any(map(any, slow_rows(board)))
                board[r][c], board[r2][c2] = board[r2][c2], board[r][c]
        step = simulation.step(act(step))


def test_a_move_clears_its_rows_and_pays_for_them() -> None:
    simulation = make("Match3", agents=6, moves=1000)
    act = random_policy(simulation)
    step = simulation.reset()
    for _ in range(20):
        before, special = boards(step), (step.observations[1][:, 0] == 255).tolist()
        actions = act(step)
        step = simulation.step(actions)
        for agent, move in enumerate(actions.discrete[:, 0].tolist()):
            r, c, r2, c2 = swaps(6, 6)[move]
            for board in (before[agent], special[agent]):
                board[r][c], board[r2][c2] = board[r2][c2], board[r][c]
            cleared = slow_rows(before[agent])
            cells = [(a, b) for a in range(6) for b in range(6) if cleared[a][b]]
            least = sum(0.4 if special[agent][a][b] else 0.1 for a, b in cells)
            assert step.reward[agent] >= least - 1e-6, "what fell into rows afterwards comes on top"
            if step.reward[agent] == pytest.approx(least):  # nothing fell into rows: what was above has come down
                after = boards(step)[agent]
                for b in range(6):
                    rest = [before[agent][a][b] for a in range(6) if not cleared[a][b]]
                    assert [row[b] for row in after][6 - len(rest) :] == rest


def test_a_forbidden_move_does_nothing() -> None:
    simulation = make("Match3", agents=3)
    step = simulation.reset()
    assert step.mask is not None
    forbidden = step.mask.argmax(axis=1)
    after = simulation.step(SimulatedActions(np.zeros((3, 0), dtype=np.float32), forbidden[:, None].astype(np.int32)))
    assert boards(after) == boards(step)
    assert after.reward.tolist() == [0.0, 0.0, 0.0]


def greedy() -> Policy:
    """The move that clears the most points at once."""

    def act(step: SimulationStep) -> SimulatedActions:
        cells = step.observations[0].argmax(axis=1).astype(np.int8)
        points = 1 + 3 * (step.observations[1][:, 0] == 255)
        gains = np.zeros((len(cells), len(swaps(6, 6))))
        for move, (r, c, r2, c2) in enumerate(swaps(6, 6)):
            board, worth = cells.copy(), points.copy()
            for field in (board, worth):
                field[:, [r, r2], [c, c2]] = field[:, [r2, r], [c2, c]]
            gains[:, move] = (in_a_row(board) * worth).sum(axis=(1, 2))
        choice = gains.argmax(axis=1).astype(np.int32)
        return SimulatedActions(np.zeros((len(cells), 0), dtype=np.float32), choice[:, None])

    return act


def test_scores_of_random_and_of_greedy_moves() -> None:
    simulation = make("Match3", agents=16)
    by_chance = np.mean(play(simulation, random_policy(simulation), 50))
    by_greed = np.mean(play(simulation, greedy(), 50))
    assert 36.0 < by_chance < 41.0
    assert by_chance + 1.5 < by_greed < 46.0


def test_an_episode_has_its_moves_and_options_are_checked() -> None:
    simulation = make("Match3", agents=2, moves=3, rows=5, columns=4, kinds=4)
    assert [tuple(sensor.shape) for sensor in simulation.spec.observation_specs] == [(4, 5, 4), (1, 5, 4)]
    act = random_policy(simulation)
    step = simulation.reset()
    for number in (1, 2, 3, 1, 2, 3):
        step = simulation.step(act(step))
        assert step.interrupted.tolist() == [True, True] * (number == 3)
    with pytest.raises(ValueError, match="at least 4 --rows"):
        make("Match3", rows=3)
