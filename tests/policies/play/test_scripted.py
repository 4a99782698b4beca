"""Written policies of built-in simulations, by what they score."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.envs.sim.scripts import make, play
from trajtrainer.envs.sim.simulation import SimulatedActions, SimulationStep
from trajtrainer.policies.play.scripted import heuristic_policy


@pytest.mark.parametrize(
    ("task", "options", "steps", "worst"),
    [
        ("3DBall", {"agents": 10}, 1001, 99.9),  # It never drops the ball.
        ("GridWorld", {"agents": 20}, 40, 0.9),  # It takes the shortest way, and never to the wrong goal.
        ("GridWorld", {"agents": 20, "camera": (20, 20)}, 40, 0.9),
        ("Basic", {"agents": 1}, 60, 0.9),
    ],
)
def test_a_heuristic_solves_its_task(task: str, options: dict[str, Any], steps: int, worst: float) -> None:
    simulation = make(task, **options)
    policy = heuristic_policy(task, simulation.spec)
    choices = sum(simulation.spec.action_spec.discrete_branches)

    def act(step: SimulationStep) -> SimulatedActions:
        count = len(step.observations[0])
        mask = np.zeros((count, choices), np.bool_) if step.mask is None else step.mask
        actions = policy.act(step.observations, mask, np.zeros((count, 0), np.float32))
        return SimulatedActions(actions.env_continuous, actions.discrete)

    scores = play(simulation, act, steps)
    assert len(scores) >= options["agents"]
    assert min(scores) > worst
