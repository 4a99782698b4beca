"""What a step of an agent costs where it is acted and where it is learned from: how many actors one learner feeds."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from scripts.benchmarks.networks import CAMERA
from scripts.benchmarks.ppo import BALL, HUNDRED, Case, follow
from scripts.benchmarks.report import Row, interleaved

RUNS = 3
_ACTING = ("record", "TorchPolicy.evaluate", "env_send")
_SIZES = ((64, 2), (128, 2), (256, 2), (512, 3))
_SMALL = replace(BALL, name="12 agents x 8 floats", max_steps=48000)
_LARGE = replace(HUNDRED, name="100 agents x 200 floats", max_steps=40960)
_SAC = {"batch_size": 128, "buffer_size": 50000, "buffer_init_steps": 1000, "steps_per_update": 10}


@dataclass(frozen=True)
class Costs:
    """Microseconds for each agent-step of one run."""

    acting: float
    learning: float


def measure() -> list[Row]:
    """All cases in turn, several times."""
    cases = [_sized(case, *size) for size in _SIZES for case in (_SMALL, _LARGE)]
    cases += [_sized(replace(_SMALL, name=f"SAC, {_SMALL.name}", hyperparameters=_SAC), *_SIZES[1]), CAMERA]
    found: list[list[Costs]] = [[] for _ in cases]

    def one(index: int, case: Case) -> float:
        found[index].append(costs(case))
        return 0.0

    interleaved([partial(one, index, case) for index, case in enumerate(cases)], RUNS)
    rows: list[Row] = []
    for case, runs in zip(cases, found, strict=True):
        rows += [
            Row(f"{case.name}: acting", "µs a step", [run.acting for run in runs]),
            Row(f"{case.name}: learning", "µs a step", [run.learning for run in runs]),
            Row(f"{case.name}: one learns for", "acting cores", [run.acting / run.learning for run in runs]),
        ]
    return rows


def _sized(case: Case, units: int, layers: int) -> Case:
    network = {**case.network, "hidden_units": units, "num_layers": layers}
    return replace(case, name=f"{case.name}, {units}x{layers}", network=network)


def costs(case: Case) -> Costs:
    """One run in one loop, where timers tell acting from learning."""
    settings = case.settings()
    if "steps_per_update" in case.hyperparameters:
        settings["default_settings"]["trainer_type"] = "sac"
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "config.yaml"
        config.write_text(yaml.safe_dump(settings))
        command = [sys.executable, "-m", "trajtrainer", "learn", str(config), f"--results-dir={folder}", "--run-id=run"]
        command += ["--seed=1", "--base-port=16100", f"--env={case.player[0]}", "--env-args", *case.player[1:]]
        follow(command)
        timers = json.loads((Path(folder) / "run" / "run_logs" / "timers.json").read_text())
    seconds = _seconds(timers)
    scale = 1e6 / case.max_steps
    acting = sum(seconds[name] for name in _ACTING) - seconds["make_behavior"]
    return Costs(scale * acting, scale * seconds["trainer_advance"])


def _seconds(node: Mapping[str, Any]) -> dict[str, float]:
    """The seconds of all blocks below a node, by name."""
    found: dict[str, float] = {}
    for name, child in (node.get("children") or {}).items():
        found[name] = found.get(name, 0.0) + child["total"]
        for below, seconds in _seconds(child).items():
            found[below] = found.get(below, 0.0) + seconds
    return found
