"""``config/quick/``, and how ``scripts/bench quick`` tells which configuration has learned when."""

from __future__ import annotations

import argparse
import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest

from scripts.benchmarks import jobs, policy_time, quick
from trajtrainer.envs.sim.registry import SIMULATIONS
from trajtrainer.learning.algos.sac.settings import SACHyperparameters
from trajtrainer.settings.suggestions import BREAK_EVEN_MS
from trajtrainer.settings.yaml.convert import load

CONFIG = Path(__file__).resolve().parents[1] / "config"


def test_every_quick_configuration_is_measured() -> None:
    assert {path.stem.removesuffix("-slow") for path in (CONFIG / "quick").glob("*.yaml")} == set(quick.TASKS)


@pytest.mark.parametrize("task", quick.TASKS)
def test_both_configurations_learn_the_same_task(task: str) -> None:
    slow, fast = (load(json.dumps(quick.settings(task, who)), who) for who in (quick.SLOW, quick.QUICK))

    (path,) = {slow.env_settings.env_path, fast.env_settings.env_path}
    assert path is not None
    assert path.removeprefix("sim:") in SIMULATIONS
    assert list(fast.behaviors) == list(slow.behaviors)
    for behavior, settings in fast.behaviors.items():
        assert settings.max_steps < slow.behaviors[behavior].max_steps
    assert set(slow.environment_parameters or {}) == set(fast.environment_parameters or {})


@pytest.mark.parametrize("path", sorted((CONFIG / "quick").glob("*-slow.yaml")), ids=lambda path: path.stem)
def test_a_configuration_for_slow_players_learns_the_same_task_while_they_compute(path: Path) -> None:
    task = path.stem.removesuffix("-slow")
    slow = load(path.read_text(encoding="utf-8"), path.name)
    usual = load(json.dumps(quick.settings(task, quick.QUICK)), task)

    assert list(slow.behaviors) == list(usual.behaviors)
    assert slow.environment_parameters == usual.environment_parameters
    for behavior in slow.behaviors.values():
        assert isinstance(behavior.hyperparameters, SACHyperparameters)
        assert behavior.hyperparameters.steps_per_update == "auto"


@pytest.mark.parametrize(("step_ms", "trainer_type"), [(BREAK_EVEN_MS, "ppo"), (BREAK_EVEN_MS + 1, "sac")])
def test_configurations_for_slow_players_are_used_beyond_the_break_even(step_ms: float, trainer_type: str) -> None:
    settings = policy_time.Work("3DBall", policy_time.QUICK, step_ms, 1).settings()

    assert settings["behaviors"]["3DBall"]["trainer_type"] == trainer_type
    assert settings["behaviors"]["3DBall"]["summary_freq"] == quick.TASKS["3DBall"]["window"]


def run(who: str, rewards: list[float]) -> dict[str, Any]:
    """Windows of 1000 steps, which take a second of ML-Agents' settings and two of the others."""
    windows = range(1, len(rewards) + 1)
    return {
        "settings": quick.settings("Basic", who),
        "steps": [1000 * window for window in windows],
        "rewards": rewards,
        "seconds": [float(window if who == quick.SLOW else 2 * window) for window in windows],
        "all_seconds": 9.0,
    }


# From 0.06 to 0.93: 0.8865 counts as learned, which the seeds have after 5000, 6000 and 3000 steps.
SLOW = [[0.0, 0.1, 0.5, 0.8, 0.89], [0.0, 0.1, 0.5, 0.8, 0.88, 0.93], [0.1, 0.2, 0.89, 0.3]]
FAST = [[0.0, 0.89, 0.93], [0.0, 0.5, 0.93], [0.0, 0.1, 0.2]]


@pytest.fixture
def results(tmp_path: Path) -> Path:
    for who, seeds in ((quick.SLOW, SLOW), (quick.QUICK, FAST)):
        for seed, rewards in enumerate(seeds, 1):
            quick.Work("Basic", who, seed).file(tmp_path).write_text(json.dumps(run(who, rewards)))
    return tmp_path


def arguments(results: Path, seeds: int = 3, minutes: float | None = None) -> argparse.Namespace:
    return argparse.Namespace(
        tasks=["Basic", "CartPole"], seeds=range(1, seeds + 1), jobs=2, minutes=minutes, results=results
    )


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The runs that are begun: task, who and seed."""
    runs: list[list[str]] = []

    def begin(command: list[str], **_: Any) -> argparse.Namespace:
        runs.append(command[-4:-1])
        return argparse.Namespace(returncode=1)

    monkeypatch.setattr(jobs, "subprocess", argparse.Namespace(run=begin, STDOUT=None))
    return runs


def test_medians_over_the_seeds_are_told(results: Path, begun: list[list[str]]) -> None:
    rows = quick.measure(arguments(results))

    assert begun == []
    slow_steps, steps, slow_seconds, seconds = rows
    assert (slow_steps.runs, slow_seconds.runs) == ([5000, 6000, 3000], [5, 6, 3])
    assert (steps.runs, seconds.runs) == ([2000, 3000, math.inf], [4, 6, math.inf])
    assert (steps.bar, seconds.bar) == pytest.approx((5000 * 2 / 3, 5 * 2 / 3))
    steps_there, steps_here = "**5,000** (5,000 6,000 3,000)", "**3,000** (2,000 3,000 never)"
    assert (results / "quick.md").read_text(encoding="utf-8").splitlines()[2] == (
        f"| `Basic` | `ppo/Basic` | 0.887 | {steps_there} | {steps_here} | 0.60 | 5 → 6 | 1.20 |"
    )
    assert "Basic, thousand steps" in (results / "quick.svg").read_text()


def test_what_most_seeds_never_learn_is_told_without_a_part(results: Path, begun: list[list[str]]) -> None:
    for seed in (1, 2):
        quick.Work("Basic", quick.SLOW, seed).file(results).write_text(json.dumps(run(quick.SLOW, [0.1, 0.2])))

    quick.measure(arguments(results))

    assert begun == []
    steps_there, steps_here = "**never** (never never 3,000)", "**3,000** (2,000 3,000 never)"
    assert (results / "quick.md").read_text(encoding="utf-8").splitlines()[2] == (
        f"| `Basic` | `ppo/Basic` | 0.887 | {steps_there} | {steps_here} |  | never → 6 |  |"
    )


def test_runs_that_are_missing_or_of_another_configuration_are_made(results: Path, begun: list[list[str]]) -> None:
    file = quick.Work("Basic", quick.QUICK, 2).file(results)
    changed = json.loads(file.read_text())
    changed["settings"]["behaviors"]["Basic"]["max_steps"] += 1
    file.write_text(json.dumps(changed))
    quick.Work("Basic", quick.SLOW, 1).file(results).unlink()

    quick.measure(arguments(results, minutes=1e-9))
    assert begun == []
    rows = quick.measure(argparse.Namespace(**{**vars(arguments(results)), "jobs": 1}))

    assert begun == [["Basic", quick.SLOW, "1"], ["Basic", quick.QUICK, "2"]]
    assert [len(row.runs) for row in rows] == [2, 2, 2, 2]


@pytest.mark.parametrize(("who", "windows"), [(quick.SLOW, 1), (quick.QUICK, 3)])
def test_a_run_ends_where_it_has_learnt_unless_it_is_a_quick_one(
    who: str, windows: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mapping = json.loads(json.dumps(quick.settings("Basic", quick.QUICK)))
    mapping["behaviors"]["Basic"]["max_steps"] = 600
    monkeypatch.setattr(quick, "settings", lambda *_: mapping)
    monkeypatch.setitem(quick.TASKS, "Basic", {"window": 200, "rewards": [-9, -9]})
    work = quick.Work("Basic", who, 1)

    quick.run("Basic", who, 1, work.file(tmp_path))

    found = work.found(tmp_path)
    assert found is not None
    assert [steps // 200 for steps in found.steps] == list(range(1, windows + 1))
    assert all(-9 < reward < 1 for reward in found.rewards)
    assert [0.0, *found.seconds] == sorted({0.0, *found.seconds})


def test_a_task_may_tell_another_reward(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mapping = json.loads(json.dumps(quick.settings("DungeonEscape", quick.QUICK)))
    mapping["behaviors"]["DungeonEscape"]["max_steps"] = 2000
    monkeypatch.setattr(quick, "settings", lambda *_: mapping)
    monkeypatch.setitem(quick.TASKS, "DungeonEscape", {**quick.TASKS["DungeonEscape"], "window": 1000})
    work = quick.Work("DungeonEscape", quick.QUICK, 1)

    quick.run("DungeonEscape", quick.QUICK, 1, work.file(tmp_path))

    found = work.found(tmp_path)
    assert found is not None
    assert max(found.rewards) > 0, "no member earns anything by itself yet, the group does"


def test_rivals_are_trained_first(tmp_path: Path, begun: list[list[str]]) -> None:
    quick.measure(argparse.Namespace(tasks=["Duel"], seeds=[1], jobs=2, minutes=None, results=tmp_path))

    assert begun[0] == ["Duel", quick.RIVAL, "0"]
    assert sorted(begun[1:]) == [["Duel", quick.QUICK, "1"], ["Duel", quick.SLOW, "1"]]


def timed(seconds: float, *, learned: bool = True) -> policy_time.Run:
    return policy_time.Run({}, [1000], [seconds], [0.9], learned)


def test_a_run_that_never_learned_counts_as_infinitely_long() -> None:
    assert timed(5.0).cost == (1000, 5.0)
    assert timed(5.0, learned=False).cost == (math.inf, math.inf)


@pytest.mark.parametrize(
    ("theirs", "times"),
    [([timed(40.0), timed(60.0), timed(50.0)], "10.0"), ([timed(40.0), *[timed(90.0, learned=False)] * 2], "> 18.0")],
)
def test_the_time_to_a_policy_is_compared_by_medians(theirs: list[policy_time.Run], times: str) -> None:
    ours = [timed(5.0), timed(4.0), timed(6.0)]
    runs = {policy_time.MLAGENTS: theirs, policy_time.SAME: [], policy_time.QUICK: ours}
    *_, row = policy_time.table({("Basic", 4.0): runs})
    assert row.split(" | ")[1] == "4"
    assert row.removesuffix(" |").split(" | ")[-1] == times


def test_all_trainers_of_a_task_have_summaries_at_the_same_steps() -> None:
    settings = [
        policy_time.Work("3DBall", trainer, 0.0, 1).settings() for trainer in (policy_time.SAME, policy_time.QUICK)
    ]
    assert [each["behaviors"]["3DBall"]["summary_freq"] for each in settings] == [quick.TASKS["3DBall"]["window"]] * 2


@pytest.mark.parametrize(
    ("line", "summary"),
    [
        ("[INFO] 3DBall. Step: 12000. Time Elapsed: 9.1 s. Mean Reward: -1.25. Std of Reward: 0.5. Training.", -1.25),
        ("[INFO] D. Step: 12000. Time Elapsed: 9 s. Mean Reward: 0.000. Mean Group Reward: 0.953. Training.", 0.953),
        ("[INFO] 3DBall. Step: 12000. Time Elapsed: 9.1 s. No episode was completed since last summary.", None),
    ],
)
def test_summaries_of_both_trainers_are_read_from_the_console(line: str, summary: float | None) -> None:
    assert policy_time.summary_in(line) == (None if summary is None else (12000, summary))


PRINTS = """
import signal, sys, time
signal.signal(signal.SIGINT, lambda *_: sys.exit(3))
for step in range(1, 1000):
    print(f"[INFO] Basic. Step: {step}. Time Elapsed: 1 s. Mean Reward: {step / 10:.3f}. Training.", flush=True)
    time.sleep(0.01)
"""


@pytest.mark.parametrize(("longest_s", "learned"), [(60.0, True), (0.0, False)])
def test_a_trainer_is_stopped_when_it_has_learned_or_takes_too_long(longest_s: float, *, learned: bool) -> None:
    """The target is 0.8865. What the trainer prints afterwards does not count."""
    work = policy_time.Work("Basic", policy_time.MLAGENTS, 0.0, 1)
    found = policy_time.followed(work, [sys.executable, "-c", PRINTS], longest_s)

    assert found.learned == learned
    assert found.steps == ([*range(1, 10)] if learned else [1])
    assert found.cost[0] == (9 if learned else math.inf)
