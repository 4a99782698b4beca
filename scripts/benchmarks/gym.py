"""CartPole-v1 with 8 environments: ``config/gym/CartPole.yaml`` as it is, and Stable-Baselines3 if it is there.

Both learn with the same sizes: 256 steps per update, 20 epochs of one minibatch, two layers of 64 units for the policy
and for the values, the environments in a plain loop. Each run is a process of its own, with one thread for torch, and
they take turns. The clock of both runs from the first step after the 2048th to the last step of 100,000, so start-up
and the end are left out and everything else that they do on their own account (logs, checkpoints) is in.

``scripts/bench gym --sb3 VENV`` names a virtual environment with ``stable-baselines3``; without it only the first half
runs. ``python -m scripts.benchmarks.gym SEED STEPS`` is one run.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

import yaml

from scripts.benchmarks.measured import Measured
from scripts.benchmarks.report import RUNS, Row, interleaved

CONFIG = Path(__file__).resolve().parents[2] / "config" / "gym" / "CartPole.yaml"
MAX_STEPS = 100_000
WARM_UP = 2048
_SPEED, _CPU, _REWARD = "agent-steps/s", "CPU ms per 1000 steps", "reward, last 100 episodes"
_SOLVED = 475.0
_SB3_PROGRAM = Path(__file__).with_name("gym_sb3.py")


def measure(sb3: Path | None = None) -> list[Row]:
    """Ours and, in turn, that of the virtual environment ``sb3``."""
    commands = {"trajtrainer": [sys.executable, "-m", "scripts.benchmarks.gym"]}
    if sb3 is not None:
        commands["Stable-Baselines3"] = [str(sb3 / "bin" / "python"), str(_SB3_PROGRAM)]
    found: dict[str, list[dict[str, float]]] = {name: [] for name in commands}

    def run(name: str) -> float:
        runs = found[name]
        runs.append(_in_process([*commands[name], str(len(runs) + 1), str(MAX_STEPS)]))
        return 0.0

    interleaved([partial(run, name) for name in commands], RUNS)
    rows = []
    for name, runs in found.items():
        bar = _SOLVED if name == "trajtrainer" else None
        rows += [
            Row(f"CartPole-v1, 8 copies, {name}", unit, [run[unit] for run in runs], bar if unit == _REWARD else None)
            for unit in runs[0]
        ]
    if sb3 is not None:
        pairs = zip(*found.values(), strict=True)
        rows.append(
            Row("CartPole-v1, against Stable-Baselines3", "times", [a[_SPEED] / b[_SPEED] for a, b in pairs], 1)
        )
    return rows


def _in_process(command: list[str]) -> dict[str, float]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def run(seed: int, max_steps: int) -> dict[str, float]:
    """One training of ours."""
    from trajtrainer.envs.select import make_environment
    from trajtrainer.envs.unity_environment import PlayerLogs
    from trajtrainer.run.learn import train
    from trajtrainer.settings.convert import load
    from trajtrainer.settings.run import RunSettings

    made: list[Measured] = []

    def make(settings: RunSettings, logs: PlayerLogs) -> Measured:
        made.append(Measured(make_environment(settings, logs), WARM_UP))
        return made[0]

    mapping = yaml.safe_load(CONFIG.read_text())
    (behavior,) = mapping["behaviors"].values()
    behavior["max_steps"] = max_steps
    mapping["env_settings"]["seed"] = seed
    with tempfile.TemporaryDirectory() as folder:
        mapping["checkpoint_settings"] = {"results_dir": folder, "run_id": "bench"}
        done = train(load(yaml.safe_dump(mapping), CONFIG.name), None, make)
    (learned,) = done.behaviors.values()
    return {
        _SPEED: made[0].steps_per_second,
        _CPU: made[0].cpu_ms_per_1000_steps,
        _REWARD: statistics.fmean(learned.trainer.episodes.recent),
    }


if __name__ == "__main__":
    print(json.dumps(run(int(sys.argv[1]), int(sys.argv[2]))))
