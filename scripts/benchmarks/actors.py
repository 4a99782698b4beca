"""Benchmarks of actors in processes and threads, compared with a single loop, also with slow players.

``scripts/bench actors --mlagents VENV`` also measures ML-Agents (see ``mlagents.py``).
"""

from __future__ import annotations

import json
import sys
import tempfile
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from scripts.benchmarks.mlagents import BASIC, mlagents_speed
from scripts.benchmarks.ppo import BALL, HUNDRED, Case, follow
from scripts.benchmarks.report import Row, interleaved

RUNS = 3
STEP_MS = 5.0
# Longer than other benchmarks, because actors start one after another, and all of them should be measured.
_BUFFERS = 8
_BUSY = "Actors.LearnerBusy.mean"
_WAITING = "Actors.Waiting.mean"

_BALL = replace(BALL, max_steps=20 * 12000)
_HUNDRED = replace(HUNDRED, max_steps=20 * 10240)
_BASIC = replace(BASIC, max_steps=20 * 2560)
SLOW = replace(
    BALL,
    name=f"3DBall, {STEP_MS:g} ms a step",
    player=[*BALL.player, "--step-ms", str(STEP_MS)],
    hyperparameters={**BALL.hyperparameters, "buffer_size": 2048},
    time_horizon=64,
    summary_freq=2048,
)


@dataclass(frozen=True)
class Figures:
    """Agent steps per second of a run, and the fractions of time that the learner was busy and actors waited."""

    speed: float
    busy: float
    waiting: float


def measure(venv: Path | None = None) -> list[Row]:
    """Measure all cases several times, alternating; also ML-Agents, if its ``venv`` is given."""
    rows: list[Row] = []
    if venv is not None:
        rows += [row for case in (_BALL, _HUNDRED, _BASIC) for row in _against_mlagents(case, venv)]
    for case in (_BALL, _HUNDRED):
        threaded = replace(case, extra={**case.extra, "threaded": True})
        loop, thread, one, beside = _in_turn(
            [(case, 0, {}), (threaded, 0, {}), (case, 1, {}), (case, 1, {"backend": "thread"})]
        )
        rows += [
            Row(f"{case.name}, in one loop", "agent-steps/s", [run.speed for run in loop]),
            Row(f"{case.name}, threaded: true", "agent-steps/s", [run.speed for run in thread]),
            Row(f"{case.name}, threaded: true against one loop", "times", _ratios(thread, loop, 1)),
            Row(f"{case.name}, one actor in a thread", "agent-steps/s", [run.speed for run in beside]),
            Row(f"{case.name}, one actor in a thread against one loop", "times", _ratios(beside, loop, 1)),
            Row(f"{case.name}, one actor and the learner", "agent-steps/s", [run.speed for run in one]),
            Row(f"{case.name}, against one loop", "times", _ratios(one, loop, 1), 1.3),
            Row(f"{case.name}, learner busy", "%", [100 * run.busy for run in one], 95),
            Row(f"{case.name}, actor waiting", "%", [100 * run.waiting for run in one]),
        ]
    counts = (1, 4, 16)
    runs = _in_turn([(slow(count), count, {}) for count in counts])
    for count, found in zip(counts, runs, strict=True):
        rows.append(Row(f"{SLOW.name}, {count} actors", "agent-steps/s", [run.speed for run in found]))
        rows.append(Row(f"{SLOW.name}, {count} actors, of linear", "%", _ratios(found, runs[0], 100 / count), 90))
    return rows


def _against_mlagents(case: Case, venv: Path) -> list[Row]:
    """Compare a single loop, and one actor in a process, with ML-Agents, whose run is shorter because it is slower."""
    short = replace(case, max_steps=5 * case.summary_freq)
    ways = [lambda: train(case, 0).speed, lambda: train(case, 1).speed, partial(mlagents_speed, short, venv)]
    loop, actor, mlagents = interleaved(ways, RUNS)
    return [
        Row(f"{case.name}, ML-Agents", "agent-steps/s", mlagents),
        Row("... in one loop", "times", [a / b for a, b in zip(loop, mlagents, strict=True)], 6),
        Row("... one actor and the learner", "times", [a / b for a, b in zip(actor, mlagents, strict=True)], 8),
    ]


def slow(actors: int) -> Case:
    """Return the case of slow players, with a length that suits this number of actors."""
    return replace(SLOW, max_steps=_BUFFERS * 2048 * actors)


def _ratios(these: list[Figures], those: list[Figures], scale: float) -> list[float]:
    return [scale * this.speed / that.speed for this, that in zip(these, those, strict=True)]


def _in_turn(cases: list[tuple[Case, int, dict[str, Any]]]) -> list[list[Figures]]:
    """Measure (case, number of actors or 0 for a single loop, other settings of the actors), alternating."""
    found: list[list[Figures]] = [[] for _ in cases]

    def one(index: int, case: Case, actors: int, others: dict[str, Any]) -> float:
        found[index].append(train(case, actors, **others))
        return 0.0

    interleaved([partial(one, index, *case) for index, case in enumerate(cases)], RUNS)
    return found


def train(case: Case, actors: int, **others: Any) -> Figures:
    """Train with this number of actors (0: a single loop), and measure all but the first fifth of the run."""
    settings = case.settings()
    if actors:
        settings["actors"] = {"count": actors, "max_policy_lag": 1, **others}
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "config.yaml"
        config.write_text(yaml.safe_dump(settings))
        command = [sys.executable, "-m", "trajtrainer", "learn", str(config), f"--results-dir={folder}", "--run-id=run"]
        command += ["--seed=1", "--base-port=16100", f"--env={case.player[0]}", "--env-args", *case.player[1:]]
        summaries = follow(command).summaries
        (first_step, first_s, _), (last_step, last_s, _) = summaries[len(summaries) // 5], summaries[-1]
        gauges = json.loads((Path(folder) / "run" / "run_logs" / "timers.json").read_text())["gauges"]
    found = {tag: [gauge["value"] for name, gauge in gauges.items() if tag in name] for tag in (_BUSY, _WAITING)}
    busy, waiting = (max(values, default=float("nan")) for values in found.values())
    return Figures((last_step - first_step) / (last_s - first_s), busy, waiting)
