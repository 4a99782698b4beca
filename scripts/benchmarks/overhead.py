"""Measures the overhead of monitoring a run: timers, statistics, and the progress view in a terminal.

Each measurement is a complete PPO run on a pseudo-terminal: ``python -m scripts.benchmarks.overhead AGENTS FILE``
writes percentages of the time from the first reset to the end of training to FILE.
"""

from __future__ import annotations

import io
import json
import os
import pty
import random
import statistics
import subprocess
import sys
import tempfile
import time
import timeit
from collections.abc import Callable
from dataclasses import replace
from functools import partial, wraps
from pathlib import Path
from typing import Any, Self

import yaml
from rich.console import Console

from scripts.benchmarks.ppo import BALL, Case
from scripts.benchmarks.report import Row, interleaved
from trajtrainer.core.stats import StatsReporter
from trajtrainer.core.timers import TimerNode, Timers
from trajtrainer.run.live_view import LiveView
from trajtrainer.run.logs import console_logging
from trajtrainer.run.progress import RunProgress
from trajtrainer.run.session import train
from trajtrainer.run.writers import Throughput
from trajtrainer.settings.yaml.convert import load

# Number of agents -> max_steps. With a single agent, there are the most messages per update.
AGENTS = {12: 144_000, 1: 15_000}
RUNS = 5
_BAR = 1.0  # target for timers, rates and view together, in percent
_CALLS = 20_000  # number of calls for functions that are timed in isolation
_WINDOW = 10  # loop steps with timers on or off
_STATISTICS = "statistics and their writers"  # training statistics, which are not part of the sum


def measure() -> list[Row]:
    """Measure all cases several times, alternating."""
    results: dict[int, list[dict[str, float]]] = {agents: [] for agents in AGENTS}

    def run(agents: int) -> float:
        results[agents].append(_on_a_terminal(agents))
        return 0.0

    interleaved([partial(run, agents) for agents in AGENTS], RUNS)
    rows = []
    for agents, runs in results.items():
        work = f"overhead, 3DBall config, {agents} agents x 8 floats"
        rows += [Row(f"{work}: {part}", "%", [run[part] for run in runs]) for part in runs[0]]
        together = [sum(run.values()) - run[_STATISTICS] for run in runs]
        rows.append(Row(f"{work}: timers, tags and view", "%", together, _BAR))
    return rows


def _on_a_terminal(agents: int) -> dict[str, float]:
    """Run the benchmark in its own process on a pseudo-terminal, and discard the output."""
    ours, its = pty.openpty()
    environment = {name: value for name, value in os.environ.items() if name != "CI"} | {"TERM": "xterm-256color"}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "figures.json"
        command = [sys.executable, "-m", "scripts.benchmarks.overhead", str(agents), str(file)]
        with subprocess.Popen(command, stdin=its, stdout=its, stderr=its, env=environment) as process:
            os.close(its)
            shown = b""
            while piece := _read(ours):
                shown = (shown + piece)[-2000:]
            os.close(ours)
        if process.returncode:
            raise RuntimeError(shown.decode(errors="replace"))
        figures: dict[str, float] = json.loads(file.read_text())
    return figures


def _read(terminal: int) -> bytes:
    """Read from a pseudo-terminal; return b"" at the end, where ``os.read`` raises an error."""
    try:
        return os.read(terminal, 65536)
    except OSError:
        return b""


def run(case: Case) -> dict[str, float]:
    """Train, and return part -> percentage of the training time."""
    rates, reported, drawn = _Watch(), _Watch(), _Watch()
    Throughput.__call__ = rates.over(Throughput.__call__)  # type: ignore[method-assign]
    LiveView.update = drawn.over(LiveView.update)  # type: ignore[method-assign]
    for name in ("add", "add_many", "write"):
        setattr(StatsReporter, name, reported.over(getattr(StatsReporter, name)))
    timers = _Switched()
    with tempfile.TemporaryDirectory() as folder, console_logging(debug=False) as handler:
        mapping = case.settings() | {
            "env_settings": {"env_path": case.player[0], "env_args": case.player[1:], "base_port": 16100, "seed": 1},
            "checkpoint_settings": {"results_dir": folder, "run_id": "bench"},
        }
        train(load(yaml.safe_dump(mapping), "bench"), handler, timers=timers)
    spent = {
        "timers": timers.seconds,
        "Perf/* tags": rates.seconds,
        "progress view": drawn.seconds + timers.num_steps * _cost_of_asking(),
        _STATISTICS: reported.seconds - rates.seconds,
    }
    total = timers.to_dict()["children"]["TrainerController.start_learning"]["total"]
    return {part: 100 * seconds / total for part, seconds in spent.items()}


class _Watch:
    """Sums up the time spent in some functions. Nested calls are counted once."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._depth = 0

    def over(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            self._depth += 1
            begin = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                self._depth -= 1
                if not self._depth:
                    self.seconds += time.perf_counter() - begin

        return timed


class _Switched(Timers):
    """Timers that are on in some steps of the loop and off in neighboring ones. The difference in time is their cost.

    Timing a block in isolation would give half of that, because everything would be in the processor's caches.
    """

    def __init__(self) -> None:
        super().__init__()
        self.num_steps = 0
        self._differences: list[float] = []
        self._is_on = self._is_first = True
        self._begun = self._former_s = 0.0
        self._random = random.Random(0)
        self._off: Any = _Nothing()

    def __call__(self, name: str) -> TimerNode:
        if name == "env_step":
            self._next_step()
        if self._is_on:
            return super().__call__(name)
        nothing: TimerNode = self._off
        return nothing

    def _next_step(self) -> None:
        self.num_steps += 1
        if self.num_steps % _WINDOW:
            return
        spent_s = time.thread_time() - self._begun
        if self._is_first:
            self._former_s = spent_s
            self._is_on = not self._is_on
        else:
            self._differences.append((spent_s - self._former_s) * (1 if self._is_on else -1))
            self._is_on = self._random.random() < 0.5  # random, so that periodic work affects both equally
        self._is_first = not self._is_first
        self._begun = time.thread_time()

    @property
    def seconds(self) -> float:
        """Estimate how much longer all steps would take with timers than without."""
        fifth = len(self._differences) // 5  # drop outliers at both ends, which are caused by updates
        return statistics.fmean(sorted(self._differences)[fifth:-fifth]) / _WINDOW * self.num_steps


class _Nothing:
    """A substitute for a timer node that does nothing."""

    part = staticmethod(len)  # accepts a name, and takes almost no time

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def _cost_of_asking() -> float:
    """Return the time in seconds that the loop needs to check whether the view must be updated."""
    view = LiveView(Console(file=io.StringIO(), force_terminal=True))
    view.update(RunProgress([]))
    try:
        return min(timeit.repeat(view.due, number=_CALLS, repeat=5)) / _CALLS
    finally:
        view.close()


def _case(agents: int) -> Case:
    return replace(BALL, player=[*BALL.player, "--agents", str(agents)], max_steps=AGENTS[agents])


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(json.dumps(run(_case(int(sys.argv[1])))))
