"""What holds for every game with training areas."""

from __future__ import annotations

import numpy as np
import pytest

from tests.envs.sim.scripts import Policy, make_game, random_policy, steps_equal
from trajtrainer.envs.sim.registry import SIMULATIONS, GameKind
from trajtrainer.envs.sim.simulation import Game, SimulationStep

LEAVING = {"Duel", "DungeonEscape"}  # games in which agents leave before the others
NAMES = [name for name, kind in SIMULATIONS.items() if isinstance(kind, GameKind)]


def random_policies(game: Game) -> list[Policy]:
    return [random_policy(role, seed) for seed, role in enumerate(game.roles.values())]


def moved(game: Game, policies: list[Policy], seen: list[SimulationStep]) -> list[SimulationStep]:
    return game.step([policy(step) for policy, step in zip(policies, seen, strict=True)])


@pytest.mark.parametrize(
    ("name", "agents"),
    [(name, agents) for name in NAMES for agents in (1, 3) if (name, agents) != ("DungeonEscape", 1)],
)
def test_who_leaves_is_not_asked_before_all_have_ended(name: str, agents: int) -> None:
    game = make_game(name, agents=agents, areas=5)
    policies = random_policies(game)
    seen = game.reset()
    present = [np.ones(role.num_agents, np.bool_) for role in game.roles.values()]
    endings = early = 0
    for _ in range(300):
        seen = moved(game, policies, seen)
        for there, role, step in zip(present, game.roles.values(), seen, strict=True):
            deciding = np.arange(role.num_agents) if step.deciding is None else step.deciding
            n = len(deciding)
            (sensor,) = role.spec.observation_specs
            assert step.observations[0].shape == (n, *sensor.shape)
            assert step.ended_observations[0].shape == (len(step.ended), *sensor.shape)
            assert step.observations[0].dtype == step.ended_observations[0].dtype == np.float32
            assert np.abs(step.observations[0]).max(initial=0.0) <= 2.0, "small enough to learn from as they are"
            assert step.group_reward is not None
            assert step.ended_group_reward is not None
            for column in (step.reward, step.group_reward):
                assert column.shape == (n,)
                assert column.dtype == np.float32
            for column in (step.ended_reward, step.ended_group_reward):
                assert column.shape == (len(step.ended),)
            assert there[step.ended].all(), "only those end who were there"
            there[step.ended] = False
            areas = there.reshape(5, -1)
            began = ~areas.any(axis=1)
            first = began.repeat(areas.shape[1])[deciding]
            assert not step.reward[first].any()
            assert not step.group_reward[first].any()
            assert began.sum() or there[deciding].all()
            areas[began] = True
            assert deciding.tolist() == np.flatnonzero(there).tolist()
            endings += int(began.sum())
            early += role.num_agents - n
            assert (role.groups is None) == (areas.shape[1] == 1)
            if role.groups is not None:
                assert role.groups.tolist() == np.repeat(np.arange(5), areas.shape[1]).tolist()
            else:
                assert not step.group_reward.any()
                assert not step.ended_group_reward.any(), "what an agent without mates earns is its own"
    assert endings > 20
    assert (early > 0) == (agents == 3 and name in LEAVING)


@pytest.mark.parametrize("name", NAMES)
def test_the_same_seed_gives_the_same_and_another_seed_something_else(name: str) -> None:
    a, b, c = make_game(name, 7), make_game(name, 7), make_game(name, 8)
    policies = random_policies(a)
    seen, other = a.reset(), c.reset()
    assert all(map(steps_equal, seen, b.reset()))
    assert not all(map(steps_equal, seen, other))
    for number in range(150):
        if number == 100:
            seen = a.reset()
            assert all(map(steps_equal, seen, b.reset()))
        else:
            actions = [policy(step) for policy, step in zip(policies, seen, strict=True)]
            seen = a.step(actions)
            assert all(map(steps_equal, seen, b.step(actions)))


@pytest.mark.parametrize("name", NAMES)
def test_a_step_stays_as_it_was_when_the_game_goes_on(name: str) -> None:
    game = make_game(name, agents=2)
    policies = random_policies(game)
    seen = game.reset()
    for _ in range(60):
        kept = [column.copy() for step in seen for column in (*step.observations, step.reward)]
        before, seen = seen, moved(game, policies, seen)
        now = [column for step in before for column in (*step.observations, step.reward)]
        assert all(np.array_equal(x, y) for x, y in zip(kept, now, strict=True))


@pytest.mark.parametrize("name", NAMES)
def test_options_that_do_not_fit_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="--areas must be at least 1, found 0"):
        make_game(name, areas=0)
    with pytest.raises(ValueError, match="--agents must be at least 1, found 0"):
        make_game(name, agents=0)
