"""Statistics of a behavior between two summaries, and the interface of statistics writers."""

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

IS_TRAINING = "Is Training"
HIDDEN_TAGS = frozenset({IS_TRAINING, "Step"})
"""Tags that console writers need and other writers do not show."""


@dataclass(frozen=True, slots=True)
class StatsSummary:
    """All values of one tag since the last summary, in the order they arrived.

    Attributes:
        values: f64 [number of values].
        aggregation: how ``aggregated`` combines the values into one number.
    """

    values: Sequence[float] | NDArray[np.float64]
    aggregation: Aggregation = Aggregation.AVERAGE

    @property
    def aggregated(self) -> float:
        """The sum of the values for SUM, otherwise their mean."""
        return self.sum if self.aggregation is Aggregation.SUM else self.mean

    @property
    def mean(self) -> float:
        """The mean of the values; NaN if there are none."""
        return float(np.mean(self.values)) if len(self.values) else float("nan")

    @property
    def std(self) -> float:
        """The population standard deviation of the values; NaN if there are none."""
        return float(np.std(self.values)) if len(self.values) else float("nan")

    @property
    def sum(self) -> float:
        """The sum of all values."""
        return float(np.sum(self.values))


@dataclass(frozen=True, slots=True)
class Distribution:
    """Summary statistics of a set of values. If it is empty, all but ``number`` are NaN.

    >>> Distribution.of([1.0, 2.0, 6.0]).joined(Distribution.of([3.0]))
    Distribution(number=4, mean=3.0, std=1.8708286933869707, min=1.0, max=6.0)

    Attributes:
        number: number of values.
        mean: mean of the values.
        std: population standard deviation.
        min: smallest value.
        max: largest value.
    """

    number: int = 0
    mean: float = math.nan
    std: float = math.nan
    min: float = math.nan
    max: float = math.nan

    @classmethod
    def of(cls, values: Sequence[float] | NDArray[np.float64]) -> Distribution:
        column = np.asarray(values, np.float64)
        if not len(column):
            return cls()
        return cls(
            len(column), *(float(number) for number in (column.mean(), column.std(), column.min(), column.max()))
        )

    def shifted(self, by: float) -> Distribution:
        """Return the distribution of the values after adding ``by`` to each."""
        return Distribution(self.number, self.mean + by, self.std, self.min + by, self.max + by)

    def joined(self, other: Distribution) -> Distribution:
        """Return the distribution of the values of both distributions together."""
        if not (self.number and other.number):
            return self if self.number else other
        number = self.number + other.number
        apart = other.mean - self.mean
        mean = self.mean + apart * (other.number / number)
        # Chan, Golub and LeVeque 1983: the sums of squares within both parts, plus the one between their means.
        within = self.number * self.std**2 + other.number * other.std**2
        square = (within + apart**2 * (self.number * other.number / number)) / number
        return Distribution(number, mean, math.sqrt(square), min(self.min, other.min), max(self.max, other.max))


class StatsWriter(ABC):
    """Base class of statistics writers, which receive every summary.

    With ``threaded: true``, the methods are called from the trainers' threads.

    Attributes:
        name: name of the writer in messages; empty to use the name of its row.
        missing: explanation of why some of the run's data did not reach the writer's destination; None if all of it
            did. If it is set, the run ends with exit code 1.
    """

    name: str = ""
    missing: str | None = None

    def follow(self, state: Callable[[], str]) -> None:  # noqa: B027
        """Receive a function that returns the current state of the run. Called once, before all other methods.

        The function can be called from any thread. The states are ``running``, ``stopping`` (the run was asked to end)
        and finally ``finished`` (all behaviors are done), ``stopped`` or ``failed``.
        """

    @abstractmethod
    def write_stats(self, category: str, values: Mapping[str, StatsSummary], step: int) -> None:
        """Write one summary of behavior ``category``, labeled with ``step``."""

    def add_hyperparameters(self, category: str, text: str) -> None:  # noqa: B027
        """Receive the behavior's settings as an indented text tree. Called once, at the start."""

    def add_settings(self, category: str, settings: Mapping[str, Any]) -> None:  # noqa: B027
        """Receive the behavior's settings, nested as in the YAML file. Called once, at the start."""

    def resume(self, category: str, step: int) -> None:  # noqa: B027
        """Prepare for behavior ``category`` to continue from ``step``. Called before any other data of the behavior.

        Data already written for later steps is from a run that was killed before it saved a checkpoint of those steps.
        They are trained and reported again.
        """

    def close(self) -> None:  # noqa: B027
        """Flush all data. Called once, at the end."""


@dataclass(frozen=True, slots=True)
class StatsWriterRow:
    """A kind of statistics writer.

    Attributes:
        create: called with the run's ``RunSettings``; returns a ``StatsWriter`` or a list of them.
        check: called with the run's ``RunSettings`` before anything starts; raises ``SettingsError`` if the writers
            cannot work.
        section: section of the settings that enables the writers; None to use them in all runs.
        guarded: if a writer raises an exception, drop it with a message and continue the run. Otherwise, the exception
            ends the run.
    """

    create: Reference
    check: Reference | None = None
    section: str | None = None
    guarded: bool = True


STATS_WRITERS: Registry[StatsWriterRow] = Registry(
    "statistics writer",
    "trajtrainer.stats_writers",
    StatsWriterRow,
    {
        "tensorboard": StatsWriterRow("trajtrainer.run.writers:tensorboard_writers", guarded=False),
        "tracking": StatsWriterRow(
            "trajtrainer.plugins.tracking.writer:tracking_writers",
            check="trajtrainer.plugins.tracking.writer:check_tracking",
            section="tracking",
            guarded=False,
        ),
        "metrics": StatsWriterRow(
            "trajtrainer.plugins.metrics.publishing:metrics_writer",
            check="trajtrainer.plugins.metrics.publishing:check_monitoring",
            section="monitoring",
            guarded=False,
        ),
        "mlagents": StatsWriterRow("trajtrainer.run.mlagents_writers:mlagents_writers"),
    },
)
"""The statistics writers. Every run also uses the writers of installed packages."""


@dataclass(slots=True)
class _Values:
    aggregation: Aggregation
    values: array[float] = field(default_factory=lambda: array("d"))  # 8 bytes per value
    num_distributed: int = 0  # number of values that are already included in the distributions


class StatsReporter:
    """Collects the values of one behavior and passes them to the writers. Thread-safe."""

    def __init__(self, category: str, writers: Iterable[StatsWriter]) -> None:
        self.category = category
        self._writers = list(writers)
        self._sources: list[Callable[[], Mapping[str, float]]] = []
        self._values: dict[str, _Values] = {}
        self._distributions: dict[str, Distribution] = {}
        self._lock = threading.Lock()

    def add(self, tag: str, value: float, aggregation: Aggregation = Aggregation.AVERAGE) -> None:
        """Add one value. A tag uses its newest ``aggregation``; MOST_RECENT drops earlier values."""
        with self._lock:
            self._entry(tag, aggregation).append(value)

    def add_many(
        self,
        tag: str,
        values: Iterable[float] | NDArray[np.floating],
        aggregation: Aggregation = Aggregation.AVERAGE,
    ) -> None:
        """Add several values. An array of any shape is copied without creating a Python object for each number."""
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
        """Call ``source`` at every summary to get more values (tag -> value). It costs nothing between summaries."""
        self._sources.append(source)

    def resume(self, step: int) -> None:
        """Tell the writers that the behavior continues from ``step``."""
        for writer in self._writers:
            writer.resume(self.category, step)

    def add_hyperparameters(self, text: str) -> None:
        for writer in self._writers:
            writer.add_hyperparameters(self.category, text)

    def add_settings(self, settings: Mapping[str, Any]) -> None:
        for writer in self._writers:
            writer.add_settings(self.category, settings)

    def summaries(self) -> dict[str, StatsSummary]:
        """Return all values of each tag since the last call, including those of the sources."""
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
        summaries = self.summaries()
        for writer in self._writers:
            writer.write_stats(self.category, summaries, step)

    def distributions(self) -> dict[str, Distribution]:
        """Return the distribution of each tag's values since the last call, across all summaries written since then.

        For tags that are set or come from a source, only the newest value of each summary is included.
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
                known = self._distributions.get(tag, Distribution())
                self._distributions[tag] = known.joined(Distribution.of(fresh))

    def _entry(self, tag: str, aggregation: Aggregation) -> array[float]:
        entry = self._values.get(tag)
        if entry is None or aggregation is Aggregation.MOST_RECENT:
            entry = self._values[tag] = _Values(aggregation)
        entry.aggregation = aggregation
        return entry.values
