"""Environment parameters of a player: the trainer sets values and samplers, the player draws.

See docs/mlagents-behavior.md#side-channels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

FloatColumn = NDArray[np.float64]


class Source(Protocol):
    """The source of one parameter's values."""

    def draw(self, count: int) -> FloatColumn:
        """Return ``count`` values, f64 [count]."""


class Constant:
    """The same value at every draw."""

    def __init__(self, value: float) -> None:
        self.value = value

    def draw(self, count: int) -> FloatColumn:
        """Return ``count`` times the value, f64 [count]."""
        return np.full(count, self.value)


class Uniform:
    """Uniform within [low, high)."""

    def __init__(self, seed: int, low: float, high: float) -> None:
        self._generator = seeded_generator(seed)
        self._low = low
        self._high = high

    def draw(self, count: int) -> FloatColumn:
        """Return ``count`` values, f64 [count]."""
        return self._low + (self._high - self._low) * self._generator.random(count)


class Gaussian:
    """Normal with the given mean and standard deviation."""

    def __init__(self, seed: int, mean: float, standard_deviation: float) -> None:
        self._generator = seeded_generator(seed)
        self._mean = mean
        self._standard_deviation = standard_deviation

    def draw(self, count: int) -> FloatColumn:
        """Return ``count`` values, f64 [count]."""
        return self._mean + self._standard_deviation * self._generator.standard_normal(count)


class MultiRange:
    """Uniform over several intervals, each chosen in proportion to its width.

    Args:
        seed: of the sampler's own generator.
        bounds: low and high of each interval, one after the other.
    """

    def __init__(self, seed: int, bounds: Sequence[float]) -> None:
        self._generator = seeded_generator(seed)
        self._low = np.asarray(bounds[0::2], dtype=np.float64)
        widths = np.asarray(bounds[1::2], dtype=np.float64) - self._low
        self._ends = np.cumsum(widths)
        self._starts = self._ends - widths

    def draw(self, count: int) -> FloatColumn:
        """Return ``count`` values, f64 [count]."""
        place = self._generator.random(count) * self._ends[-1]
        interval = np.minimum(np.searchsorted(self._ends, place, side="right"), len(self._ends) - 1)
        drawn: FloatColumn = self._low[interval] + (place - self._starts[interval])
        return drawn


def seeded_generator(seed: int, *stream: int) -> np.random.Generator:
    """Return a generator of its own for ``seed`` (an int32 of the wire, possibly negative) and a stream number."""
    return np.random.default_rng((seed & 0xFFFFFFFF, *stream))


class EnvironmentParameters:
    """The current source of every parameter that the trainer has set, shared by all simulations of a player."""

    def __init__(self) -> None:
        self._sources: dict[str, Source] = {}

    def set(self, key: str, source: Source) -> None:
        """Replace the source of ``key``; agents see it when their next episode begins."""
        self._sources[key] = source

    def draw(self, key: str, default: float, count: int) -> FloatColumn:
        """Return values for ``count`` agents in their order, or ``default`` for a parameter that nobody has set."""
        source = self._sources.get(key)
        return np.full(count, default) if source is None else source.draw(count)
