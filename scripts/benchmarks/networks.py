"""End-to-end benchmarks of networks other than MLPs: images, memory, lists of varying length, goal conditioning."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from scripts.benchmarks.ppo import Case, Figures, follow
from scripts.benchmarks.report import Row, interleaved

DISCRETE = ("--continuous", "0", "--branches", "4")
CAMERA = Case(
    "PPO, PNG camera (3,64,84), simple encoder, 16 agents",
    ["sim:Bench", "--png", "--agents", "16", "--observation-size", "0", "--picture", "3,64,84", *DISCRETE],
    {"batch_size": 256, "buffer_size": 2560},
    {"hidden_units": 128, "num_layers": 2, "vis_encode_type": "simple"},
    64,
    2560,
    12800,
)
RECURRENT = Case(
    "PPO, LSTM of 128, sequences of 64, 16 agents",
    ["sim:Bench", "--agents", "16", "--observation-size", "30", *DISCRETE],
    {"batch_size": 128, "buffer_size": 1024},
    {"hidden_units": 128, "num_layers": 2, "memory": {"memory_size": 128, "sequence_length": 64}},
    64,
    2048,
    20480,
)
LISTS = Case(
    "PPO, lists of up to 20 x 6, 16 agents",
    ["sim:Sorter", "--agents", "16"],
    {"batch_size": 512, "buffer_size": 4096},
    {"hidden_units": 128, "num_layers": 2},
    256,
    4096,
    24576,
)
# ML-Agents reaches 180 agent-steps/s with this configuration and image size on a machine with 2 cores.
GRID_BAR = 2.5 * 180
GRID_WORLD = Case(
    "PPO, GridWorld config, hypernetwork, picture (3,20,20), 9 agents",
    ["sim:GridWorld", "--camera", "20,20"],
    {"batch_size": 32, "buffer_size": 256, "learning_rate": 3e-4, "beta": 0.005},
    {"hidden_units": 128, "num_layers": 1},
    5,
    1000,
    5000,
    GRID_BAR,
    {"reward_signals": {"extrinsic": {"gamma": 0.9, "strength": 1.0}}},
)
CASES = (CAMERA, RECURRENT, LISTS, GRID_WORLD)
RUNS = 3
REPLAY_STEPS = 20480
REPLAY_BAR_MB = 450
# Kind of work in the main process -> its timers.
SHARES = {
    "exchange with the player": ("env_wait", "env_send"),
    "recording": ("record",),
    "acting": ("TorchPolicy.evaluate",),
    "updating": ("process_trajectory", "_update_policy"),
}


@dataclass(frozen=True)
class Result:
    figures: Figures
    shares: dict[str, float]


def measure() -> list[Row]:
    results: list[list[Result]] = [[] for _ in CASES]

    def run(index: int) -> float:
        results[index].append(train(CASES[index]))
        return 0.0

    interleaved([partial(run, index) for index in range(len(CASES))], RUNS)
    rows = []
    for case, runs in zip(CASES, results, strict=True):
        rows.append(Row(case.name, "agent-steps/s", [run.figures.steps_per_second for run in runs], case.bar))
        rows += [Row(f"... of it {share}", "%", [run.shares[share] for run in runs]) for share in SHARES]
    return [*rows, *memory()]


def memory() -> list[Row]:
    """Measure the memory of a buffer full of images, as the difference to a process with a tenth of it."""
    large, small = (
        max(megabytes for *_, megabytes in train(camera_with_buffer(steps)).figures.summaries)
        for steps in (REPLAY_STEPS, REPLAY_STEPS // 10)
    )
    return [
        Row(f"{REPLAY_STEPS} steps of a PNG camera (3,64,84)", "MB", [(large - small) / 0.9], REPLAY_BAR_MB),
        Row("... the whole process with them", "MB", [large]),
    ]


def camera_with_buffer(steps: int) -> Case:
    """Return a case that collects ``steps`` steps and ends before the first update."""
    return Case(
        CAMERA.name,
        CAMERA.player,
        {"batch_size": 256, "buffer_size": steps},
        CAMERA.network,
        CAMERA.time_horizon,
        1000,
        steps - 1,
    )


def train(case: Case) -> Result:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "config.yaml").write_text(yaml.safe_dump(case.settings()))
        command = [sys.executable, "-m", "trajtrainer", "learn", str(folder / "config.yaml"), "--run-id=bench"]
        command += [f"--results-dir={folder}", "--seed=1", "--base-port=16200", f"--env={case.player[0]}"]
        figures = follow([*command, "--env-args", *case.player[1:]])
        timers = json.loads((folder / "bench" / "run_logs" / "timers.json").read_text())
    loop = timers["children"]["TrainerController.start_learning"]["children"]["TrainerController.advance"]
    shares = {name: 100 * sum(_total(loop, timer) for timer in of) / loop["total"] for name, of in SHARES.items()}
    return Result(figures, shares)


def _total(node: Mapping[str, Any], timer: str) -> float:
    """Return the total seconds of all timers with this name below a node."""
    children: Mapping[str, Any] = node.get("children") or {}
    return sum(child["total"] if name == timer else _total(child, timer) for name, child in children.items())
