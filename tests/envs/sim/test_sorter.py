"""Sorter: the order of tiles, what the list shows, and the parameter for the number of tiles."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from tests.envs.sim.scripts import make, play, random_policy
from trajtrainer.envs.sim.simulation import (
    Constant,
    EnvironmentParameters,
    SimulatedActions,
    SimulationStep,
    Uniform,
    seeded_generator,
)


def tiles(count: float) -> EnvironmentParameters:
    parameters = EnvironmentParameters()
    parameters.set("num_tiles", Constant(count))
    return parameters


def sorting(step: SimulationStep) -> SimulatedActions:
    """Goes to the lowest number that is left and presses there."""
    entities = step.observations[0]
    to_press = (entities[..., 5] == 1.0) & (entities[..., 3] == 0.0)
    lowest = np.where(to_press, entities[..., 0], 9.0).argmin(axis=1)
    rows = np.arange(len(entities))
    way = entities[rows, lowest, 1:3]
    far = np.abs(way) > 0.101  # nearer, no other tile can be the nearest one
    move = np.where(far, np.sign(way) + 1, 1)
    press = ~far.any(axis=1, keepdims=True)
    discrete = np.concatenate((move, press), axis=1).astype(np.int32)
    return SimulatedActions(np.zeros((len(entities), 0), dtype=np.float32), discrete)


@pytest.mark.parametrize(("count", "low"), [(1, 0.97), (2, 1.95), (8, 7.7), (20, 19.2)])
def test_pressing_in_order_scores_a_point_a_tile(count: int, low: float) -> None:
    scores = play(make("Sorter", 1, tiles(count), agents=8), sorting, 500)
    assert len(scores) > 8
    assert low < min(scores) <= max(scores) < count


def test_random_actions_score_little() -> None:
    simulation = make("Sorter")
    assert -0.5 < np.mean(play(simulation, random_policy(simulation), 1500)) < 0.3


def test_the_wrong_tile_ends_the_episode_with_minus_one() -> None:
    simulation = make("Sorter", agents=6)
    step = simulation.reset()
    endings = 0
    for _ in range(80):
        entities = step.observations[0].copy()
        entities[..., 0] = np.where(entities[..., 5] == 1.0, 1.05 - entities[..., 0], 0.0)  # the order upside down
        step = simulation.step(sorting(dataclasses.replace(step, observations=(entities,))))
        assert step.ended_reward.tolist() == pytest.approx([-1.0 - 1 / 400] * len(step.ended))
        assert not step.interrupted.any()
        endings += len(step.ended)
    assert endings >= 6


def test_the_list_shows_the_tiles_and_zeros_behind_them() -> None:
    parameters = EnvironmentParameters()
    parameters.set("num_tiles", Uniform(seeded_generator(4), 0.5, 20.5))
    simulation = make("Sorter", 2, parameters, agents=200)
    entities, vector = simulation.reset().observations
    counts = entities[..., 5].sum(axis=1).astype(int)
    assert set(counts.tolist()) == set(range(1, 21))
    for row, count in zip(entities, counts.tolist(), strict=True):
        assert not row[count:].any()
        numbers = np.round(20 * row[:count, 0]).astype(int).tolist()
        assert len(set(numbers)) == count
        assert 1 <= min(numbers) <= max(numbers) <= 20
        np.testing.assert_allclose(np.hypot(row[:count, 1], row[:count, 2]), 1.0, rtol=1e-5)
    assert not vector.any(), "in the middle, nothing pressed, nothing in reach"


def test_pressing_where_nothing_is_does_nothing_and_the_episode_is_interrupted() -> None:
    simulation = make("Sorter", agents=1)
    simulation.reset()
    press = SimulatedActions(np.zeros((1, 0), dtype=np.float32), np.array([[1, 1, 1]], dtype=np.int32))
    for _ in range(399):
        step = simulation.step(press)
        assert step.reward.tolist() == pytest.approx([-1 / 400])
    assert simulation.step(press).interrupted.tolist() == [True]
