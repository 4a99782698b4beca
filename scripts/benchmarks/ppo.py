"""End-to-end benchmarks of PPO with the command line, a player process and gRPC, not counting the start."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from scripts.benchmarks.report import RUNS, Row, interleaved

_SUMMARY = re.compile(r"Step: (\d+)\. Time Elapsed: ([\d.]+) s")


@dataclass(frozen=True)
class Case:
    """A benchmark: the configuration, the player, and the target speed (``bar``)."""

    name: str
    player: list[str]
    hyperparameters: dict[str, Any]
    network: dict[str, Any]
    time_horizon: int
    summary_freq: int
    max_steps: int
    bar: float | None = None
    extra: dict[str, Any] = field(default_factory=dict)

    def settings(self) -> dict[str, Any]:
        behavior = {
            "trainer_type": "ppo",
            "hyperparameters": self.hyperparameters,
            "network_settings": self.network,
            "time_horizon": self.time_horizon,
            "summary_freq": self.summary_freq,
            "max_steps": self.max_steps,
            **self.extra,
        }
        return {"default_settings": behavior, "behaviors": {}}


BALL = Case(
    "PPO, 3DBall config, 12 agents x 8 floats",
    ["sim:Bench", "--agents", "12", "--observation-size", "8", "--episode-length", "100"],
    {"batch_size": 64, "buffer_size": 12000, "beta": 0.001, "lambd": 0.99},
    {"normalize": True, "hidden_units": 128, "num_layers": 2},
    1000,
    12000,
    72000,
    5000,
)
SIMULATED_BALL = replace(BALL, name="PPO, 3DBall config on the 3DBall simulation", player=["sim:3DBall"], bar=None)
HUNDRED = Case(
    "PPO, 100 agents x 200 floats, 256x2, batch 1024",
    ["sim:Bench", "--agents", "100", "--observation-size", "200", "--branches", "3"],
    {"batch_size": 1024, "buffer_size": 10240},
    {"hidden_units": 256, "num_layers": 2},
    64,
    10240,
    102400,
    15000,
)


def measure(cases: Sequence[Case] = (BALL, SIMULATED_BALL, HUNDRED)) -> list[Row]:
    figures = interleaved([partial(speed, case) for case in cases], RUNS)
    rows = [Row(case.name, "agent-steps/s", runs, case.bar) for case, runs in zip(cases, figures, strict=True)]
    return rows + memory()


def memory() -> list[Row]:
    """Measure resident memory with 100 agents, after 5 and 20 buffers."""
    long = train(HUNDRED, max_steps=20 * 10240)
    at = long.memory_at
    return [
        Row("resident memory, 100 agents, after 5 buffers", "MB", [at(5 * 10240)], 600),
        Row("resident memory, 100 agents, after 20 buffers", "MB", [at(20 * 10240)], 600),
    ]


@dataclass(frozen=True)
class Figures:
    """(step, seconds, resident MB) at each summary of a run."""

    summaries: list[tuple[int, float, float]]

    @property
    def steps_per_second(self) -> float:
        (first_step, first_time, _), (last_step, last_time, _) = self.summaries[0], self.summaries[-1]
        return (last_step - first_step) / (last_time - first_time)

    def memory_at(self, step: int) -> float:
        return [megabytes for at, _, megabytes in self.summaries if at <= step][-1]


def speed(case: Case) -> float:
    return train(case).steps_per_second


def train(case: Case, max_steps: int | None = None) -> Figures:
    settings = case.settings()
    if max_steps is not None:
        settings["default_settings"]["max_steps"] = max_steps
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "config.yaml"
        config.write_text(yaml.safe_dump(settings))
        command = [sys.executable, "-m", "trajtrainer", "learn", str(config), f"--results-dir={folder}/results"]
        command += ["--seed=1", "--base-port=16100", f"--env={case.player[0]}"]
        if case.player[1:]:
            command += ["--env-args", *case.player[1:]]
        return follow(command)


def follow(command: list[str]) -> Figures:
    summaries = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line)
            found = _SUMMARY.search(line)
            if found:
                summaries.append((int(found[1]), float(found[2]), _resident_mb(process.pid)))
    if process.returncode:
        raise RuntimeError("".join(lines[-20:]))
    time.sleep(0.5)  # wait until the port is free again
    return Figures(summaries)


def _resident_mb(pid: int) -> float:
    text = Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+) kB", text)
    return int(found[1]) / 1024 if found else float("nan")
