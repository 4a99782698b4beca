"""Statistics of a behaviour between two summaries, and the interface of those who write them."""

from __future__ import annotations

import math
import threading
from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trajtrainer.core.plugins import Reference, Registry
from trajtrainer.core.steps import Aggregation


@dataclass(frozen=True, slots=True)
class StatsSummary:
    """All values of one tag since the last summary, in the order they came.

    Attributes:
        values: f64 [number of values].
        aggregation: which one number stands for them (``aggregated``).
    """

    values: Sequence[float] | NDArray[np.float64]
    aggregation: Aggregation = Aggregation.AVERAGE

    @property
    def aggregated(self) -> float:
        """The sum for SUM and the mean otherwise."""
        return self.sum if self.aggregation is Aggregation.SUM else self.mean

    @property
    def mean(self) -> float:
        """NaN without values."""
        return float(np.mean(self.values)) if len(self.values) else float("nan")

    @property
    def std(self) -> float:
        """Population standard deviation, NaN without values."""
        return float(np.std(self.values)) if len(self.values) else float("nan")

    @property
    def sum(self) -> float:
        """The sum of the values."""
        return float(np.sum(self.values))


@dataclass(frozen=True, slots=True)
class Distribution:
    """How some values are distributed, in five numbers. All but ``number`` are NaN where there are none.

    >>> Distribution.of([1.0, 2.0, 6.0]).joined(Distribution.of([3.0]))
    Distribution(number=4, mean=3.0, std=1.8708286933869707, min=1.0, max=6.0)

    Attributes:
        number: how many values there are.
        mean: their mean.
        std: their population standard deviation.
        min: the smallest.
        max: the largest.
    """

    number: int = 0
    mean: float = math.nan
    std: float = math.nan
    min: float = math.nan
    max: float = math.nan

    @classmethod
    def of(cls, values: Sequence[float] | NDArray[np.float64]) -> Distribution:
        """Return that of ``values``."""
        column = np.asarray(values, np.float64)
        if not len(column):
            return cls()
        return cls(
            len(column), *(float(number) for number in (column.mean(), column.std(), column.min(), column.max()))
        )

    def shifted(self, by: float) -> Distribution:
        """Return that of the values, each of them ``by`` greater."""
        return Distribution(self.number, self.mean + by, self.std, self.min + by, self.max + by)

    def joined(self, other: Distribution) -> Distribution:
        """Return that of the values of both."""
        if not (self.number and other.number):
            return self if self.number else other
        number = self.number + other.number
        apart = other.mean - self.mean
        mean = self.mean + apart * (other.number / number)
        # Chan, Golub and LeVeque 1983: the sums of squares within both, and what lies between their means.
        within = self.number * self.std**2 + other.number * other.std**2
        square = (within + apart**2 * (self.number * other.number / number)) / number
        return Distribution(number, mean, math.sqrt(square), min(self.min, other.min), max(self.max, other.max))


class StatsWriter(ABC):
    """Receives every summary. Users subclass this.

    With ``threaded: true`` the methods are called from the trainers' threads.
    """

    @abstractmethod
    def write_stats(self, category: str, values: Mapping[str, StatsSummary], step: int) -> None:
        """Write one summary of behaviour ``category``, labelled with ``step``."""

    def add_hyperparameters(self, category: str, text: str) -> None:  # noqa: B027
        """Receive the behaviour's settings as an indented text tree, once, at the start."""

    def add_settings(self, category: str, settings: Mapping[str, Any]) -> None:  # noqa: B027
        """Receive the same as the YAML has it, nested, once, at the start."""

    def resume(self, category: str, step: int) -> None:  # noqa: B027
        """Learn, before all else, that behaviour ``category`` goes on from ``step``.

        What was written of later steps is of a run that was killed before it saved them, and will come again.
        """

    def close(self) -> None:  # noqa: B027
        """Flush what is pending. Called once."""


@dataclass(frozen=True, slots=True)
class StatsWriterRow:
    """A receiver of every summary.

    Attributes:
        create: called with the run's ``RunSettings``; returns a ``StatsWriter`` or a list of them.
    """

    create: Reference


STATS_WRITERS: Registry[StatsWriterRow] = Registry("statistics writer", "trajtrainer.stats_writers", StatsWriterRow, {})
"""Those of installed packages; every run has all of them beside its own."""


def _no_values() -> array[float]:
    return array("d")


@dataclass(slots=True)
class _Values:
    aggregation: Aggregation
    values: array[float] = field(default_factory=_no_values)  # 8 bytes per value
    num_distributed: int = 0  # so many of them are in the distributions already


_NOTHING = Distribution()


class StatsReporter:
    """Collects the values of one behaviour and hands them to the writers. Safe to use from several threads."""

    def __init__(self, category: str, writers: Iterable[StatsWriter]) -> None:
        self.category = category
        self._writers = list(writers)
        self._sources: list[Callable[[], Mapping[str, float]]] = []
        self._values: dict[str, _Values] = {}
        self._distributions: dict[str, Distribution] = {}
        self._lock = threading.Lock()

    def add(self, tag: str, value: float, aggregation: Aggregation = Aggregation.AVERAGE) -> None:
        """Add one value. The newest ``aggregation`` of a tag counts; MOST_RECENT forgets the earlier values."""
        with self._lock:
            self._entry(tag, aggregation).append(value)

    def add_many(
        self,
        tag: str,
        values: Iterable[float] | NDArray[np.floating],
        aggregation: Aggregation = Aggregation.AVERAGE,
    ) -> None:
        """Add several values; an array (any shape) is copied without a Python object per number."""
        with self._lock:
            entry = self._entry(tag, aggregation)
            if isinstance(values, np.ndarray):
                entry.frombytes(values.astype(np.float64).tobytes())
            else:
                entry.extend(values)
            if aggregation is Aggregation.MOST_RECENT:
                del entry[:-1]

    def set(self, tag: str, value: float) -> None:
        """Keep only the newest value."""
        self.add(tag, value, Aggregation.MOST_RECENT)

    def add_source(self, source: Callable[[], Mapping[str, float]]) -> None:
        """Ask ``source`` for tag -> value at every summary; what changes slowly costs nothing in between."""
        self._sources.append(source)

    def resume(self, step: int) -> None:
        """Tell the writers that the behaviour goes on from ``step``."""
        for writer in self._writers:
            writer.resume(self.category, step)

    def add_hyperparameters(self, text: str) -> None:
        """Hand the writers the behaviour's settings as text."""
        for writer in self._writers:
            writer.add_hyperparameters(self.category, text)

    def add_settings(self, settings: Mapping[str, Any]) -> None:
        """Hand the writers the behaviour's settings as they are."""
        for writer in self._writers:
            writer.add_settings(self.category, settings)

    def summaries(self) -> dict[str, StatsSummary]:
        """Return tag -> all values since the last call, those of the sources included."""
        for source in self._sources:
            for tag, value in source().items():
                self.set(tag, value)
        with self._lock:
            self._distribute()
            values, self._values = self._values, {}
        return {
            tag: StatsSummary(np.asarray(entry.values, np.float64), entry.aggregation) for tag, entry in values.items()
        }

    def write(self, step: int) -> None:
        """Hand the summaries to the writers under the step ``step``."""
        summaries = self.summaries()
        for writer in self._writers:
            writer.write_stats(self.category, summaries, step)

    def distributions(self) -> dict[str, Distribution]:
        """Return tag -> distribution of all values since the last call, whatever summaries were written meanwhile.

        Of what is set or comes from a source, the newest value of each summary counts.
        """
        with self._lock:
            self._distribute()
            distributions, self._distributions = self._distributions, {}
        return distributions

    def _distribute(self) -> None:
        for tag, entry in self._values.items():
            fresh = entry.values[entry.num_distributed :]
            if fresh:
                entry.num_distributed = len(entry.values)
                known = self._distributions.get(tag, _NOTHING)
                self._distributions[tag] = known.joined(Distribution.of(fresh))

    def _entry(self, tag: str, aggregation: Aggregation) -> array[float]:
        entry = self._values.get(tag)
        if entry is None or aggregation is Aggregation.MOST_RECENT:
            entry = self._values[tag] = _Values(aggregation)
        entry.aggregation = aggregation
        return entry.values
