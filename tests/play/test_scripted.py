"""Written policies of built-in simulations, by what they score."""

from __future__ import annotations

import numpy as np
import pytest

from tests.sim.scripts import make, play
from trajtrainer.play.scripted import heuristic_policy
from trajtrainer.sim.simulation import SimulatedActions, SimulationStep


@pytest.mark.parametrize(
    ("task", "agents", "steps", "worst"),
    [
        ("3DBall", 10, 1001, 99.9),  # It never drops the ball.
        ("GridWorld", 20, 40, 0.9),  # It takes the shortest way, and never to the wrong goal.
        ("Basic", 1, 60, 0.9),
    ],
)
def test_a_heuristic_solves_its_task(task: str, agents: int, steps: int, worst: float) -> None:
    simulation = make(task, agents=agents)
    policy = heuristic_policy(task, simulation.spec)
    choices = sum(simulation.spec.action_spec.discrete_branches)

    def act(step: SimulationStep) -> SimulatedActions:
        count = len(step.observations[0])
        mask = np.zeros((count, choices), np.bool_) if step.mask is None else step.mask
        actions = policy.act(step.observations, mask, np.zeros((count, 0), np.float32))
        return SimulatedActions(actions.env_continuous, actions.discrete)

    scores = play(simulation, act, steps)
    assert len(scores) >= agents
    assert min(scores) > worst
