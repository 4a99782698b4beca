"""3DBall with 1, 2 and 4 players whose steps take 2 ms longer than they cost, as those of a real game.

Whole PPO runs, from the end of the first buffer to the end. ``python -m scripts.benchmarks.workers SLOTS PLAYERS`` is
one of them, in a process of its own.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from functools import partial

import yaml

from scripts.benchmarks.measured import Measured
from scripts.benchmarks.ppo import BALL
from scripts.benchmarks.report import Row, interleaved
from trajtrainer.envs.children import Children
from trajtrainer.envs.protocol import Environment, PlayerLogs
from trajtrainer.envs.supervised import SupervisedChildren, SupervisedEnvironment
from trajtrainer.envs.unity_environment import connect_player
from trajtrainer.settings.run import RunSettings
from trajtrainer.settings.yaml.convert import load

# Name -> where the players live and how many there are.
CASES = {
    "1 player in the main process": ("local", 1),
    "1 player in a worker": ("worker", 1),
    "2 players": ("worker", 2),
    "4 players": ("worker", 4),
}
RUNS = 5
STEP_MS = 2.0
MAX_STEPS = 72000
_GAIN = 1.6


def measure() -> list[Row]:
    """All cases in turn, several times."""
    results: list[list[dict[str, float]]] = [[] for _ in CASES]

    def run(index: int, slots: str, players: int) -> float:
        results[index].append(_in_process(slots, players))
        return 0.0

    interleaved([partial(run, index, *case) for index, case in enumerate(CASES.values())], RUNS)
    rows = []
    for name, runs in zip(CASES, results, strict=True):
        rows += [Row(f"3DBall, 2 ms a step, {name}", unit, [run[unit] for run in runs]) for unit in runs[0]]
    speed = "agent-steps/s"
    gains = [four[speed] / one[speed] for one, four in zip(results[0], results[-1], strict=True)]
    return [*rows, Row("3DBall, 2 ms a step, 4 players against 1", "times", gains, _GAIN)]


def _in_process(slots: str, players: int) -> dict[str, float]:
    command = [sys.executable, "-m", "scripts.benchmarks.workers", slots, str(players), str(STEP_MS), str(MAX_STEPS)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def run(slots: str, players: int, step_ms: float, max_steps: int) -> dict[str, float]:
    """One training."""
    from trajtrainer.run.session import train

    made: list[Measured] = []

    def make(settings: RunSettings, _: PlayerLogs) -> Measured:
        connect = partial(
            connect_player, settings=settings.env_settings, engine=settings.engine_settings, log_folder=None
        )
        environment = settings.env_settings
        if slots == "local":
            supervised: Environment = SupervisedEnvironment(connect, environment)
        else:
            supervised = SupervisedChildren(Children(players, connect), environment, 180)
        made.append(Measured(supervised, BALL.hyperparameters["buffer_size"]))
        return made[0]

    with tempfile.TemporaryDirectory() as folder:
        mapping = BALL.settings() | {
            "env_settings": {
                "env_path": "sim:3DBall",
                "env_args": ["--step-ms", str(step_ms)],
                "num_envs": players,
                "seed": 1,
            },
            "checkpoint_settings": {"results_dir": folder, "run_id": "bench"},
        }
        mapping["default_settings"]["max_steps"] = max_steps
        train(load(yaml.safe_dump(mapping), "bench"), None, make)
    return {
        "agent-steps/s": made[0].steps_per_second,
        "forwards/s": made[0].forwards_per_second,
        "% idle collector": made[0].idle_percent,
        "MB per worker": made[0].worker_mb,
    }


if __name__ == "__main__":
    print(json.dumps(run(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4]))))
