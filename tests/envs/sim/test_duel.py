"""Duel against a slow version of its rules, the scores that its description names, and the same over the wire."""

from __future__ import annotations

import numpy as np
import pytest

from tests.envs.sim.scripts import Policy, make_game, play_game, random_policy
from tests.envs.sim.wire_game import wire_game
from trajtrainer.envs.sim.simulation import SimulatedActions, SimulationStep

MOVES = [(0, 0), (1, 0), (-1, 0), (0, 1), (0, -1)]


def center(size: int) -> Policy:
    """Goes to the center; there it presses against the nearest opponent beside it."""

    def act(step: SimulationStep) -> SimulatedActions:
        seen = step.observations[0]
        place = 2.0 * seen[:, :2]
        opponents = seen[:, 4 + 3 * (size - 1) :].reshape(len(seen), size, 3)
        distance = np.where(opponents[..., 2] > 0.0, np.abs(2.0 * opponents[..., :2]).sum(axis=2), 99.0)
        nearest = distance.argmin(axis=1)
        rows = np.arange(len(seen))
        pressing = (distance[rows, nearest] == 1.0) & ~place.any(axis=1)
        way = np.where(pressing[:, None], opponents[rows, nearest, :2], -place)
        along = np.abs(way[:, 0]) >= np.abs(way[:, 1])
        choice = np.where(along, np.where(way[:, 0] > 0.0, 1, 2), np.where(way[:, 1] > 0.0, 3, 4))
        choice[~way.any(axis=1)] = 0
        return SimulatedActions(np.zeros((len(seen), 0), np.float32), choice[:, None].astype(np.int32))

    return act


@pytest.mark.parametrize("size", [1, 3])
def test_holding_the_center_wins_against_random_actions_which_are_even(size: int) -> None:
    game = make_game("Duel", agents=size, areas=40)
    first, second = game.roles.values()
    for policies, low, high in [
        ([center(size), random_policy(second)], 0.95, 1.0),
        ([random_policy(first), center(size)], -1.0, -0.95),
        ([random_policy(first, 1), random_policy(second, 2)], -0.1, 0.1),
        ([center(size), center(size)], -0.15, 0.15),
    ]:
        scores, others = play_game(game, policies, 200)
        assert len(scores) > 250
        assert low <= np.mean(scores) <= high
        assert scores == [-score for score in others]


Cell = tuple[int, int]


def by_area(steps: list[SimulationStep], size: int, *, ended: bool = False) -> list[dict[int, tuple[Cell, float]]]:
    """For each of 6 areas: agent (team 1 behind team 0) -> its place and what it earned."""
    areas: list[dict[int, tuple[Cell, float]]] = [{} for _ in range(6)]
    for team, step in enumerate(steps):
        assert step.group_reward is not None
        assert step.ended_group_reward is not None
        earned = step.ended_reward + step.ended_group_reward if ended else step.reward + step.group_reward
        everyone = np.arange(6 * size) if step.deciding is None else step.deciding
        (seen,) = step.ended_observations if ended else step.observations
        for agent, row, reward in zip(step.ended if ended else everyone, seen, earned, strict=True):
            area, number = divmod(int(agent), size)
            areas[area][team * size + number] = ((round(2.0 * row[0]), round(2.0 * row[1])), float(reward))
    return areas


def slow(places: dict[int, Cell], moves: dict[int, Cell], order: list[int]) -> dict[int, Cell]:
    """Where everybody stands after all have moved in ``order``."""
    places = dict(places)
    for agent in order:
        if agent in places and moves[agent] != (0, 0):
            (x, y), (dx, dy) = places[agent], moves[agent]
            at = {cell: other for other, cell in places.items()}
            target, behind = (x + dx, y + dy), (x + 2 * dx, y + 2 * dy)
            if target in at and behind in at:
                continue
            if target in at:
                places[at[target]] = behind
            places[agent] = target
    return places


@pytest.mark.parametrize("size", [1, 2, 4])
def test_every_decision_is_what_a_slow_version_says(size: int) -> None:
    game = make_game("Duel", 3, agents=size, areas=6)
    policies = [random_policy(role, seed) for seed, role in enumerate(game.roles.values())]
    seen = game.reset()
    time = [0] * 6
    beginners = set()
    for _ in range(120):
        actions = [policy(step) for policy, step in zip(policies, seen, strict=True)]
        before = by_area(seen, size)
        choices = [
            {agent: MOVES[actions[agent // size].discrete[row, 0]] for agent, row in rows.items()}
            for rows in waiting(seen, size)
        ]
        seen = game.step(actions)
        after, ended = by_area(seen, size), by_area(seen, size, ended=True)
        for area in range(6):
            time[area] += 1
            radius = 2 - time[area] // 12
            places = {agent: cell for agent, (cell, _) in before[area].items()}
            possible = {}
            for beginner in (0, 1):  # which was drawn is not told
                order = [(turn + beginner) % 2 * size + turn // 2 for turn in range(2 * size)]
                moved = slow(places, choices[area], order)
                standing = {agent for agent, (x, y) in moved.items() if max(abs(x), abs(y)) <= radius}
                teams = [any(agent // size == team for agent in standing) for team in (0, 1)]
                won = float(teams[0]) - float(teams[1])
                over = not all(teams)
                possible[beginner] = (
                    over,
                    {
                        agent: (cell, 0.0 if not over else won if agent < size else -won)
                        for agent, cell in moved.items()
                        if over or agent not in standing
                    },
                    {agent: (moved[agent], 0.0) for agent in standing},
                )
            fitting = {
                beginner: over
                for beginner, (over, gone, stay) in possible.items()
                if ended[area] == gone and (over or after[area] == stay)
            }
            assert fitting, (before[area], choices[area], after[area], ended[area])
            if len(fitting) == 1:
                beginners |= set(fitting)
            if next(iter(fitting.values())):
                time[area] = 0
                starts = {agent: cell for agent, (cell, _) in after[area].items()}
                assert sorted(starts) == list(range(2 * size))
                for agent in range(size):
                    x, y = starts[agent]
                    assert (x, starts[agent + size]) == (-1, (1, -y)), "teams begin in mirrored places"
    assert beginners == {0, 1}


def waiting(steps: list[SimulationStep], size: int) -> list[dict[int, int]]:
    """For each of 6 areas: agent -> the row of its decision."""
    areas: list[dict[int, int]] = [{} for _ in range(6)]
    for team, step in enumerate(steps):
        everyone = range(6 * size) if step.deciding is None else step.deciding.tolist()
        for row, agent in enumerate(everyone):
            areas[agent // size][team * size + agent % size] = row
    return areas


def test_the_numbers_that_an_agent_sees() -> None:
    game = make_game("Duel", agents=2, areas=6)
    seen = game.reset()
    cells = [cell for cell, _ in by_area(seen, 2)[0].values()]
    own, mate, *opponents = cells
    expected = [own[0] / 2, own[1] / 2, 2, 0]
    for other in (mate, *opponents):
        expected += [(other[0] - own[0]) / 2, (other[1] - own[1]) / 2, 1]
    assert seen[0].observations[0][0].tolist() == expected
    stay = [SimulatedActions(np.zeros((12, 0), np.float32), np.zeros((12, 1), np.int32))] * 2
    for decision in range(1, 13):
        seen = game.step(stay)
        ring = seen[1].observations[0][0, 2:4].tolist()
        assert ring == pytest.approx([2, decision / 12] if decision < 12 else [1, 0])


@pytest.mark.parametrize("size", [1, 2])
def test_the_same_over_the_wire(size: int) -> None:
    with wire_game("Duel", "--agents", str(size), "--areas", "20") as remote:
        assert list(remote.roles) == ["Duel?team=0", "Duel?team=1"]
        first, second = remote.roles.values()
        assert first.num_agents == second.num_agents == 20 * size
        assert (first.groups is None) == (size == 1)
        scores, others = play_game(remote, [center(size), random_policy(second)], 60)
        assert len(scores) > 60
        assert np.mean(scores) > 0.95
        assert scores == [-score for score in others]


def test_teams_larger_than_the_ring_are_refused() -> None:
    with pytest.raises(ValueError, match="--agents must be at most 5 per team in Duel, found 6"):
        make_game("Duel", agents=6)
