"""Compares trajtrainer with ML-Agents, using the same players and configurations.

``scripts/bench mlagents --mlagents VENV``: VENV is a virtual environment with mlagents 1.1.0: Python 3.10, torch 2.1.2,
protobuf 3.20.3, grpcio 1.48.2, numpy 1.23.5, cattrs < 1.7, onnx 1.15.0, tensorboard < 2.17, setuptools < 66, pettingzoo
1.15.0, gym 0.26, and mlagents and mlagents-envs installed with ``--no-deps --ignore-requires-python``. Without VENV,
only trajtrainer is measured.
"""

from __future__ import annotations

import shlex
import sys
import tempfile
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import yaml

from scripts.benchmarks.networks import GRID_WORLD
from scripts.benchmarks.poca import FOURS, TENS
from scripts.benchmarks.ppo import BALL, HUNDRED, Case, follow, speed
from scripts.benchmarks.report import RUNS, Row, interleaved
from scripts.benchmarks.sac import BALL as SAC_BALL


@dataclass(frozen=True)
class Comparison:
    """A case, its target speed as a multiple of ML-Agents' speed, and the case for ML-Agents if it differs."""

    case: Case
    times: float
    mlagents_case: Case | None = None


BASIC = Case(
    "PPO, Basic config, 8 agents",
    ["sim:Basic", "--agents", "8"],
    {"batch_size": 32, "buffer_size": 256, "beta": 0.005, "lambd": 0.95},
    {"hidden_units": 20, "num_layers": 1},
    3,
    2560,
    15360,
)
RECURRENT = Case(
    "PPO, LSTM of 64, sequences of 8, 16 agents x 3 floats",
    ["sim:Bench", "--agents", "16", "--observation-size", "3"],
    {"batch_size": 128, "buffer_size": 1024},
    {"hidden_units": 128, "num_layers": 2, "memory": {"memory_size": 64, "sequence_length": 8}},
    64,
    2048,
    16384,
)
SHORT_BALL = replace(BALL, max_steps=36000)
DEMONSTRATION = str(Path(__file__).resolve().parents[2] / "config" / "demos" / "3DBall.demo")
CLONING = replace(
    SHORT_BALL,
    name=f"{BALL.name}, with behavioral cloning",
    extra={"behavioral_cloning": {"demo_path": DEMONSTRATION}},
)
GAIL = replace(
    SHORT_BALL,
    name=f"{BALL.name}, with GAIL",
    max_steps=24000,
    extra={"reward_signals": {"extrinsic": {}, "gail": {"demo_path": DEMONSTRATION, "strength": 0.1}}},
)
CURIOSITY = replace(
    GRID_WORLD,
    name=f"{GRID_WORLD.name}, with curiosity",
    summary_freq=500,
    max_steps=1500,
    extra={"reward_signals": {"extrinsic": {"gamma": 0.9}, "curiosity": {"gamma": 0.9, "strength": 0.02}}},
)
COMPARISONS = (
    Comparison(SHORT_BALL, 4),
    Comparison(replace(SHORT_BALL, name=f"{BALL.name}, threaded", extra={"threaded": True}), 5, SHORT_BALL),
    Comparison(replace(HUNDRED, max_steps=51200), 7),
    Comparison(replace(GRID_WORLD, summary_freq=500, max_steps=2500), 2.5),
    Comparison(BASIC, 4),
    Comparison(RECURRENT, 4),
    Comparison(replace(SAC_BALL, summary_freq=2000, max_steps=12000), 3),
    Comparison(replace(FOURS, max_steps=10240), 5),
    Comparison(replace(TENS, max_steps=38400), 5),
    Comparison(CLONING, 4),
    Comparison(GAIL, 4),
    Comparison(CURIOSITY, 4),
)


def measure(venv: Path | None = None) -> list[Row]:
    """Measure the speeds of trajtrainer and ML-Agents and their ratio, for each comparison."""
    rows = []
    for comparison in COMPARISONS:
        case, mlagents_case = comparison.case, comparison.mlagents_case or comparison.case
        ways = [partial(speed, case)] + ([partial(mlagents_speed, mlagents_case, venv)] if venv is not None else [])
        figures = interleaved(ways, RUNS)
        rows.append(Row(case.name, "agent-steps/s", figures[0]))
        if venv is not None:
            rows.append(Row("... ML-Agents", "agent-steps/s", figures[1]))
            ratios = [ours / theirs for ours, theirs in zip(*figures, strict=True)]
            rows.append(Row("... ours / ML-Agents", "times", ratios, comparison.times))
    return rows


def mlagents_speed(case: Case, venv: Path) -> float:
    """Return the agent-steps per second of ML-Agents."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "config.yaml").write_text(yaml.safe_dump(case.settings()))
        player = folder / "player.x86_64"
        simulation = case.player[0].removeprefix("sim:")
        command = shlex.join([sys.executable, "-m", "trajtrainer.envs.sim", simulation, *case.player[1:]])
        player.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
        player.chmod(0o755)
        learn = [str(venv / "bin" / "mlagents-learn"), str(folder / "config.yaml"), f"--env={player}"]
        options = ["--run-id=bench", f"--results-dir={folder}/results", "--seed=1", "--base-port=16400"]
        return follow([*learn, *options, "--torch-device=cpu"]).steps_per_second
