"""Basic against its table of rewards."""

from __future__ import annotations

import numpy as np
import pytest

from tests.envs.sim.scripts import Policy, make, play, random_policy
from trajtrainer.envs.sim.simulation import SimulatedActions

STAY, LEFT, RIGHT = 0, 1, 2


def always(choice: int, agents: int = 1) -> Policy:
    actions = SimulatedActions(np.zeros((agents, 0), dtype=np.float32), np.full((agents, 1), choice, dtype=np.int32))
    return lambda _: actions


@pytest.mark.parametrize(("choice", "decisions", "score"), [(RIGHT, 7, 0.93), (LEFT, 3, 0.07)])
def test_going_straight_to_a_goal(choice: int, decisions: int, score: float) -> None:
    scores = play(make("Basic"), always(choice), 3 * decisions)
    assert scores == pytest.approx([score] * 3)


def test_staying_costs_and_never_ends() -> None:
    simulation = make("Basic", agents=2)
    step = simulation.reset()
    for _ in range(500):
        step = simulation.step(always(STAY, 2)(step))
        assert not len(step.ended)
        assert step.reward.tolist() == pytest.approx([-0.01, -0.01])
    assert step.observations[0].argmax(axis=1).tolist() == [10, 10]


def test_every_agent_walks_by_itself_as_a_slow_walk_says() -> None:
    simulation = make("Basic", agents=4)
    act = random_policy(simulation)
    places = [10] * 4
    step = simulation.reset()
    for _ in range(400):
        assert step.observations[0].tolist() == [[float(i == place) for i in range(20)] for place in places]
        actions = act(step)
        step = simulation.step(actions)
        places = [
            max(0, min(19, place + {STAY: 0, LEFT: -1, RIGHT: 1}[choice]))
            for place, choice in zip(places, actions.discrete[:, 0].tolist(), strict=True)
        ]
        assert step.ended.tolist() == [i for i, place in enumerate(places) if place in (7, 17)]
        expected = [{7: 0.09, 17: 0.99}[places[i]] for i in step.ended]
        assert step.ended_reward.tolist() == pytest.approx(expected)
        assert not step.interrupted.any()
        places = [10 if place in (7, 17) else place for place in places]
