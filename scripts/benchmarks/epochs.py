"""How fast a run learns, from the end of its first epoch behind the warm-up to that of its last whole one."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from typing import Any

import trajtrainer

SPEED, CPU = "agent-steps/s", "CPU ms per 1000 steps"


def learned(settings: Mapping[str, Any], seed: int, warm_up: int) -> tuple[trajtrainer.LearnResult, dict[str, float]]:
    """Return the result of a run of one behavior and its figures, so that neither start-up nor the end are in them.

    The processor time is that of this process, which does not have that of actors in others.
    """
    with tempfile.TemporaryDirectory() as folder:
        given: dict[str, Any] = {"results_dir": folder, "run_id": "bench", "seed": seed, "verbose": False}
        with trajtrainer.Training(settings, **given) as training:
            marks = [
                (epoch.behavior.total_steps, time.perf_counter(), time.process_time())
                for epoch in training.epochs(steps=warm_up)
            ]
        (first, first_s, first_cpu_s), (last, last_s, last_cpu_s) = marks[0], marks[-2]
        steps = last - first
        return training.result, {
            SPEED: steps / (last_s - first_s),
            CPU: 1e6 * (last_cpu_s - first_cpu_s) / steps,
        }
