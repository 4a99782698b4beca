"""``scripts/bench quick``: measures how many steps and seconds ``config/quick/`` and ML-Agents' settings need.

Both configurations learn each task of ``quick.yaml`` with several seeds. A task is learned in the first window of steps
whose mean reward is 95 % of the way from the reward of random actions to the final reward of ML-Agents' settings. Runs
with ML-Agents' settings end there; runs of ``config/quick/`` continue, to show that the reward remains high. Seconds
are CPU time, including the simulation, which is in the same process.

Each run has its own process and writes one file to ``--results``. A run whose file exists is not repeated unless its
configuration has changed.

``python -m scripts.benchmarks.quick TASK WHO SEED FILE`` makes one run.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import yaml

from scripts.benchmarks.jobs import ROOT, make_runs, write_whole
from scripts.benchmarks.report import Row, shown

TASKS: dict[str, dict[str, Any]] = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
SLOW, QUICK, RIVAL = "slow", "quick", "rival"
LEARNT = 0.95  # fraction of the way from the random to the final reward
WANTED = 2 / 3  # target for steps and seconds, as a fraction of the baseline
_NAMES = {SLOW: "options of ML-Agents", QUICK: "config/quick"}
_COLORS = {SLOW: "#c77d11", QUICK: "#2a86d1"}  # visible on white and on black
_GREY = "#8a8a8a"
_REWARD = "Environment/Cumulative Reward"
# Steps, reward and seconds of each window.
_Windows: TypeAlias = list[tuple[int, float, float]]


@dataclass(frozen=True)
class Work:
    """A run to make, and its file."""

    task: str
    who: str
    seed: int

    def file(self, results: Path) -> Path:
        return results / f"{self.task}-{self.who}-{self.seed}.json"

    def found(self, results: Path) -> Run | None:
        """Return the recorded run, or None if there is none with the current configuration."""
        if not self.file(results).exists():
            return None
        run = Run(**json.loads(self.file(results).read_text(encoding="utf-8")))
        return run if run.settings == settings(self.task, self.who) else None


@dataclass(frozen=True)
class Run:
    """The result of a run.

    Attributes:
        settings: the configuration.
        steps: number of steps at the end of each window.
        rewards: mean reward of each window.
        seconds: CPU time from the start of the run to the end of each window.
        all_seconds: wall time of the whole run.
    """

    settings: dict[str, Any]
    steps: list[int]
    rewards: list[float]
    seconds: list[float]
    all_seconds: float

    def got_to(self, reward: float) -> tuple[float, float]:
        """Return the steps and seconds until the reward was reached; infinite if it was not reached."""
        at = next((at for at, one in enumerate(self.rewards) if one >= reward), None)
        return (math.inf, math.inf) if at is None else (self.steps[at], self.seconds[at])


def learned(task: str) -> float:
    """Return the reward at which a task counts as learned."""
    start, end = TASKS[task]["rewards"]
    return start + LEARNT * (end - start)  # type: ignore[no-any-return]


@cache
def settings(task: str, who: str) -> dict[str, Any]:
    """Return the configuration of a run, including its environment."""
    said = TASKS[task]
    name = f"quick/{task}.yaml" if who == QUICK else said["slow"]
    mapping: dict[str, Any] = yaml.safe_load((ROOT / "config" / name).read_text(encoding="utf-8"))
    env, *arguments = said["env"]
    mapping["env_settings"] = {"env_path": env, "env_args": arguments}
    return mapping


def measure(arguments: argparse.Namespace) -> list[Row]:
    """Make the missing runs, plot the curves, and return the figures of all existing runs."""
    results: Path = arguments.results
    results.mkdir(parents=True, exist_ok=True)
    tasks = [task for task in arguments.tasks or TASKS if task in TASKS]
    for works in (rivals(tasks), planned(tasks, arguments.seeds)):
        missing = [work for work in works if work.found(results) is None]
        runs = [(work.file(results), [work.task, work.who, str(work.seed)]) for work in missing]
        make_runs("scripts.benchmarks.quick", runs, arguments)
    found = {task: _read(task, arguments.seeds, results) for task in tasks}
    found = {task: runs for task, runs in found.items() if all(runs.values())}
    (results / "quick.md").write_text("\n".join(_table(found)) + "\n", encoding="utf-8")
    if found:
        _plot(found, results / "quick.svg")
    return [row for task, runs in found.items() for row in _rows(task, runs)]


def rivals(tasks: Sequence[str]) -> Iterator[Work]:
    """Yield the runs to train the opponents of self-play tasks."""
    for task in tasks:
        if "games" in TASKS[task]:
            yield Work(task, RIVAL, 0)


def planned(tasks: Sequence[str], seeds: Sequence[int]) -> Iterator[Work]:
    """Yield the runs seed by seed, alternating between both configurations."""
    for seed in seeds:
        for task in tasks:
            yield Work(task, SLOW, seed)
            yield Work(task, QUICK, seed)


def _read(task: str, seeds: Sequence[int], results: Path) -> dict[str, list[Run]]:
    """Return configuration -> existing runs, in the order of their seeds."""
    runs = {who: [Work(task, who, seed).found(results) for seed in seeds] for who in (SLOW, QUICK)}
    return {who: [run for run in some if run is not None] for who, some in runs.items()}


def _rows(task: str, runs: dict[str, list[Run]]) -> Iterator[Row]:
    reward = learned(task)
    for at, unit in enumerate(("steps", "seconds")):
        slow, quick = ([run.got_to(reward)[at] for run in runs[who]] for who in (SLOW, QUICK))
        yield Row(f"{task}, {reward:.3g} by {TASKS[task]['slow']}", unit, slow)
        yield Row(f"{task}, {reward:.3g} by config/quick", unit, quick, WANTED * statistics.median(slow))


def _table(found: dict[str, dict[str, list[Run]]]) -> Iterator[str]:
    yield (
        "| `config/quick/` | baseline | target reward | steps of the baseline | steps of `config/quick/` | ratio of "
        "steps | CPU seconds, baseline → `config/quick/` | ratio of seconds |"
    )
    yield "| --- | --- | ---: | --- | --- | ---: | --- | ---: |"
    for task, runs in found.items():
        reward = learned(task)
        steps, seconds = ([[run.got_to(reward)[at] for run in runs[who]] for who in (SLOW, QUICK)] for at in (0, 1))
        (slow_s, quick_s) = map(statistics.median, seconds)
        other = f"`{TASKS[task]['slow'].removesuffix('.yaml')}`"
        cells = [f"`{task}`", other, f"{reward:.3g}", *map(_several, steps), _part(*map(statistics.median, steps))]
        yield f"| {' | '.join([*cells, f'{shown(slow_s)} → {shown(quick_s)}', _part(slow_s, quick_s)])} |"


def _several(figures: Sequence[float]) -> str:
    """Format the median and the figures of all seeds."""
    return f"**{shown(statistics.median(figures))}** ({' '.join(map(shown, figures))})"


def _part(slow: float, quick: float) -> str:
    return "" if math.inf in (slow, quick) else f"{quick / slow:.2f}"


def _plot(found: dict[str, dict[str, list[Run]]], path: Path) -> None:
    """Plot the training rewards of all seeds, with one chart per task and a transparent background."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    colors = dict.fromkeys(["text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"], _GREY)
    look: Any = {**colors, "font.size": 8, "svg.fonttype": "none", "svg.hashsalt": "quick", "legend.frameon": False}
    with matplotlib.rc_context(look):
        columns = min(2, len(found))
        rows = -(-len(found) // columns)
        figure, axes = pyplot.subplots(rows, columns, figsize=(4.0 * columns, 2.3 * rows), squeeze=False)
        for place in axes.flat[len(found) :]:
            place.set_axis_off()
        for place, (task, runs) in zip(axes.flat, found.items(), strict=False):
            _chart(place, task, runs)
        axes.flat[0].legend(loc="lower right")
        figure.tight_layout()
        figure.savefig(path, transparent=True, metadata={"Date": None})
        pyplot.close(figure)


def _chart(place: Any, task: str, runs: dict[str, list[Run]]) -> None:
    for who, some in runs.items():
        for number, run in enumerate(some):
            label = None if number else _NAMES[who]
            place.plot(np.array(run.steps) / 1000, run.rewards, label=label, color=_COLORS[who], linewidth=1.2)
    place.axhline(learned(task), color=_GREY, linestyle=":", linewidth=1)
    place.set_title(f"{task}, thousand steps", fontsize=8)
    for side in ("top", "right"):
        place.spines[side].set_visible(False)


def run(task: str, who: str, seed: int, file: Path) -> None:
    """Make one run and write its file."""
    begin_s, rival = time.perf_counter(), file.with_name(f"{task}-{RIVAL}")
    windows: _Windows = []
    if who == RIVAL:
        _train_rival(task, seed, rival)
    elif "games" in TASKS[task]:
        windows = _play(task, who, seed, rival)
    else:
        windows = _collect(task, who, seed)
    steps, rewards, seconds = map(list, zip(*windows, strict=True)) if windows else ([], [], [])
    found = Run(settings(task, who), steps, rewards, seconds, time.perf_counter() - begin_s)
    write_whole(file, json.dumps(vars(found)))


def _collect(task: str, who: str, seed: int) -> _Windows:
    """Train, and return the mean episode rewards of the windows."""
    from trajtrainer.run.api.epochs import EpochStats
    from trajtrainer.run.api.learn import learn

    said, begin_cpu_s = TASKS[task], time.process_time()
    windows: _Windows = []

    def is_enough(epoch: EpochStats) -> bool:
        behavior = epoch.behavior
        if (returns := behavior.statistics.get(said.get("tag", _REWARD))) is not None and returns.number:
            windows.append((behavior.total_steps, returns.mean, time.process_time() - begin_cpu_s))
            return who == SLOW and returns.mean >= learned(task)
        return False

    with tempfile.TemporaryDirectory() as folder:
        learn(
            settings(task, who),
            seed=seed,
            run_id="bench",
            results_dir=folder,
            epoch_steps=said["window"],
            stop_when=is_enough,
        )
    return windows


def _play(task: str, who: str, seed: int, rival: Path) -> _Windows:
    """Train, and use each checkpoint's score against the rival as its reward. Steps are the sum over all behaviors."""
    from trajtrainer.run.api.learn import learn
    from trajtrainer.run.hooks import SavedCheckpoint

    said, begin_cpu_s = TASKS[task], time.process_time()
    mapping = copy.deepcopy(settings(task, who))
    for behavior in mapping["behaviors"].values():
        behavior["checkpoint_interval"] = said["window"]
    steps: dict[str, int] = {}
    windows: _Windows = []

    def play(saved: SavedCheckpoint) -> None:
        steps[saved.behavior] = saved.step
        if len(steps) == len(mapping["behaviors"]) and not saved.is_last:  # the last one has the same step
            seconds = time.process_time() - begin_cpu_s  # excludes the games, which run in another process
            share = _share_won(task, saved.path.parents[1], rival)
            windows.append((sum(steps.values()), share, seconds))

    with tempfile.TemporaryDirectory() as folder:
        learn(
            mapping,
            seed=seed,
            run_id="bench",
            results_dir=folder,
            epoch_steps=said["window"],
            on_checkpoint=play,
            stop_when=lambda _: who == SLOW and windows and windows[-1][1] >= learned(task),
        )
    return windows


def _train_rival(task: str, seed: int, rival: Path) -> None:
    """Train the run that other runs play against."""
    from trajtrainer.run.api.learn import learn

    learn(settings(task, RIVAL), seed=seed, run_id=rival.name, results_dir=rival.parent, force=True)


def _share_won(task: str, run: Path, rival: Path) -> float:
    """Return the fraction of games that a run wins against the rival, over both sides; a draw counts as half a win."""
    env, *arguments = TASKS[task]["env"]
    games = ["--games", str(TASKS[task]["games"]), "--seed", "1"]
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder) / "games.json"
        command = [sys.executable, "-m", "trajtrainer", "tournament", str(run), str(rival), "--quiet", *games]
        command += ["--env", env, "--json", str(found), "--env-args", *arguments]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        models = json.loads(found.read_text(encoding="utf-8"))["models"]
    (won,) = (one for one in models if one["name"] == str(run))
    return float((won["wins"] + won["draws"] / 2) / won["games"])


if __name__ == "__main__":
    run(sys.argv[1], sys.argv[2], int(sys.argv[3]), Path(sys.argv[4]))
