"""``scripts/bench quick --step-ms MS ...``: measures how long a user waits for a policy.

Measures the wall time from the start of the trainer's process to the first summary whose mean reward is 95 % of the way
from the reward of random actions to the final reward of ML-Agents' settings. Players take ``MS`` milliseconds per
exchange. Three trainers alternate, each with its player in another process: trajtrainer with ``config/quick/`` (with
``TASK-slow.yaml`` for players that take longer than ``BREAK_EVEN_MS``), trajtrainer with ML-Agents' YAML, and ML-Agents
(``--mlagents VENV``). ``--times N`` stops the last two once they have taken ``N`` times as long as the first. A run
that is stopped, or ends at its ``max_steps``, is censored: it counts as infinitely long in medians, and its time is a
lower bound.

Self-play tasks are left out, because their rewards do not measure progress.

Each run writes one file to ``--results``. A run whose file exists is not repeated unless its configuration changed.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import re
import shlex
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from scripts.benchmarks import quick
from scripts.benchmarks.jobs import ROOT, write_whole
from scripts.benchmarks.report import Row, shown
from trajtrainer.settings.suggestions import BREAK_EVEN_MS

MLAGENTS, SAME, QUICK = "mlagents", "same", "quick"
_NAMES = {MLAGENTS: "ML-Agents", SAME: "trajtrainer, same YAML", QUICK: "trajtrainer, config/quick"}
_SUMMARY = re.compile(
    r"Step: (\d+)\. Time Elapsed: [\d.]+ s\. Mean Reward: (-?\d+\.\d+)(?:\. Mean Group Reward: (-?\d+\.\d+))?"
)
_LONGEST_S = 3600.0


@dataclass(frozen=True)
class Work:
    """A run to make.

    Attributes:
        step_ms: time that the player takes per exchange.
    """

    task: str
    trainer: str
    step_ms: float
    seed: int

    def file(self, results: Path) -> Path:
        return results / f"{self.task}-{self.trainer}-{self.step_ms:g}ms-{self.seed}.json"

    def found(self, results: Path) -> Run | None:
        """Return the recorded run, or None if there is none with the current configuration."""
        if not self.file(results).exists():
            return None
        run = Run(**json.loads(self.file(results).read_text(encoding="utf-8")))
        return run if run.settings == self.settings() else None

    def settings(self) -> dict[str, Any]:
        """Return the configuration without the environment, with one summary per window of ``quick.yaml``."""
        who = quick.QUICK if self.trainer == QUICK else quick.SLOW
        of_slow = ROOT / "config" / "quick" / f"{self.task}-slow.yaml"
        if self.trainer == QUICK and self.step_ms > BREAK_EVEN_MS and of_slow.exists():
            mapping = yaml.safe_load(of_slow.read_text(encoding="utf-8"))
        else:
            mapping = {key: value for key, value in quick.settings(self.task, who).items() if key != "env_settings"}
        window = quick.TASKS[self.task]["window"]
        behaviors = {name: {**each, "summary_freq": window} for name, each in mapping["behaviors"].items()}
        return {**mapping, "behaviors": behaviors}


@dataclass(frozen=True)
class Run:
    """The result of a run.

    Attributes:
        steps: number of steps at each summary.
        seconds: wall time from the start of the process to each summary.
        rewards: mean reward of each summary.
        learned: whether the last summary reached the target reward. Otherwise, the run was stopped or reached its
            ``max_steps``.
    """

    settings: dict[str, Any]
    steps: list[int]
    seconds: list[float]
    rewards: list[float]
    learned: bool

    @property
    def cost(self) -> tuple[float, float]:
        """Steps and seconds until the target reward; infinite if censored."""
        return (self.steps[-1], self.seconds[-1]) if self.learned else (math.inf, math.inf)


def measure(arguments: argparse.Namespace) -> list[Row]:
    """Make the missing runs one at a time, write the table, and return the figures of all runs that exist."""
    # Shells start background jobs with SIGINT ignored, which trainers would inherit.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    results: Path = arguments.results
    results.mkdir(parents=True, exist_ok=True)
    tasks = [
        task for task in arguments.tasks or quick.TASKS if task in quick.TASKS and "games" not in quick.TASKS[task]
    ]
    trainers = [QUICK, SAME, MLAGENTS] if arguments.mlagents else [QUICK, SAME]
    end_s = time.monotonic() + 60 * arguments.minutes if arguments.minutes else math.inf
    for work in planned(tasks, trainers, arguments.step_ms, arguments.seeds):
        if work.found(results) is None and time.monotonic() < end_s:
            longest_s = _LONGEST_S
            if arguments.times and work.trainer != QUICK:
                quickest = replace(work, trainer=QUICK).found(results)
                longest_s = arguments.times * quickest.seconds[-1] if quickest else _LONGEST_S
            run = train(work, arguments.mlagents, longest_s)
            write_whole(work.file(results), json.dumps(vars(run)))
            steps, seconds = run.cost
            print(
                f"{time.strftime('%H:%M:%S')} {work.file(results).stem}: {steps:g} steps, {seconds:.1f} s", flush=True
            )
    found = {
        (task, ms): {
            trainer: [each for seed in arguments.seeds if (each := Work(task, trainer, ms, seed).found(results))]
            for trainer in (MLAGENTS, SAME, QUICK)
        }
        for ms in arguments.step_ms
        for task in tasks
    }
    (results / "policy_time.md").write_text("\n".join(table(found)) + "\n", encoding="utf-8")
    return [
        Row(f"{task}, {ms:g} ms per exchange, {_NAMES[trainer]}", "s", [run.cost[1] for run in runs])
        for (task, ms), each in found.items()
        for trainer, runs in each.items()
        if runs
    ]


def planned(
    tasks: Sequence[str], trainers: Sequence[str], step_ms: Sequence[float], seeds: Sequence[int]
) -> Iterator[Work]:
    """Yield the runs seed by seed, alternating between trainers."""
    for seed in seeds:
        for ms in step_ms:
            for task in tasks:
                for trainer in trainers:
                    yield Work(task, trainer, ms, seed)


def train(work: Work, venv: Path | None, longest_s: float = _LONGEST_S) -> Run:
    """Train until the target reward is reached, the run ends, or the time limit is exceeded.

    Raises:
        RuntimeError: the trainer failed.
    """
    simulation, *player_options = quick.TASKS[work.task]["env"]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        config, player = folder / "config.yaml", folder / "player.x86_64"
        config.write_text(yaml.safe_dump(work.settings(), sort_keys=False), encoding="utf-8")
        served = [sys.executable, "-m", "trajtrainer.envs.sim", simulation.removeprefix("sim:"), *player_options]
        served += ["--step-ms", f"{work.step_ms:g}"] if work.step_ms else []
        player.write_text(f'#!/bin/sh\nexec {shlex.join(served)} "$@"\n', encoding="utf-8")
        player.chmod(0o755)
        if work.trainer == MLAGENTS:
            assert venv is not None
            command = [str(venv / "bin" / "mlagents-learn")]
        else:
            command = [sys.executable, "-m", "trajtrainer", "learn"]
        command += [str(config), f"--env={player}", "--run-id=bench", f"--results-dir={folder / 'results'}"]
        command += [f"--seed={work.seed}", f"--base-port={_free_port()}", "--torch-device=cpu", "--no-graphics"]
        return followed(work, command, longest_s)


def _free_port() -> int:
    """Return a free port below the range for outgoing connections."""
    while True:
        port = random.randrange(16_000, 32_000)
        with socket.socket() as tried:
            try:
                tried.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


def summary_in(line: str) -> tuple[int, float] | None:
    """Return the step and the mean (group) reward if a line is a summary; otherwise None."""
    found = _SUMMARY.search(line)
    return None if found is None else (int(found[1]), float(found[3] or found[2]))


def followed(work: Work, command: list[str], longest_s: float) -> Run:
    """Read the summaries that a trainer prints until the target reward. Both trainers use the same format."""
    goal = quick.learned(work.task)
    steps, seconds, rewards, lines = [], [], [], []
    begin_s = time.monotonic()
    learned = is_stopped = False
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line)
            now_s = time.monotonic() - begin_s
            if not is_stopped and (found := summary_in(line)):
                steps.append(found[0])
                seconds.append(now_s)
                rewards.append(found[1])
                learned = rewards[-1] >= goal
                is_stopped = learned or now_s > longest_s
                if is_stopped:
                    process.send_signal(signal.SIGINT)  # both trainers then save and exit
    if not is_stopped and process.returncode:
        raise RuntimeError("".join(lines[-20:]))
    return Run(work.settings(), steps, seconds, rewards, learned)


def table(found: dict[tuple[str, float], dict[str, list[Run]]]) -> Iterator[str]:
    """Yield a table row per task and pace: median seconds and steps, and the speedup over ML-Agents."""
    yield "| simulation | ms per exchange | reward | ML-Agents | same YAML | `config/quick/` | times as fast |"
    yield "| --- | ---: | ---: | ---: | ---: | ---: | ---: |"
    for (task, ms), runs in found.items():
        medians = {trainer: statistics.median(run.cost[1] for run in each) for trainer, each in runs.items() if each}
        if QUICK not in medians:
            continue
        cells = [_cell(runs[trainer]) for trainer in (MLAGENTS, SAME, QUICK)]
        theirs, ours = medians.get(MLAGENTS, math.nan), medians[QUICK]
        if math.isinf(theirs):  # censored: a lower bound
            times = f"> {statistics.median(run.seconds[-1] for run in runs[MLAGENTS]) / ours:.1f}"
        else:
            times = "" if math.isnan(theirs) or math.isinf(ours) else f"{theirs / ours:.1f}"
        yield f"| `{task}` | {ms:g} | {quick.learned(task):.3g} | {' | '.join([*cells, times])} |"


def _cell(runs: Sequence[Run]) -> str:
    if not runs:
        return ""
    steps, seconds = (statistics.median(run.cost[at] for run in runs) for at in (0, 1))
    if math.isinf(seconds):
        return f"never (> {shown(statistics.median(run.seconds[-1] for run in runs))} s)"
    return f"{shown(seconds)} s, {shown(steps)} steps"
