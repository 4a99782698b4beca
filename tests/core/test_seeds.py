"""Streams of random numbers."""

from __future__ import annotations

import random

import numpy as np

from trajtrainer.core.seeds import derived_seeds, environment_seed, seed_global_generators
from trajtrainer.envs.python.episode_parameters import EpisodeParameters
from trajtrainer.envs.sim.simulation import seeded_generator
from trajtrainer.settings.environment import UniformSettings

SEED = 7
# The names under which a run of the behavior Ball derives seeds, as docs/explanation/seeds.md lists them.
NAMES = [
    "Ball",
    "Ball acting",
    "Ball acting 1 0 0",
    "Ball acting 0 1 0",
    "Ball acting 0 0 500",
    "Ball cloning",
    "Ball opponents",
    "Ball?team=1 opponent 0",
    "evaluation",
    "environments 500 0",
    "environments 0 1",
    "global generators",
]


def parameter(name: str, seed_of_episode: int, sampler_seed: int = SEED) -> float:
    parameters = EpisodeParameters()
    parameters.set({name: UniformSettings(seed=sampler_seed)})
    return parameters.draw(seed_of_episode)[name]


def test_no_two_streams_of_a_run_are_equal() -> None:
    seeds = [seed for name in NAMES for seed in derived_seeds(SEED, name)]
    noises = [derived_seeds(SEED, name)[1] ^ 1 for name in ("Ball", "Ball cloning")]
    # On the CPU, torch uses 32 bits of a seed.
    assert len({seed % (1 << 32) for seed in seeds + noises}) == len(seeds + noises)

    copies = [SEED + copy for copy in range(4)]  # two actors of two copies
    resumed = [environment_seed(seed, "environments 500 0") for seed in copies]
    evaluated = [environment_seed(SEED, "evaluation") + episode for episode in range(4)]
    starts = copies + resumed + evaluated
    first = [np.random.default_rng(seed).random() for seed in starts]
    first += [np.random.default_rng(seed).random() for seed in seeds]
    # Behaviors of a simulation. The first one's is that of a Python environment, but a run has only one of the two.
    first += [seeded_generator(SEED, number).random() for number in range(1, 4)]
    first += [seeded_generator(SEED, *name.encode()).random() for name in ("mass", "scale")]  # and its samplers
    first += [parameter(name, start) for name in ("mass", "scale") for start in starts]
    first += [parameter("mass", SEED, SEED + 1)]
    for seed in (SEED, *resumed):
        seed_global_generators(seed)
        first += [np.random.random(), random.random()]
    assert len(set(first)) == len(first)


def test_a_sampler_that_is_set_again_keeps_its_place_until_an_episode_has_a_seed() -> None:
    parameters, once = EpisodeParameters(), EpisodeParameters()
    once.set({"mass": UniformSettings(seed=SEED)})
    expected = [once.draw(1)["mass"], once.draw(None)["mass"], once.draw(None)["mass"]]
    for number, value in enumerate(expected):
        parameters.set({"mass": UniformSettings(seed=SEED)})
        assert parameters.draw(None if number else 1)["mass"] == value
    assert parameters.draw(1)["mass"] == expected[0]


def test_seeds_depend_on_the_seed_and_on_every_character_of_the_name() -> None:
    """JSON of a game may have half of a surrogate pair in a name."""
    names = ["Ball", "Ball 3D", "Größe", "Ball\ud83d", "Ball\ude00", "Ball\\ud83d", "Ball\U0001f600"]
    seeds = [each for name in names for seed in (0, 1) for each in derived_seeds(seed, name)]
    assert len(set(seeds)) == 4 * len(names)
    assert derived_seeds(5, "Ball") == derived_seeds(5, "Ball")
