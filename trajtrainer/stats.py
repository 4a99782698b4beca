"""Statistics of a behaviour between two summaries, and the interface of those who write them."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from trajtrainer.steps import Aggregation


@dataclass(frozen=True, slots=True)
class StatsSummary:
    """All values of one tag since the last summary. ``aggregated`` is the sum for SUM and the mean otherwise."""

    values: Sequence[float]
    aggregation: Aggregation = Aggregation.AVERAGE

    @property
    def aggregated(self) -> float:
        if self.aggregation is Aggregation.SUM:
            return float(np.sum(self.values))
        return float(np.mean(self.values)) if len(self.values) else float("nan")


class StatsWriter(ABC):
    """Receives every summary. Users subclass this (entry point group ``trajtrainer.stats_writer``)."""

    @abstractmethod
    def write_stats(self, category: str, values: Mapping[str, StatsSummary], step: int) -> None:
        """Writes one summary of behaviour ``category``, labelled with ``step``."""

    def add_hyperparameters(self, category: str, text: str) -> None:  # noqa: B027
        """Receives the behaviour's settings as an indented text tree, once, at the start."""

    def close(self) -> None:  # noqa: B027
        """Flushes what is pending. Called once."""


@dataclass(slots=True)
class _Values:
    aggregation: Aggregation
    values: list[float] = field(default_factory=list)


class StatsReporter:
    """Collects the values of one behaviour and hands them to the writers. Safe to use from several threads."""

    def __init__(self, category: str, writers: Iterable[StatsWriter]) -> None:
        self.category = category
        self._writers = list(writers)
        self._values: dict[str, _Values] = {}
        self._lock = threading.Lock()

    def add(self, tag: str, value: float, aggregation: Aggregation = Aggregation.AVERAGE) -> None:
        self.add_many(tag, (value,), aggregation)

    def add_many(self, tag: str, values: Iterable[float], aggregation: Aggregation = Aggregation.AVERAGE) -> None:
        with self._lock:
            entry = self._values.get(tag)
            if entry is None:
                entry = self._values[tag] = _Values(aggregation)
            entry.values.extend(values)

    def set(self, tag: str, value: float) -> None:
        """Keeps only the newest value."""
        with self._lock:
            self._values[tag] = _Values(Aggregation.MOST_RECENT, [value])

    def add_hyperparameters(self, text: str) -> None:
        for writer in self._writers:
            writer.add_hyperparameters(self.category, text)

    def write(self, step: int) -> None:
        """Hands everything since the last call to the writers under the step ``step`` and starts anew."""
        with self._lock:
            values, self._values = self._values, {}
        summaries = {tag: StatsSummary(entry.values, entry.aggregation) for tag, entry in values.items()}
        for writer in self._writers:
            writer.write_stats(self.category, summaries, step)
