"""GridWorld: what is seen is where things are, the rewards of its table, and the score of the shortest ways."""

from __future__ import annotations

from collections import deque

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.envs.sim.scripts import make, play, random_policy
from trajtrainer.envs.sim.simulation import SimulatedActions, SimulationStep

MOVES = [(0, 0), (-1, 0), (1, 0), (0, -1), (0, 1)]
Cell = tuple[int, int]


def find(picture: NDArray[np.uint8], cell: int) -> tuple[Cell, Cell | None, Cell | None]:
    """Agent, plus and cross in a picture u8 [3, 5 * cell, 5 * cell], by color. A goal below the agent is None."""
    blocks = picture.reshape(3, 5, cell, 5, cell).transpose(1, 3, 0, 2, 4).reshape(5, 5, 3, -1).astype(int)
    red, green, blue = blocks.max(axis=3).transpose(2, 0, 1)
    ground = blocks.min(axis=3).max(axis=2)

    def first(mask: NDArray[np.bool_]) -> Cell | None:
        hits = np.argwhere(mask)
        return (int(hits[0, 0]), int(hits[0, 1])) if len(hits) else None

    agent = first((blue > 200) & (ground > 200))
    assert agent is not None
    return agent, first(green > 200), first(red > 200)


def shortest(start: Cell, goal: Cell, wall: Cell, mask: NDArray[np.bool_]) -> int:
    """The first move of a shortest way that does not cross ``wall``."""
    ways: deque[tuple[Cell, int]] = deque([(start, 0)])
    seen = {start, wall}
    while ways:
        cell, first = ways.popleft()
        for move, (down, right) in enumerate(MOVES[1:], start=1):
            after = (cell[0] + down, cell[1] + right)
            if after in seen or not (0 <= after[0] < 5 and 0 <= after[1] < 5) or (cell == start and mask[move]):
                continue
            if after == goal:
                return first or move
            seen.add(after)
            ways.append((after, first or move))
    return 0  # walled in a corner


def seeing(step: SimulationStep) -> SimulatedActions:
    """Goes the shortest way by the picture and the goal signal alone."""
    goals, pictures = step.observations
    assert step.mask is not None
    choices = []
    for goal, picture, mask in zip(goals, pictures, step.mask, strict=True):
        agent, plus, cross = find(picture, 4)
        assert plus is not None
        assert cross is not None
        right, wrong = (plus, cross) if goal[0] else (cross, plus)
        choices.append(shortest(agent, right, wrong, mask))
    return SimulatedActions(np.zeros((len(goals), 0), dtype=np.float32), np.array(choices, dtype=np.int32)[:, None])


def test_who_looks_and_heeds_the_goal_scores_as_documented() -> None:
    simulation = make("GridWorld", agents=40, camera=(20, 20))
    scores = play(simulation, seeing, 40)
    assert np.mean(scores) == pytest.approx(0.976, abs=0.004)
    assert min(scores) > 0.9


def test_random_actions_score_little() -> None:
    simulation = make("GridWorld", camera=(20, 20))
    assert -0.6 < np.mean(play(simulation, random_policy(simulation), 600)) < 0.0


def test_moves_masks_and_rewards() -> None:
    simulation = make("GridWorld", agents=12, camera=(20, 20))
    act = random_policy(simulation, 2)
    step = simulation.reset()
    seen = {1.0: 0, -1.0: 0}
    for _ in range(150):
        before, mask = step, step.mask
        assert mask is not None
        actions = act(before)
        step = simulation.step(actions)
        ended = {agent: row for row, agent in enumerate(step.ended.tolist())}
        for agent in range(12):
            (row, column), plus, cross = find(before.observations[1][agent], 4)
            assert mask[agent].tolist() == [False, row == 0, row == 4, column == 0, column == 4]
            down, right = MOVES[actions.discrete[agent, 0]]
            target = (row + down, column + right)
            goal = plus if before.observations[0][agent, 0] else cross
            if target in (plus, cross):
                assert step.ended_reward[ended[agent]] == (1.0 if target == goal else -1.0)
                assert not step.interrupted[ended[agent]]
                seen[float(step.ended_reward[ended[agent]])] += 1
                assert find(step.ended_observations[1][ended[agent]], 4)[0] == target
            elif agent not in ended:
                assert step.reward[agent] == np.float32(-0.01)
                assert find(step.observations[1][agent], 4)[0] == target
    assert min(seen.values()) > 5


def test_an_episode_is_interrupted_after_100_decisions() -> None:
    simulation = make("GridWorld", agents=2, camera=(20, 20))
    simulation.reset()
    stay = SimulatedActions(np.zeros((2, 0), dtype=np.float32), np.zeros((2, 1), dtype=np.int32))
    for _ in range(99):
        assert not len(simulation.step(stay).ended)
    step = simulation.step(stay)
    assert step.interrupted.tolist() == [True, True]


def test_the_picture_has_the_size_of_the_camera_and_the_grid_in_its_middle() -> None:
    large = make("GridWorld", agents=1)
    small = make("GridWorld", agents=1, camera=(60, 60))
    assert [tuple(sensor.shape) for sensor in large.spec.observation_specs] == [(2,), (3, 64, 84)]
    picture = large.reset().observations[1]
    np.testing.assert_array_equal(picture[:, :, 2:62, 12:72], small.reset().observations[1])
    assert not picture[:, :, :2].any()
    with pytest.raises(ValueError, match="--camera must be height,width"):
        make("GridWorld", camera=(4, 20))
    with pytest.raises(ValueError, match="--grid must be at least 2"):
        make("GridWorld", grid=1)
