"""CartPole-v1 with 8 environments: ``config/gym/CartPole.yaml`` as it is, and Stable-Baselines3 if it is there.

Both learn with the same sizes: 256 steps per update, 20 epochs of one minibatch, two layers of 64 units for the policy
and for the values. Ours steps the environments in its loop, in an actor's process, and where EnvPool is installed as
those of EnvPool; Stable-Baselines3 in a plain loop (DummyVecEnv) and in processes (SubprocVecEnv), of which the better
counts. Each run is a process of its own, with one thread for torch, and they take turns. The clock of both runs from
about the 2048th step to the last steps of 100,000, so start-up and the end are left out and everything else that they
do on their own account (logs, checkpoints) is in.

``scripts/bench gym --sb3 VENV`` names a virtual environment with ``stable-baselines3``; without it only the first half
runs. ``python -m scripts.benchmarks.gym SEED STEPS KIND`` is one run.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from scripts.benchmarks.epochs import CPU, SPEED, learned
from scripts.benchmarks.report import RUNS, Row, interleaved

CONFIG = Path(__file__).resolve().parents[2] / "config" / "gym" / "CartPole.yaml"
MAX_STEPS = 100_000
WARM_UP = 2048
# Kind -> what is different from the configuration.
KINDS: dict[str, dict[str, Any]] = {
    "loop": {},
    "actor": {"actors": {"count": 1}},
    "envpool": {"env_path": "envpool:CartPole-v1", "env_args": ["num_threads=1"]},
    "envpool-actor": {"env_path": "envpool:CartPole-v1", "env_args": ["num_threads=1"], "actors": {"count": 1}},
}
_NAMES = {
    "loop": "trajtrainer",
    "actor": "trajtrainer, an actor",
    "envpool": "trajtrainer, EnvPool",
    "envpool-actor": "trajtrainer, EnvPool, an actor",
    "dummy": "Stable-Baselines3",
    "subproc": "Stable-Baselines3, SubprocVecEnv",
}
_REWARD = "reward, last 100 episodes"
_SOLVED = 475.0
_SB3_PROGRAM = Path(__file__).with_name("gym_sb3.py")
_TIMES = 3.0


def measure(sb3: Path | None = None) -> list[Row]:
    """All kinds of ours and, in turn, those of the virtual environment ``sb3``."""
    has_envpool = importlib.util.find_spec("envpool") is not None
    ours = [kind for kind in KINDS if has_envpool or "envpool" not in kind]
    theirs = [] if sb3 is None else ["dummy", "subproc"]
    commands = {kind: [sys.executable, "-m", "scripts.benchmarks.gym"] for kind in ours}
    commands |= {kind: [str(sb3 and sb3 / "bin" / "python"), str(_SB3_PROGRAM)] for kind in theirs}
    found: dict[str, list[dict[str, float]]] = {kind: [] for kind in commands}

    def run(kind: str) -> float:
        runs = found[kind]
        runs.append(in_process([*commands[kind], str(len(runs) + 1), str(MAX_STEPS), kind]))
        return 0.0

    interleaved([partial(run, kind) for kind in commands], RUNS)
    rows = []
    for kind, runs in found.items():
        units = [unit for unit in runs[0] if unit != CPU or kind in ("loop", "envpool", "dummy")]
        rows += [
            Row(
                f"CartPole-v1, 8 copies, {_NAMES[kind]}",
                unit,
                [run[unit] for run in runs],
                _SOLVED if unit == _REWARD and kind in ours else None,
            )
            for unit in units
        ]
    if theirs:
        best = [max(found[kind][index][SPEED] for kind in theirs) for index in range(RUNS)]
        rows += [
            Row(
                f"CartPole-v1, {_NAMES[kind]}, against Stable-Baselines3's better one",
                "times",
                [run[SPEED] / other for run, other in zip(found[kind], best, strict=True)],
                1 if kind == "loop" else _TIMES,
            )
            for kind in ours
        ]
    return rows


def in_process(command: list[str], threads: int = 1) -> dict[str, float]:
    """Run a program and return the figures that it prints last."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def run(seed: int, max_steps: int, kind: str) -> dict[str, float]:
    """One training of ours."""
    settings = yaml.safe_load(CONFIG.read_text())
    (behavior,) = settings["behaviors"].values()
    behavior["max_steps"] = max_steps
    changes = dict(KINDS[kind])
    settings |= {"actors": changes.pop("actors")} if "actors" in changes else {}
    settings["env_settings"] |= changes
    result, figures = learned(settings, seed, WARM_UP)
    return {**figures, _REWARD: result.behaviors["CartPole-v1"].mean_reward or float("nan")}


if __name__ == "__main__":
    print(json.dumps(run(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])))
