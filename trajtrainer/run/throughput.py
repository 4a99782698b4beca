"""Steps per second since the last summary, as statistics (``Perf/*``)."""

from __future__ import annotations

import time
from collections.abc import Callable


class Throughput:
    """A statistics source: rates of counters between two summaries of one behaviour."""

    def __init__(self, counters: dict[str, Callable[[], int]]) -> None:
        """Begin to count.

        Args:
            counters: tag -> a count that only grows.
        """
        self._counters = counters
        self._time = time.perf_counter()
        self._counts = {tag: counter() for tag, counter in counters.items()}

    def __call__(self) -> dict[str, float]:
        """Return tag -> how much was counted per second since the last call."""
        now = time.perf_counter()
        elapsed, self._time = max(now - self._time, 1e-9), now
        rates = {}
        for tag, counter in self._counters.items():
            count = counter()
            rates[tag] = (count - self._counts[tag]) / elapsed
            self._counts[tag] = count
        return rates
