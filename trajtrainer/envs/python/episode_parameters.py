"""Environment parameters that are sampled for each episode."""

from __future__ import annotations

import numpy as np

from trajtrainer.core.seeds import derived_seeds
from trajtrainer.envs.protocol import Parameters
from trajtrainer.envs.sim import simulation
from trajtrainer.settings import environment as samplers


class EpisodeParameters:
    """The current samplers of one environment copy, each with its own random generator.

    Every lesson change sends all samplers, so setting a sampler again unchanged does not restart its sequence.
    """

    def __init__(self) -> None:
        self._samplers: dict[str, samplers.Sampler] = {}
        self._sources: dict[str, simulation.ParameterSource] = {}
        self._seed = 0

    def set(self, parameters: Parameters) -> None:
        """Set samplers; they apply from the next episode on."""
        for key, sampler in parameters.items():
            if self._samplers.get(key) != sampler:
                self._samplers[key] = sampler
                self._sources.pop(key, None)

    def draw(self, seed: int | None) -> dict[str, float]:
        """Draw a value of each parameter for one episode.

        Args:
            seed: the seed of the environment's episode. It also reseeds the samplers, whose random numbers still differ
                from those of the environment. None continues their sequences.
        """
        if seed is not None:
            self._seed = seed
            self._sources = {}
        for key in self._samplers.keys() - self._sources.keys():
            self._sources[key] = self._source(key)
        return {key: float(self._sources[key].draw(1)[0]) for key in self._samplers}

    def _source(self, key: str) -> simulation.ParameterSource:
        sampler = self._samplers[key]
        generator = np.random.default_rng(derived_seeds(sampler.seed, f"parameter {key} {self._seed}")[0])
        match sampler:
            case samplers.ConstantSettings(value=value):
                return simulation.Constant(value)
            case samplers.UniformSettings(min_value=low, max_value=high):
                return simulation.Uniform(generator, low, high)
            case samplers.GaussianSettings(mean=mean, st_dev=deviation):
                return simulation.Gaussian(generator, mean, deviation)
            case samplers.MultiRangeUniformSettings(intervals=intervals):
                return simulation.MultiRange(generator, [bound for interval in intervals for bound in interval])
