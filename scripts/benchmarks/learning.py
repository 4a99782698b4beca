"""``scripts/bench learning``: how well is learned, on the tasks of ``learning.yaml``, with several seeds of each.

Each run is a process of its own with one thread, and ``--jobs`` of them go side by side. Ours learns by a configuration
of ``config/``; with ``--sb3 VENV`` Stable-Baselines3 learns the same environment in turn, with the hyperparameters of
its zoo. What is learned plays ``EPISODES`` episodes with its likeliest actions, or with drawn ones where the task says
``stochastic``; of several agents the reward in the last tenth of the training counts. Every run leaves one file in
``--results``; one that is there is not run again, so the table goes on growing however often the program is stopped.
What ``docs/benchmarks/runs`` has may be copied there first.

``python -m scripts.benchmarks.learning TASK SEED FILE`` is one run of ours.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from scripts.benchmarks.report import Row
from trajtrainer.policies.folder.series import Series, read_scalars
from trajtrainer.tools.spread import aggregate, interquartile_mean, interval, late_mean

ROOT = Path(__file__).resolve().parents[2]
TASKS: dict[str, dict[str, Any]] = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
EPISODES = 50
OURS, THEIRS = "trajtrainer", "sb3"
_SB3_PROGRAM = Path(__file__).with_name("learning_sb3.py")
_REWARD = "Environment/Cumulative Reward"
_POINTS = 200  # of a curve
_ONE_AGENT = "gym:"  # begins an env_path


@dataclass(frozen=True)
class Work:
    """One run."""

    task: str
    who: str
    seed: int

    def file(self, results: Path) -> Path:
        return results / f"{self.task}-{self.who}-{self.seed}.json"


def add_arguments(parser: argparse.ArgumentParser, tasks: Sequence[str]) -> None:
    group = parser.add_argument_group("learning and quick")
    group.add_argument("--tasks", nargs="+", metavar="TASK", choices=tasks, help=f"some of {', '.join(tasks)}")
    group.add_argument("--seeds", type=_seeds, default=range(1, 6), metavar="N", help="1 to N, or M-N (default: 5)")
    group.add_argument("--jobs", type=int, default=os.cpu_count() or 1, metavar="N", help="side by side")
    group.add_argument("--minutes", type=float, metavar="N", help="begin no run after so many")
    group.add_argument("--results", type=Path, default=Path("bench-learning"), metavar="FOLDER")


def _seeds(text: str) -> range:
    first, _, last = text.rpartition("-")
    return range(int(first or 1), int(last) + 1)


def measure(arguments: argparse.Namespace) -> list[Row]:
    """Make the runs that are missing, plot the curves, and return the figures of all that are there."""
    results: Path = arguments.results
    results.mkdir(parents=True, exist_ok=True)
    tasks = [task for task in arguments.tasks or TASKS if task in TASKS]
    end_s = time.monotonic() + 60 * arguments.minutes if arguments.minutes else float("inf")
    missing = [work for work in planned(tasks, arguments.seeds, arguments.sb3) if not work.file(results).exists()]
    with ThreadPoolExecutor(arguments.jobs) as threads:
        list(threads.map(partial(_run, results=results, sb3=arguments.sb3, end_s=end_s), missing))
    found = {task: _read(results, task) for task in tasks}
    _plot(found, results / "learning.png")
    _write_table(found, results / "learning.md")
    return [row for task, runs in found.items() for row in _rows(task, runs)]


def planned(tasks: Sequence[str], seeds: Sequence[int], sb3: Path | None) -> Iterator[Work]:
    """Yield the runs, ours and theirs in turn, the first seed of all tasks first."""
    for seed in seeds:
        for task in tasks:
            yield Work(task, OURS, seed)
            if sb3 is not None and THEIRS in TASKS[task]:
                yield Work(task, THEIRS, seed)


def _run(work: Work, *, results: Path, sb3: Path | None, end_s: float) -> None:
    if time.monotonic() > end_s:
        return
    file, log = work.file(results), work.file(results).with_suffix(".log")
    target = [work.task, str(work.seed), str(file)]
    command = [sys.executable, "-m", "scripts.benchmarks.learning", *target]
    if work.who == THEIRS:
        assert sb3 is not None
        command = [
            str(sb3 / "bin" / "python"),
            "-P",
            str(_SB3_PROGRAM),
            json.dumps({**TASKS[work.task], "name": work.task}),
            *target[1:],
        ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": _path()}
    with log.open("w", encoding="utf-8") as output:
        done = subprocess.run(command, check=False, cwd=ROOT, env=environment, stdout=output, stderr=subprocess.STDOUT)
    outcome = "done" if done.returncode == 0 else f"FAILED, see {log}"
    print(f"{time.strftime('%H:%M:%S')} {work.task}, {work.who}, seed {work.seed}: {outcome}", flush=True)


def _path() -> str:
    """Return where both find the project: its environments are theirs, too."""
    return os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))


def _read(results: Path, task: str) -> dict[str, list[dict[str, Any]]]:
    """Return the runs that are there: whose -> one after the other, by their seeds."""
    found: dict[str, list[dict[str, Any]]] = {}
    for who in (OURS, THEIRS):
        runs = [json.loads(file.read_text()) for file in results.glob(f"{task}-{who}-*.json")]
        if runs:
            found[who] = sorted(runs, key=lambda run: int(run["seed"]))
    return found


def _rows(task: str, runs: dict[str, list[dict[str, Any]]]) -> Iterator[Row]:
    for who, some in runs.items():
        bar = TASKS[task].get("wanted") if who == OURS else None
        rewards = [statistics.fmean(run["episodes"]) for run in some]
        yield Row(f"{task}, {some[0]['steps']:,} steps, {who}", "reward", rewards, bar)


def _write_table(found: dict[str, dict[str, list[dict[str, Any]]]], path: Path) -> None:
    """Write interquartile means with their intervals (Agarwal et al. 2021), and each seed's figure."""
    titles = ["task", "steps", "target", "trajtrainer", "Stable-Baselines3", "CPU minutes per run"]
    lines = [_line(titles), _line(["---"] * len(titles))]
    for task, runs in found.items():
        both = [runs.get(who, []) for who in (OURS, THEIRS)]
        minutes = " / ".join(_minutes(some) for some in both if some)
        said = TASKS[task]
        lines.append(_line([task, f"{said['steps']:,}", said.get("wanted", ""), *map(_cell, both), minutes]))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _line(cells: Sequence[object]) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def _cell(runs: Sequence[dict[str, Any]]) -> str:
    if not runs:
        return ""
    values = np.array([[statistics.fmean(run["episodes"])] for run in runs])
    if len(values) == 1:
        return f"{values[0, 0]:.4g} (one seed)"
    low, high = interval(values)
    seeds = ", ".join(f"{value:.4g}" for (value,) in values)
    return f"**{interquartile_mean(values)[0]:.4g}** [{low[0]:.4g}, {high[0]:.4g}] ({seeds})"


def _minutes(runs: Sequence[dict[str, Any]]) -> str:
    minutes = statistics.median(run["cpu_seconds"] for run in runs) / 60
    return f"{minutes:.0f}" if minutes >= 10 else f"{minutes:.2g}"


def _plot(found: dict[str, dict[str, list[dict[str, Any]]]], path: Path) -> None:
    """Plot the reward while training, interquartile mean and interval, one chart per task."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.ticker import EngFormatter, MaxNLocator

    shown = {task: _with_curves(runs) for task, runs in found.items()}
    shown = {task: runs for task, runs in shown.items() if runs}
    if not shown:
        return
    columns = min(3, len(shown))
    rows = -(-len(shown) // columns)
    figure, axes = pyplot.subplots(rows, columns, figsize=(3.6 * columns, 2.5 * rows), squeeze=False)
    for place in axes.flat[len(shown) :]:
        place.set_axis_off()
    for place, (task, runs) in zip(axes.flat, shown.items(), strict=False):
        for who, some in runs.items():
            curve = aggregate([_series(run) for run in some], _POINTS)
            place.plot(curve.steps, curve.middle, label=f"{who}, seeds: {len(some)}")
            place.fill_between(curve.steps, curve.low, curve.high, alpha=0.2)
        if "wanted" in TASKS[task]:
            place.axhline(TASKS[task]["wanted"], color="gray", linestyle=":", linewidth=1)
        place.set_title(task, fontsize=9)
        place.tick_params(labelsize=7)
        place.xaxis.set_major_locator(MaxNLocator(5))
        place.xaxis.set_major_formatter(EngFormatter(sep=""))
        place.legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path, dpi=80)
    pyplot.close(figure)


def _with_curves(runs: dict[str, list[dict[str, Any]]]) -> dict[str, list[dict[str, Any]]]:
    """Return the runs whose curve was kept."""
    kept = {who: [run for run in some if run["curve"]] for who, some in runs.items()}
    return {who: some for who, some in kept.items() if some}


def _series(run: dict[str, Any]) -> Series:
    steps, values = np.array(run["curve"], np.float64).T
    return Series.of_points(steps.astype(np.int64), values)


def run(task: str, seed: int, file: Path) -> None:
    """One run of ours."""
    said = TASKS[task]
    mapping = yaml.safe_load((ROOT / "config" / said["config"]).read_text(encoding="utf-8"))
    (name,) = mapping["behaviors"]
    mapping["behaviors"][name]["max_steps"] = said["steps"]
    mapping["behaviors"][name].pop("stop", None)
    figures = trained(mapping, seed, EPISODES, likeliest=not said.get("stochastic", False))
    write_result(file, {"task": task, "who": OURS, "seed": seed, "steps": said["steps"]} | figures)


def trained(mapping: dict[str, Any], seed: int, count: int, *, likeliest: bool) -> dict[str, Any]:
    """Learn by a configuration. Returns CPU seconds, the rewards of ``count`` episodes afterwards, and the curve."""
    from trajtrainer.policies.play.loaded_policy import load_policy
    from trajtrainer.run.api.learn import learn

    begin_s = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        learn(mapping, seed=seed, run_id="bench", results_dir=folder)
        cpu_seconds = time.process_time() - begin_s
        curve = read_scalars(Path(folder) / "bench" / _folder(Path(folder) / "bench"))[_REWARD]
        if mapping["env_settings"]["env_path"].startswith(_ONE_AGENT):
            env = _environment(mapping["env_settings"])
            policy = load_policy(Path(folder) / "bench", env=env)
            episodes = [_play(env, policy, 10_000 + number, likeliest) for number in range(count)]
        else:
            episodes = [late_mean(curve)]
    points = zip(curve.steps.tolist(), curve.values.tolist(), strict=True)
    return {
        "cpu_seconds": round(cpu_seconds, 1),
        "episodes": [round(reward, 4) for reward in episodes],
        "curve": [(step, round(value, 4)) for step, value in points],
    }


def write_result(file: Path, found: dict[str, Any]) -> None:
    """Write a file that is either whole or not there."""
    part = file.with_suffix(".part")
    part.write_text(json.dumps(found) + "\n")
    part.replace(file)


def _folder(run: Path) -> str:
    """Return the folder of the one behavior."""
    (found,) = [path.name for path in run.iterdir() if path.is_dir() and path.name != "run_logs"]
    return found


def _environment(env_settings: dict[str, Any]) -> Any:
    """Return one copy of a run's Gymnasium environment."""
    import importlib

    import gymnasium

    *modules, name = env_settings["env_path"].removeprefix(_ONE_AGENT).split(":")
    for module in modules:
        importlib.import_module(module)
    arguments = dict(argument.split("=", 1) for argument in env_settings.get("env_args") or [])
    return gymnasium.make(name, **{key: yaml.safe_load(value) for key, value in arguments.items()})


def _play(env: Any, policy: Any, seed: int, likeliest: bool) -> float:
    observation, _ = env.reset(seed=seed)
    total, over, memory = 0.0, False, None
    while not over:
        action, memory = policy.act(observation, deterministic=likeliest, memory=memory)
        observation, reward, terminated, truncated, _ = env.step(action)
        total, over = total + float(reward), terminated or truncated
    return total


if __name__ == "__main__":
    run(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
