"""3DBall with 1, 2 and 4 players whose steps take 2 ms longer than they cost, as those of a real game.

Whole PPO runs, from the end of the first buffer to the end. ``python -m scripts.benchmarks.workers SEATS PLAYERS`` is
one of them, in a process of its own.
"""

from __future__ import annotations

import json
import multiprocessing
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import yaml

from scripts.benchmarks.ppo import BALL
from scripts.benchmarks.report import Row, interleaved
from trajtrainer.envs.local_seat import LocalSeat
from trajtrainer.envs.protocol import Parameters
from trajtrainer.envs.unity_environment import PlayerLogs, connect_player
from trajtrainer.envs.worker_seat import WorkerSeats
from trajtrainer.envs.workers import Workers
from trajtrainer.settings.convert import load
from trajtrainer.settings.run import RunSettings
from trajtrainer.steps import ActionBatch, EnvironmentEvent

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

    def run(index: int, seats: str, players: int) -> float:
        results[index].append(_in_process(seats, players))
        return 0.0

    interleaved([partial(run, index, *case) for index, case in enumerate(CASES.values())], RUNS)
    rows = []
    for name, runs in zip(CASES, results, strict=True):
        rows += [Row(f"3DBall, 2 ms a step, {name}", unit, [run[unit] for run in runs]) for unit in runs[0]]
    speed = "agent-steps/s"
    gains = [four[speed] / one[speed] for one, four in zip(results[0], results[-1], strict=True)]
    return [*rows, Row("3DBall, 2 ms a step, 4 players against 1", "times", gains, _GAIN)]


def _in_process(seats: str, players: int) -> dict[str, float]:
    command = [sys.executable, "-m", "scripts.benchmarks.workers", seats, str(players), str(STEP_MS), str(MAX_STEPS)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


class Measured:
    """An environment that counts, from the end of the first buffer on."""

    def __init__(self, environment: Workers) -> None:
        self._environment = environment
        self.num_workers = environment.num_workers
        self.steps = self.waits = 0
        self.waited_s = 0.0
        self.begin_s = self.end_s = 0.0
        self.worker_mb = 0.0
        self._before = 0

    def wait(self, timeout_s: float | None = None) -> list[EnvironmentEvent]:
        begin_s = time.perf_counter()
        events = self._environment.wait(timeout_s)
        now_s = time.perf_counter()
        steps = sum(batch.num_decisions for event in events for batch in event.steps.values())
        if not self.begin_s:
            self._before += steps
            if self._before >= BALL.hyperparameters["buffer_size"]:
                self.begin_s = now_s
            return events
        self.end_s = now_s
        self.waited_s += now_s - begin_s
        self.steps += steps
        self.waits += bool(steps)
        return events

    def reset(self, parameters: Parameters) -> None:
        self._environment.reset(parameters)

    def set_parameters(self, parameters: Parameters) -> None:
        self._environment.set_parameters(parameters)

    def send(self, worker: int, actions: Mapping[str, ActionBatch]) -> None:
        self._environment.send(worker, actions)

    def close(self) -> None:
        processes = [process.pid for process in multiprocessing.active_children()]
        if processes and not self.worker_mb:
            self.worker_mb = sum(map(_resident_mb, processes)) / len(processes)
        self._environment.close()

    def kill(self) -> None:
        self._environment.kill()

    def figures(self) -> dict[str, float]:
        seconds = self.end_s - self.begin_s
        return {
            "agent-steps/s": self.steps / seconds,
            "forwards/s": self.waits / seconds,
            "% idle collector": 100 * self.waited_s / seconds,
            "MB per worker": self.worker_mb,
        }


def run(seats: str, players: int, step_ms: float, max_steps: int) -> dict[str, float]:
    """One training."""
    from trajtrainer.runtime.learn import train

    made: list[Measured] = []

    def make(settings: RunSettings, _: PlayerLogs) -> Measured:
        connect = partial(
            connect_player, settings=settings.env_settings, engine=settings.engine_settings, log_folder=None
        )
        place = LocalSeat(connect) if seats == "local" else WorkerSeats(players, connect, 180)
        made.append(Measured(Workers(place, settings.env_settings)))
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
    return made[0].figures()


def _resident_mb(pid: int | None) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return float("nan")


if __name__ == "__main__":
    print(json.dumps(run(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4]))))
