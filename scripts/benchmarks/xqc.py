"""``scripts/bench xqc``: what XQC learns on HalfCheetah with networks of several widths and several paces.

Each run has 30,000 steps of ``config/xqc/HalfCheetah.yaml`` with other sizes, in a process of its own with one thread.
It leaves one file in ``--results`` when it ends; one that is there is not run again, so the program may be stopped at
any time. Needs MuJoCo. ``scripts/bench xqc --seeds 2 --jobs 1 --results FOLDER`` makes all of them in turn, the first
seed of every case first.

``python -m scripts.benchmarks.xqc CASE SEED FILE`` is one run.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from scripts.benchmarks.learning import ROOT, trained, write_result
from scripts.benchmarks.report import Row

STEPS = 30_000
EPISODES = 10


class Case(NamedTuple):
    """Sizes of the networks, and how often they learn.

    Attributes:
        critic: hidden units of the critics.
        actor: hidden units of the policy.
        layers: of each network.
        updates: gradient steps for each step of the environment.
        schedule: of the learning rate.
    """

    critic: int
    actor: int
    layers: int
    updates: float
    schedule: str = "linear"

    def __str__(self) -> str:
        name = f"{self.critic}-{self.actor}x{self.layers}-{self.updates:g}"
        return name if self.schedule == "linear" else f"{name}-{self.schedule}"


# The cheap ones first. The paper has critics of 512 units and a policy of 256, each with 4 layers, and 2 updates.
CASES = {
    str(case): case
    for case in (
        Case(64, 64, 4, 1),
        Case(64, 64, 2, 4),
        Case(128, 128, 4, 1),
        Case(64, 64, 4, 2),
        Case(128, 128, 2, 2),
        Case(128, 64, 2, 4),
        Case(128, 64, 4, 2),
        Case(128, 128, 4, 2),
        Case(128, 128, 4, 2, "constant"),
        Case(256, 128, 4, 1),
        Case(256, 128, 2, 2),
        Case(64, 64, 4, 4),
    )
}


def measure(arguments: argparse.Namespace) -> list[Row]:
    """Make the runs that are missing, and return the figures of all that are there."""
    results: Path = arguments.results
    results.mkdir(parents=True, exist_ok=True)
    end_s = time.monotonic() + 60 * arguments.minutes if arguments.minutes else math.inf
    runs = [(name, seed) for seed in arguments.seeds for name in CASES]
    missing = [run for run in runs if not _file(results, *run).exists()]
    with ThreadPoolExecutor(arguments.jobs) as threads:
        list(threads.map(partial(_start, results=results, end_s=end_s), missing))
    return list(_rows(results))


def _file(results: Path, name: str, seed: int) -> Path:
    return results / f"xqc-{name}-{seed}.json"


def _start(run: tuple[str, int], *, results: Path, end_s: float) -> None:
    if time.monotonic() > end_s:
        return
    name, seed = run
    file = _file(results, name, seed).resolve()
    command = [sys.executable, "-m", "scripts.benchmarks.xqc", name, str(seed), str(file)]
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    log = file.with_suffix(".log")
    with log.open("w", encoding="utf-8") as output:
        done = subprocess.run(command, check=False, cwd=ROOT, env=environment, stdout=output, stderr=subprocess.STDOUT)
    result = "done" if done.returncode == 0 else f"FAILED, see {log}"
    print(f"{time.strftime('%H:%M:%S')} {name}, seed {seed}: {result}", flush=True)


def _rows(results: Path) -> Iterator[Row]:
    for name in CASES:
        runs = [json.loads(file.read_text()) for file in sorted(results.glob(f"xqc-{name}-*.json"))]
        if runs:
            title = f"XQC, HalfCheetah, {STEPS:,} steps, {name}"
            yield Row(title, "return", [statistics.fmean(run["episodes"]) for run in runs])
            yield Row(title, "CPU ms per step", [1000 * run["cpu_seconds"] / STEPS for run in runs])


def configuration(case: Case) -> dict[str, Any]:
    """The configuration of HalfCheetah with other sizes."""
    text = (ROOT / "config" / "xqc" / "HalfCheetah.yaml").read_text(encoding="utf-8")
    mapping: dict[str, Any] = yaml.safe_load(text)
    (behavior,) = mapping["behaviors"].values()
    behavior["hyperparameters"] |= {
        "critic_hidden_units": case.critic,
        "critic_num_layers": case.layers,
        "steps_per_update": 1 / case.updates,
        "learning_rate_schedule": case.schedule,
    }
    behavior["network_settings"] |= {"hidden_units": case.actor, "num_layers": case.layers}
    behavior |= {"max_steps": STEPS, "summary_freq": 1000, "checkpoint_interval": STEPS}
    return mapping


def run(name: str, seed: int, file: Path) -> None:
    case = CASES[name]
    figures = trained(configuration(case), seed, EPISODES, likeliest=True)
    write_result(file, {"case": name, **case._asdict(), "seed": seed, "steps": STEPS} | figures)


if __name__ == "__main__":
    run(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
