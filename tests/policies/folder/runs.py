"""Runs as they lie on disk, written with identifiable numbers."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from trajtrainer.policies.folder import event_file
from trajtrainer.policies.folder.event_file import EventFile

REWARD = "Environment/Cumulative Reward"
LOG = """2026-01-01 10:00:00 INFO [logs.py:0] trajtrainer 0.1.0
   Version information:
    Command: trajtrainer learn ball.yaml
2026-01-01 10:00:05 INFO [loop.py:1] Connected.
2026-01-01 10:01:00 WARNING [supervisor.py:221] Restarting worker[0] in 0.50 s (restart 1) after: It crashed.
  Its log ends with: <b>boom</b>
2026-01-01 10:02:00 WARNING [loop.py:2] The disk is nearly full.
"""


def write_events(
    folder: Path, points: Iterable[tuple[int, Mapping[str, float]]], resumed_at: int | None = None
) -> None:
    """An event file."""
    file = EventFile(folder, resumed_at)
    for step, values in points:
        file.add([event_file.scalar(tag, value) for tag, value in values.items()], step)
    file.close()


def make_run(
    results: Path,
    run_id: str,
    *,
    behavior: str = "Ball",
    gain: float = 1.0,
    log: str = LOG,
    seed: int = 7,
    more: Mapping[str, Any] | None = None,
) -> Path:
    """A run of 20 summaries, whose reward is ``gain`` times the number of the summary. ``more``: of its settings."""
    run = results / run_id
    write_events(run / behavior, [(100 * i, {REWARD: gain * i, "Losses/Policy Loss": 1 / i}) for i in range(1, 21)])
    for name in (f"{behavior}/{behavior}-2000.onnx", f"{behavior}/{behavior}-2000.pt", f"{behavior}.onnx"):
        (run / name).write_bytes(name.encode())
    logs = run / "run_logs"
    logs.mkdir()
    status: dict[str, Any] = {
        behavior: {"final_checkpoint": {"steps": 2000, "reward": 20.0}, "elo": 1234.5, "best": {"steps": 1900}},
        "mass": {"lesson_num": 1},
        "metadata": {},
    }
    (logs / "training_status.json").write_text(json.dumps(status))
    block = {"total": 6.0, "count": 5, "self": 6.0}
    gauges = {
        f"{behavior}.Environment.CumulativeReward.mean": {"value": 20 * gain},
        f"{behavior}.Losses.PolicyLoss.mean": {"value": 0.05 * gain},
        f"{behavior}.Losses.PolicyLoss.sum": {"value": 1e9},
    }
    timers = {"total": 10.0, "self": 4.0, "children": {"env_step": block}, "gauges": gauges}
    timers["metadata"] = {"start_time_seconds": "1000"}
    (logs / "timers.json").write_text(json.dumps(timers))
    (logs / "trainer.log").write_text(log)
    lessons = [{"name": "Light", "value": 1.0}, {"name": "Heavy", "value": 2.0}]
    settings = {
        "behaviors": {behavior: {"max_steps": 2000, **(more or {})}},
        "environment_parameters": {"mass": {"curriculum": lessons}},
        "env_settings": {"seed": seed},
    }
    (run / "configuration.yaml").write_text(yaml.safe_dump(settings))
    return run


def write(folder: Path, points: list[tuple[int, float]], resumed_at: int | None = None, tag: str = REWARD) -> None:
    """An event file of one scalar, and of what is none."""
    file = EventFile(folder, resumed_at)
    for step, value in points:
        file.add([event_file.scalar(tag, value), event_file.histogram("H", np.array([value]))], step)
    file.add([event_file.text("Hyperparameters", "x")], 0)
    file.close()
