"""``run_logs/timers.json``: where the time went, the gauges of every statistic, and what ran.

See docs/mlagents-behavior.md#timers.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from trajtrainer.run.writers import Gauge
from trajtrainer.rundir.status import COMPATIBLE_MLAGENTS_VERSION, installed_version
from trajtrainer.timers import Timers
from trajtrainer.version import __version__

TIMER_FORMAT_VERSION = "0.1.0"


def timers_json(
    timers: Timers,
    gauges: Mapping[str, Gauge],
    arguments: Sequence[str],
    protocol_version: str,
    actors: Sequence[Mapping[str, Any]] = (),
) -> str:
    """Return the content of the file, as of now.

    Args:
        timers: the run's.
        gauges: ``GaugeWriter.gauges``.
        arguments: the command line, program included.
        protocol_version: of the wire.
        actors: what each of them has done, where they are not in the loop.
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
    }
    return json.dumps(content, indent=4)
