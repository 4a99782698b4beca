"""Chase against its rules."""

from __future__ import annotations

import numpy as np
import pytest

from tests.envs.sim.scripts import make, play
from trajtrainer.envs.sim.simulation import SimulatedActions, SimulationStep
from trajtrainer.envs.sim.walks import MAX_DECISIONS, REACH, STEP


def straight(step: SimulationStep) -> SimulatedActions:
    seen = step.observations[0]
    return SimulatedActions(np.clip((seen[:, 2:] - seen[:, :2]) / STEP, -1, 1), np.zeros((len(seen), 0), np.int32))


def test_going_straight_earns_the_way_and_the_target() -> None:
    scores = play(make("Chase", agents=8), straight, 400)
    assert min(scores) > 1 - REACH
    assert np.mean(scores) == pytest.approx(1.98, abs=0.05)


def test_standing_still_is_interrupted() -> None:
    simulation = make("Chase", agents=2)
    step = simulation.reset()
    nothing = SimulatedActions(np.zeros((2, 2), np.float32), np.zeros((2, 0), np.int32))
    for _ in range(MAX_DECISIONS):
        assert not step.reward.any()
        step = simulation.step(nothing)
    assert step.interrupted.tolist() == [True, True]
