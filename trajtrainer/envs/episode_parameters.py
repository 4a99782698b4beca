"""Environment parameters for environments without samplers of their own: drawn here, for each episode."""

from __future__ import annotations

from trajtrainer.envs.protocol import Parameters
from trajtrainer.settings.environment import (
    ConstantSettings,
    GaussianSettings,
    MultiRangeUniformSettings,
    Sampler,
    UniformSettings,
)
from trajtrainer.sim.parameters import Constant, Gaussian, MultiRange, Source, Uniform


class EpisodeParameters:
    """The current samplers, each with its own generator.

    A sampler that is set again unchanged goes on where it is, since every lesson change sends all of them.
    """

    def __init__(self) -> None:
        self._samplers: dict[str, Sampler] = {}
        self._sources: dict[str, Source] = {}

    def set(self, parameters: Parameters) -> None:
        """Take new samplers; they count from the next episode on."""
        for key, sampler in parameters.items():
            if self._samplers.get(key) != sampler:
                self._samplers[key] = sampler
                self._sources[key] = _source(sampler)

    def draw(self) -> dict[str, float]:
        """Return a value of each parameter, for one episode."""
        return {key: float(source.draw(1)[0]) for key, source in self._sources.items()}


def _source(sampler: Sampler) -> Source:
    match sampler:
        case ConstantSettings(value=value):
            return Constant(value)
        case UniformSettings(seed=seed, min_value=low, max_value=high):
            return Uniform(seed, low, high)
        case GaussianSettings(seed=seed, mean=mean, st_dev=deviation):
            return Gaussian(seed, mean, deviation)
        case MultiRangeUniformSettings(seed=seed, intervals=intervals):
            return MultiRange(seed, [bound for interval in intervals for bound in interval])
