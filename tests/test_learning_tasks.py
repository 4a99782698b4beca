"""The tasks of ``scripts/bench learning``, and how its runs are planned, resumed and told."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest

from scripts.benchmarks import learning
from trajtrainer.settings.yaml.convert import read_file, run_settings

CONFIG = Path(__file__).resolve().parents[1] / "config"
DOCS = CONFIG.parent / "docs"


@pytest.mark.parametrize("task", learning.TASKS)
def test_a_task_has_a_configuration_of_one_behavior_and_the_zoos_environment(task: str) -> None:
    said = learning.TASKS[task]
    settings = run_settings(*read_file(CONFIG / said["config"]))

    (behavior,) = settings.behaviors.values()
    assert behavior.max_steps >= said["steps"]
    assert settings.env_settings.env_path is not None
    if "sb3" in said:
        assert settings.env_settings.env_path == f"gym:{said['sb3']['env']}"


def test_the_table_in_the_docs_is_that_of_the_runs_beside_it(tmp_path: Path) -> None:
    found = {task: learning._read(DOCS / "benchmarks" / "runs", task) for task in learning.TASKS}
    learning._write_table({task: runs for task, runs in found.items() if runs}, tmp_path / "table.md")

    assert (tmp_path / "table.md").read_text() in (DOCS / "benchmarks" / "learning.md").read_text(encoding="utf-8")
    assert len(list((DOCS / "benchmarks" / "runs").iterdir())) == sum(
        len(some) for runs in found.values() for some in runs.values()
    )


def test_runs_are_ours_and_theirs_in_turn_and_first_seeds_come_first() -> None:
    planned = list(learning.planned(["CartPole", "FrozenLake"], [1, 2], Path("venv")))

    assert [(work.task, work.who, work.seed) for work in planned] == [
        ("CartPole", "trajtrainer", 1),
        ("CartPole", "sb3", 1),
        ("FrozenLake", "trajtrainer", 1),
        ("CartPole", "trajtrainer", 2),
        ("CartPole", "sb3", 2),
        ("FrozenLake", "trajtrainer", 2),
    ]


def test_what_is_there_is_told_and_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[Any] = []

    def begin(command: Any, **_: Any) -> argparse.Namespace:
        begun.append(command)
        return argparse.Namespace(returncode=1)

    monkeypatch.setattr(learning, "subprocess", argparse.Namespace(run=begin, STDOUT=None))
    for seed, rewards in enumerate(([490, 500], [500, 500], [400, 420]), 1):
        found = {"task": "CartPole", "who": "trajtrainer", "seed": seed, "steps": 100000, "episodes": rewards}
        (tmp_path / f"CartPole-trajtrainer-{seed}.json").write_text(
            json.dumps({**found, "curve": [[0, 9], [10, 30 * seed]], "cpu_seconds": 60.0 * seed})
        )
    arguments = argparse.Namespace(
        tasks=["CartPole"], seeds=range(1, 5), jobs=2, minutes=None, results=tmp_path, sb3=None
    )

    (row,) = learning.measure(arguments)

    assert [command[-3:-1] for command in begun] == [["CartPole", "4"]]
    assert (row.runs, row.bar) == ([495, 500, 410], 500)
    table = (tmp_path / "learning.md").read_text()
    assert "| CartPole | 100,000 | 500 | **468.3** [410, 500] (495, 500, 410) |  | 2 |" in table
    assert (tmp_path / "learning.png").stat().st_size > 1000
    begun.clear()
    learning.measure(argparse.Namespace(**{**vars(arguments), "minutes": 1e-9}))
    assert begun == []


@pytest.mark.parametrize(("text", "seeds"), [("3", [1, 2, 3]), ("4-6", [4, 5, 6])])
def test_seeds_are_a_number_or_a_range(text: str, seeds: list[int]) -> None:
    parser = argparse.ArgumentParser()
    learning.add_arguments(parser, ["CartPole"])

    assert list(parser.parse_args(["--seeds", text]).seeds) == seeds
