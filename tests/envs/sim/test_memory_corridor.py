"""Memory: scores with and without memory, and what is seen when."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from tests.envs.sim.scripts import make, play, random_policy
from trajtrainer.envs.sim.simulation import SimulatedActions, SimulationStep

FORWARD, BACK, LEFT, RIGHT = range(4)


def choose(choices: list[int]) -> SimulatedActions:
    return SimulatedActions(np.zeros((len(choices), 0), dtype=np.float32), np.array(choices, dtype=np.int32)[:, None])


def test_who_remembers_scores_one() -> None:
    remembered = [0] * 16

    def act(step: SimulationStep) -> SimulatedActions:
        choices = []
        for agent, (left, right, _, at_doors) in enumerate(step.observations[0].tolist()):
            if left or right:
                remembered[agent] = LEFT if left else RIGHT
            choices.append(remembered[agent] if at_doors else FORWARD)
        return choose(choices)

    assert play(make("Memory"), act, 70) == [1.0] * (16 * 10)


@pytest.mark.parametrize(("at_start", "at_doors"), list(itertools.product([FORWARD, BACK], [LEFT, RIGHT])))
def test_who_does_not_scores_nothing_on_average(at_start: int, at_doors: int) -> None:
    """Whatever a memoryless policy does on seeing the sign for left, at the doors there is no sign."""
    simulation = make("Memory", agents=500)

    def act(step: SimulationStep) -> SimulatedActions:
        return choose(
            [
                at_doors if doors else at_start if left and not place else FORWARD
                for left, _, place, doors in step.observations[0].tolist()
            ]
        )

    assert np.mean(play(simulation, act, 60)) == pytest.approx(0.0, abs=0.1)


def test_random_actions_score_nothing_on_average() -> None:
    simulation = make("Memory", agents=200)
    assert np.mean(play(simulation, random_policy(simulation), 500)) == pytest.approx(0.0, abs=0.05)


def test_the_sign_is_shown_at_two_decisions_and_doors_open_only_at_the_end() -> None:
    simulation = make("Memory", agents=1, length=3)
    rows = [simulation.reset().observations[0][0].tolist()]
    for choice in (LEFT, BACK, FORWARD, FORWARD, FORWARD, BACK, FORWARD):
        step = simulation.step(choose([choice]))
        assert not len(step.ended)
        rows.append(step.observations[0][0].tolist())
    assert [sum(row[:2]) for row in rows] == [1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]
    assert [row[2] for row in rows] == pytest.approx([0, 0, 0, 1 / 3, 2 / 3, 1, 2 / 3, 1])
    assert [row[3] for row in rows] == [0, 0, 0, 0, 0, 1, 0, 1]
    sign = LEFT if rows[0][0] else RIGHT
    assert simulation.step(choose([LEFT + RIGHT - sign])).ended_reward.tolist() == [-1.0]


def test_it_is_interrupted_and_its_length_is_checked() -> None:
    simulation = make("Memory", agents=1, length=2)
    simulation.reset()
    for number in range(1, 17):
        step = simulation.step(choose([BACK]))
        assert step.interrupted.tolist() == [True] * (number == 16)
    with pytest.raises(ValueError, match="--length must be at least 2"):
        make("Memory", length=1)
