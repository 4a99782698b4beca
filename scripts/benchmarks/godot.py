"""The built-in game of Godot with 8 agents: PPO of ours and, if it is there, godot-rl with Stable-Baselines3's PPO.

All play the same program, which speaks as the plugin does. godot-rl learns as ``gdrl`` does by default: 256 steps per
update, 10 epochs of minibatches of 64, two layers of 64 units for the policy and for the values. Ours learns with the
same sizes, in its loop and with an actor's process, and with those of ``config/godot/Chase.yaml``. Each run is a
process of its own, with one thread for torch, and they take turns. The clock of all runs from about the 2048th step to
the last steps of 40,000, so start-up and the end are left out and everything else that they do on their own account
(logs, checkpoints) is in.

``scripts/bench godot --godot-rl VENV`` names a virtual environment with ``godot-rl==0.8.2``; without it only the first
half runs. ``python -m scripts.benchmarks.godot BUILD PORT SEED STEPS KIND`` is one run of ours.
"""

from __future__ import annotations

import json
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from scripts.benchmarks.epochs import CPU, SPEED, learned
from scripts.benchmarks.gym import in_process
from scripts.benchmarks.report import RUNS, Row, interleaved

MAX_STEPS = 40_000
WARM_UP = 2048
AGENTS = 8
CONFIG = Path(__file__).resolve().parents[2] / "config" / "godot" / "Chase.yaml"
_GODOT_RL = "godot-rl"
_NAMES = {
    "loop": "trajtrainer",
    "actor": "trajtrainer, an actor",
    "shipped": "trajtrainer, Chase.yaml",
    "shipped-actor": "trajtrainer, Chase.yaml, an actor",
    _GODOT_RL: "godot-rl with Stable-Baselines3",
}
_PROGRAM = Path(__file__).with_name("godot_sb3.py")
_REWARD = "reward, last episodes"
_TIMES = 5.0
_BASE_PORT = 21_000
SETTINGS: dict[str, Any] = {
    "trainer_type": "ppo",
    "hyperparameters": {
        "batch_size": 64,
        "buffer_size": 32 * AGENTS - 1,  # an update needs more than this
        "learning_rate": 3.0e-4,
        "learning_rate_schedule": "constant",
        "beta": 1.0e-4,
        "beta_schedule": "constant",
        "epsilon_schedule": "constant",
        "num_epoch": 10,
    },
    "network_settings": {"hidden_units": 64, "num_layers": 2},
    "reward_signals": {"extrinsic": {"gamma": 0.99, "strength": 1.0}},
    "time_horizon": 32,
    "summary_freq": 5000,
}


def measure(godot_rl: Path | None = None) -> list[Row]:
    """All kinds of ours and, in turn, that of the virtual environment ``godot_rl``."""
    commands = {kind: [sys.executable, "-m", "scripts.benchmarks.godot"] for kind in _NAMES if kind != _GODOT_RL}
    if godot_rl is not None:
        commands[_GODOT_RL] = [str(godot_rl / "bin" / "python"), str(_PROGRAM)]
    found: dict[str, list[dict[str, float]]] = {kind: [] for kind in commands}
    with tempfile.TemporaryDirectory() as folder:
        build = Path(folder, "chase.x86_64")  # godot-rl starts files with this ending alone
        build.write_text(
            f'#!/bin/sh\nexec "{sys.executable}" -m trajtrainer.plugins.godot.simulation Chase --agents {AGENTS} "$@"\n'
        )
        build.chmod(0o755)

        def run(kind: str) -> float:
            runs = found[kind]
            port = _BASE_PORT + 4 * sum(map(len, found.values()))  # the last one may not be free yet
            runs.append(in_process([*commands[kind], str(build), str(port), str(len(runs) + 1), str(MAX_STEPS), kind]))
            return 0.0

        interleaved([partial(run, kind) for kind in commands], RUNS)
    rows = []
    for kind, runs in found.items():
        units = [unit for unit in runs[0] if unit != CPU or "actor" not in kind]
        rows += [Row(f"Godot's Chase, 8 agents, {_NAMES[kind]}", unit, [run[unit] for run in runs]) for unit in units]
    if godot_rl is not None:
        others = [run[SPEED] for run in found[_GODOT_RL]]
        rows += [
            Row(
                f"Godot's Chase, {_NAMES[kind]}, against godot-rl",
                "times",
                [run[SPEED] / other for run, other in zip(found[kind], others, strict=True)],
                _TIMES if "shipped" in kind else None,
            )
            for kind in found
            if kind != _GODOT_RL
        ]
    return rows


def run(build: str, port: int, seed: int, max_steps: int, kind: str) -> dict[str, float]:
    """One training of ours."""
    behavior = yaml.safe_load(CONFIG.read_text())["behaviors"]["shared_policy"] if "shipped" in kind else SETTINGS
    settings = {
        "behaviors": {"shared_policy": {**behavior, "max_steps": max_steps}},
        "env_settings": {"env_path": f"godot:{build}", "base_port": port},
        **({"actors": {"count": 1}} if "actor" in kind else {}),
    }
    result, figures = learned(settings, seed, WARM_UP)
    return {**figures, _REWARD: result.behaviors["shared_policy"].mean_reward or float("nan")}


if __name__ == "__main__":
    print(json.dumps(run(sys.argv[1], *map(int, sys.argv[2:5]), sys.argv[5])))
