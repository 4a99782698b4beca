"""StrikerVsGoalie against its solution by dynamic programming, and the same over the wire."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.envs.sim.scripts import Policy, make_game, play_game, random_policy
from tests.envs.sim.wire_game import wire_game
from trajtrainer.envs.sim.simulation import SimulatedActions, SimulationStep

STEPS = (0, 1, -1)


def moved(place: int, choice: int) -> int:
    return min(max(place + STEPS[choice], 0), 8)


@cache
def solved(striker: int, goalie: int, left: int) -> tuple[float, int, int]:
    """Score of the striker and the best choices of both, each of which is best whatever the other does."""
    if not left:
        return (1.0 if abs(striker - goalie) > 1 else -1.0), 0, 0
    table = [[solved(moved(striker, a), moved(goalie, b), left - 1)[0] for b in range(3)] for a in range(3)]
    runs = max(range(3), key=lambda a: min(table[a]))
    keeps = min(range(3), key=lambda b: max(row[b] for row in table))
    assert min(table[runs]) == max(row[keeps] for row in table), "a choice that is best needs no luck"
    return table[runs][keeps], runs, keeps


@cache
def expected(striker: int, goalie: int, left: int, best_roles: frozenset[int]) -> float:
    """Score of the striker on average, where the others than ``best_roles`` choose at random."""
    score, *best_choices = solved(striker, goalie, left)
    if not left:
        return score
    runs, keeps = ([best_choices[role]] if role in best_roles else [0, 1, 2] for role in (0, 1))
    scores = [expected(moved(striker, a), moved(goalie, b), left - 1, best_roles) for a in runs for b in keeps]
    return sum(scores) / len(scores)


def best(role: int) -> Policy:
    """Plays the solution."""

    def act(step: SimulationStep) -> SimulatedActions:
        choices = []
        for own, left, way in step.observations[0][:, :3]:
            places = round(4 * own) + 4, round(4 * (own + way)) + 4
            striker, goalie = places if role == 0 else reversed(places)
            choices.append(solved(striker, goalie, round(5 * left))[1 + role])
        return SimulatedActions(np.zeros((len(choices), 0), np.float32), np.array(choices, np.int32)[:, None])

    return act


def test_scores_are_those_of_the_solution() -> None:
    game = make_game("StrikerVsGoalie", areas=400)
    striker, goalie = game.roles.values()
    starts = [(striker, goalie, left) for striker in range(9) for goalie in range(9) for left in (3, 4, 5)]
    for best_roles, stated in [({0, 1}, -0.13), (set(), 0.38), ({0}, 0.59), ({1}, -0.26)]:
        policies = [best(0) if 0 in best_roles else random_policy(striker, 1)]
        policies += [best(1) if 1 in best_roles else random_policy(goalie, 2)]
        score = np.mean([expected(*start, frozenset(best_roles)) for start in starts])
        assert score == pytest.approx(stated, abs=0.005)
        scores, others = play_game(game, policies, 40)
        assert len(scores) > 3500
        assert np.mean(scores) == pytest.approx(score, abs=0.06)
        assert scores == [-score for score in others]


def test_every_start_of_the_best_two_ends_as_solved() -> None:
    game = make_game("StrikerVsGoalie", 5, areas=300)
    policies = [best(0), best(1)]
    runs, keeps = game.reset()
    starts = [
        (round(4 * a) + 4, round(4 * (a + way)) + 4, round(5 * left)) for a, left, way in runs.observations[0].tolist()
    ]
    assert len(set(starts)) > 150
    for decision in range(1, 4):
        runs, keeps = game.step([policies[0](runs), policies[1](keeps)])
        if decision < 3:
            assert not len(runs.ended), "at least 3 rows"
    assert runs.ended.tolist() == [area for area, (_, _, rows) in enumerate(starts) if rows == 3]
    assert runs.ended_reward.tolist() == [solved(*starts[area])[0] for area in runs.ended]
    assert keeps.ended_reward.tolist() == (-runs.ended_reward).tolist()
    assert not runs.interrupted.any()
    assert {rows for _, _, rows in starts} == {3, 4, 5}


def test_several_strikers_share_what_any_of_them_scores() -> None:
    game = make_game("StrikerVsGoalie", 2, agents=2, areas=50)
    policies = [random_policy(role, seed) for seed, role in enumerate(game.roles.values())]
    runs, keeps = game.reset()
    ended = 0
    for _ in range(20):
        before = keeps.observations[0]
        actions = [policies[0](runs), policies[1](keeps)]
        places = np.round(4 * (before[:, :1] + np.concatenate((before[:, 2:4], np.zeros((50, 1))), axis=1))).astype(int)
        chosen = np.concatenate((actions[0].discrete.reshape(50, 2), actions[1].discrete), axis=1)
        after: NDArray[np.int64] = np.clip(places + np.array(STEPS)[chosen], -4, 4)
        strikers, goalie = after[:, :2], after[:, 2:]
        runs, keeps = game.step(actions)
        keeping, running = keeps.observations[0].copy(), runs.observations[0].reshape(50, 2, 4).copy()
        keeping[keeps.ended] = keeps.ended_observations[0]
        running[keeps.ended] = runs.ended_observations[0].reshape(-1, 2, 4)
        left = np.rint(5 * before[:, 1:2]) - 1
        assert keeps.ended.tolist() == np.flatnonzero(left == 0).tolist()
        assert runs.ended.tolist() == np.flatnonzero(np.repeat(left == 0, 2)).tolist()
        expected = np.concatenate((goalie / 4, left / 5, (strikers - goalie) / 4, (after - places)[:, :2]), axis=1)
        np.testing.assert_allclose(keeping, expected, atol=1e-6)
        for one in range(2):
            own, mate = strikers[:, one : one + 1], strikers[:, 1 - one : 2 - one]
            expected = np.concatenate((own / 4, left / 5, (goalie - own) / 4, (mate - own) / 4), axis=1)
            np.testing.assert_allclose(running[:, one], expected, atol=1e-6)
        goal = np.where((np.abs(strikers - goalie) > 1).any(axis=1), 1.0, -1.0)[keeps.ended]
        assert runs.ended_group_reward is not None
        assert runs.ended_group_reward.tolist() == np.repeat(goal, 2).tolist()
        assert not runs.ended_reward.any()
        assert keeps.ended_reward.tolist() == (-goal).tolist()
        ended += len(goal)
    assert ended > 200


def test_the_same_over_the_wire() -> None:
    with wire_game("StrikerVsGoalie", "--areas", "100") as remote:
        assert list(remote.roles) == ["Striker?team=0", "Goalie?team=1"]
        sizes = [role.spec.observation_specs[0].shape for role in remote.roles.values()]
        assert sizes == [(3,), (4,)]
        scores, others = play_game(remote, [best(0), best(1)], 40)
        assert np.mean(scores) == pytest.approx(-0.13, abs=0.1)
        assert scores == [-score for score in others]
