"""Samplers of environment parameters."""

from __future__ import annotations

import numpy as np
import pytest

from trajtrainer.envs.sim.simulation import (
    Constant,
    EnvironmentParameters,
    Gaussian,
    MultiRange,
    ParameterSource,
    Uniform,
    seeded_generator,
)

MANY = 20_000


def test_a_parameter_that_nobody_set_has_its_default() -> None:
    assert EnvironmentParameters().draw("mass", 1.5, 3).tolist() == [1.5] * 3


def test_the_newest_source_counts() -> None:
    parameters = EnvironmentParameters()
    parameters.set("mass", Constant(2.0))
    parameters.set("mass", Constant(3.0))
    assert parameters.draw("mass", 1.0, 2).tolist() == [3.0, 3.0]


@pytest.mark.parametrize(
    ("source", "mean", "deviation", "low", "high"),
    [
        (Uniform(seeded_generator(3), -2.0, 4.0), 1.0, 6.0 / np.sqrt(12.0), -2.0, 4.0),
        (Gaussian(seeded_generator(3), 5.0, 0.5), 5.0, 0.5, 0.0, 10.0),
    ],
)
def test_samplers_have_their_distribution(
    source: ParameterSource, mean: float, deviation: float, low: float, high: float
) -> None:
    drawn = source.draw(MANY)
    assert drawn.mean() == pytest.approx(mean, abs=0.05)
    assert drawn.std() == pytest.approx(deviation, rel=0.03)
    assert low <= drawn.min() <= drawn.max() < high


def test_several_intervals_are_chosen_by_their_width() -> None:
    drawn = MultiRange(seeded_generator(1), [0.0, 1.0, 10.0, 13.0]).draw(MANY)
    first = drawn < 5.0
    assert first.mean() == pytest.approx(0.25, abs=0.02)
    assert 0.0 <= drawn[first].min() <= drawn[first].max() < 1.0
    assert 10.0 <= drawn[~first].min() <= drawn[~first].max() < 13.0
    assert drawn[~first].mean() == pytest.approx(11.5, abs=0.05)


@pytest.mark.parametrize("seed", [0, 5, -1])
def test_a_sampler_draws_the_same_for_its_seed_in_one_call_or_in_many(seed: int) -> None:
    def sources() -> list[ParameterSource]:
        return [
            Uniform(seeded_generator(seed), 0.0, 1.0),
            Gaussian(seeded_generator(seed), 0.0, 1.0),
            MultiRange(seeded_generator(seed), [0.0, 1.0, 2.0, 5.0]),
        ]

    for at_once, one_by_one in zip(sources(), sources(), strict=True):
        assert at_once.draw(5).tolist() == [one_by_one.draw(1)[0] for _ in range(5)]
    assert (
        Uniform(seeded_generator(seed), 0.0, 1.0).draw(3).tolist()
        != Uniform(seeded_generator(seed + 1), 0.0, 1.0).draw(3).tolist()
    )
