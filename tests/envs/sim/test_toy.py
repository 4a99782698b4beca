"""Toy against the rules of ML-Agents' tests (docs/explanation/mlagents-behavior.md#built-in-tasks)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.envs.sim.scripts import Policy, make, play, random_policy
from trajtrainer.core.spec import ObservationType
from trajtrainer.envs.sim.simulation import SimulatedActions, SimulationStep


def to_the_goal(continuous: int, discrete: int, sign: float = 1.0) -> Policy:
    def act(step: SimulationStep) -> SimulatedActions:
        goal = sign * step.observations[0].reshape(len(step.reward), -1)[:, 0]
        up = np.repeat(goal[:, None], continuous, axis=1).astype(np.float32)
        return SimulatedActions(up, np.repeat(goal[:, None] > 0, discrete, axis=1).astype(np.int32))

    return act


@pytest.mark.parametrize(("continuous", "discrete"), [(1, 0), (0, 1), (2, 0), (0, 2), (1, 2)])
def test_going_straight_to_either_side(continuous: int, discrete: int) -> None:
    sizes: dict[str, Any] = {"continuous": continuous, "discrete": discrete, "agents": 3}
    for sign, score in ((1.0, 1.06 - 0.04), (-1.0, -1.06 - 0.04)):
        scores = play(make("Toy", **sizes), to_the_goal(continuous, discrete, sign), 10)
        assert scores == pytest.approx([score] * 6)


def test_every_coordinate_counts_and_must_arrive() -> None:
    simulation = make("Toy", continuous=2)
    goal = float(simulation.reset().observations[0][0, 0])
    split = SimulatedActions(np.array([[goal, -0.1 * goal]], dtype=np.float32), np.zeros((1, 0), dtype=np.int32))
    for _ in range(9):
        assert not len(simulation.step(split).ended)
    step = simulation.step(split)
    assert step.ended_reward.tolist() == pytest.approx([0.0])
    assert step.interrupted.tolist() == [False]


def test_every_kind_of_observation_is_filled_with_the_goal() -> None:
    simulation = make(
        "Toy", agents=6, vectors=2, vector_size=4, pictures=1, picture_shape=(3, 20, 21), lists=1, goal_sensor=1
    )
    shapes = [tuple(sensor.shape) for sensor in simulation.spec.observation_specs]
    assert shapes == [(4,), (4,), (3, 20, 21), (10, 5)]
    kinds = [sensor.observation_type for sensor in simulation.spec.observation_specs]
    assert kinds == [ObservationType.DEFAULT, ObservationType.GOAL_SIGNAL] + [ObservationType.DEFAULT] * 2
    observations = simulation.reset().observations
    goals = observations[0][:, 0]
    assert set(goals.tolist()) == {1.0, -1.0}
    for column in observations:
        assert (column.reshape(6, -1) == goals[:, None]).all()


def test_with_memory_the_goal_is_shown_at_three_decisions() -> None:
    simulation = make("Toy", memory=True, step_size=0.05)
    still = SimulatedActions(np.zeros((1, 1), dtype=np.float32), np.zeros((1, 0), dtype=np.int32))
    seen = [abs(float(simulation.reset().observations[0][0, 0]))]
    seen += [abs(float(simulation.step(still).observations[0][0, 0])) for _ in range(4)]
    assert seen == [1.0, 1.0, 1.0, 0.0, 0.0]


def test_random_actions_score_little() -> None:
    simulation = make("Toy", agents=20)
    assert np.mean(play(simulation, random_policy(simulation), 600)) < 0.2


@pytest.mark.parametrize("options", [{"vectors": 0}, {"goal_sensor": 1}, {"continuous": 0}, {"step_size": 0.0}])
def test_options_that_do_not_fit_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="Toy needs a sensor"):
        make("Toy", **options)
    with pytest.raises(ValueError, match="--picture-shape must be"):
        make("Toy", picture_shape=(3, 4))
