"""``scripts/bench xqc``: compares network sizes and update rates of XQC on HalfCheetah by return and CPU time.

Each run takes 30,000 steps of ``config/xqc/HalfCheetah.yaml`` with other sizes, in its own process with one thread. At
the end, it writes one file to ``--results``. Runs whose file exists are skipped, so the program may be stopped at any
time. Needs MuJoCo. ``scripts/bench xqc --seeds 2 --jobs 1 --results FOLDER`` makes all runs sequentially, seed by seed.

``python -m scripts.benchmarks.xqc CASE SEED FILE`` makes one run.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import yaml

from scripts.benchmarks.jobs import ROOT, make_runs, write_whole
from scripts.benchmarks.report import Row

STEPS = 30_000
EPISODES = 10


class Case(NamedTuple):
    """Network sizes, and the update rate.

    Attributes:
        critic: hidden units of the critics.
        actor: hidden units of the policy.
        layers: number of layers of each network.
        updates: gradient steps per environment step.
        schedule: learning rate schedule.
    """

    critic: int
    actor: int
    layers: int
    updates: float
    schedule: str = "linear"

    def __str__(self) -> str:
        name = f"{self.critic}-{self.actor}x{self.layers}-{self.updates:g}"
        return name if self.schedule == "linear" else f"{name}-{self.schedule}"


# Cheapest first. The paper uses critics with 512 units and a policy with 256 units, 4 layers each, and 2 updates.
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
    """Make the missing runs, and return the figures of all existing runs."""
    results: Path = arguments.results
    results.mkdir(parents=True, exist_ok=True)
    runs = [(_file(results, name, seed), [name, str(seed)]) for seed in arguments.seeds for name in CASES]
    make_runs("scripts.benchmarks.xqc", [run for run in runs if not run[0].exists()], arguments)
    return list(_rows(results))


def _file(results: Path, name: str, seed: int) -> Path:
    return results / f"xqc-{name}-{seed}.json"


def _rows(results: Path) -> Iterator[Row]:
    for name in CASES:
        runs = [json.loads(file.read_text()) for file in sorted(results.glob(f"xqc-{name}-*.json"))]
        if runs:
            title = f"XQC, HalfCheetah, {STEPS:,} steps, {name}"
            yield Row(title, "return", [statistics.fmean(run["episodes"]) for run in runs])
            yield Row(title, "CPU ms per step", [1000 * run["cpu_seconds"] / STEPS for run in runs])


def configuration(case: Case) -> dict[str, Any]:
    """Return the configuration of HalfCheetah with the sizes of a case."""
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
    """Train, and write the CPU time and the returns of episodes with deterministic actions to a file."""
    import trajtrainer

    mapping = configuration(CASES[name])
    begin_s = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        trajtrainer.learn(mapping, seed=seed, run_id="bench", results_dir=folder)
        cpu_seconds = time.process_time() - begin_s
        env = gymnasium.make(mapping["env_settings"]["env_path"].removeprefix("gym:"))
        policy = trajtrainer.load_policy(Path(folder) / "bench", env=env)
        episodes = [_play(env, policy, 10_000 + number) for number in range(EPISODES)]
    found = {"case": name, **CASES[name]._asdict(), "seed": seed, "steps": STEPS}
    write_whole(file, json.dumps({**found, "cpu_seconds": cpu_seconds, "episodes": episodes}))


def _play(env: Any, policy: Any, seed: int) -> float:
    observation, _ = env.reset(seed=seed)
    total, is_over, memory = 0.0, False, None
    while not is_over:
        action, memory = policy.act(observation, deterministic=True, memory=memory)
        observation, reward, terminated, truncated, _ = env.step(action)
        total, is_over = total + float(reward), terminated or truncated
    return total


if __name__ == "__main__":
    run(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
