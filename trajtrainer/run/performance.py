"""Steps per second since the last summary, as statistics (``Perf/*``)."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from trajtrainer.core.timers import EARLIER, Timers, add_trees, number_of
from trajtrainer.core.version import __version__
from trajtrainer.run.writers import Gauge
from trajtrainer.rundir.status import COMPATIBLE_MLAGENTS_VERSION, installed_version


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


TIMER_FORMAT_VERSION = "0.1.0"


def timers_json(
    timers: Timers,
    gauges: Mapping[str, Gauge],
    arguments: Sequence[str],
    protocol_version: str,
    actors: Sequence[Mapping[str, Any]] = (),
    earlier: Mapping[str, Any] | None = None,
) -> str:
    """Return the content of the file, as of now.

    Args:
        timers: the run's.
        gauges: ``GaugeWriter.gauges``.
        arguments: the command line, program included.
        protocol_version: of the wire.
        actors: what each of them has done, where they are not in the loop.
        earlier: ``earlier_sessions`` of a resumed run.
    """
    metadata = {
        "timer_format_version": TIMER_FORMAT_VERSION,
        "start_time_seconds": str(int(timers.start)),
        "python_version": sys.version,
        "command_line_arguments": " ".join(arguments),
        "mlagents_version": COMPATIBLE_MLAGENTS_VERSION,
        "mlagents_envs_version": installed_version("mlagents-envs"),
        "communication_protocol_version": protocol_version,
        "pytorch_version": installed_version("torch"),
        "numpy_version": installed_version("numpy"),
        "trajtrainer_version": __version__,
        "end_time_seconds": str(int(time.time())),
    }
    content = {
        "name": "root",
        "gauges": {name: asdict(gauge) for name, gauge in dict(gauges).items()},
        "metadata": metadata,
        **({"actors": [*actors]} if actors else {}),
        **timers.to_dict(),
        **({EARLIER: earlier} if earlier else {}),
    }
    return json.dumps(content, indent=4)


def earlier_sessions(text: str) -> dict[str, Any] | None:
    """Return what the ``timers.json`` of a run that is about to resume says about all its sessions so far, added up.

    None if the file is damaged.
    """
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(content, dict):
        return None
    earlier = content.get(EARLIER)
    earlier = earlier if isinstance(earlier, dict) else {}
    metadata = content.get("metadata")
    start = metadata.get("start_time_seconds") if isinstance(metadata, dict) else None
    return {
        "sessions": int(number_of(earlier.get("sessions"))) + 1,
        "start_time_seconds": earlier.get("start_time_seconds", start),
        **add_trees(content, earlier),
    }
