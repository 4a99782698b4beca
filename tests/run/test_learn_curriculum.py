"""Lessons of real runs: they advance, reach the players, are shown and saved, and outlive an interruption."""

from __future__ import annotations

import re
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.envs.sim.faults import fault
from tests.run.runs import FinishedRun, LearnProcess, behaviors_settings, learn, ppo

AGENTS = ("--env-args", "--agents", "4")


def lesson(name: str, value: Any, **criteria: Any) -> dict[str, Any]:
    """With the criteria that end it; the last one has none."""
    return {"name": name, "value": value, **({"completion_criteria": criteria} if criteria else {})}


def settings(parameters: dict[str, Any], **behaviors: dict[str, Any]) -> dict[str, Any]:
    return behaviors_settings(**behaviors) | {"environment_parameters": parameters}


def received(run: FinishedRun | LearnProcess, worker: int, parameter: str) -> list[str]:
    """What a player was told about a parameter since it started, in this order."""
    log = (run.folder / "run_logs" / f"Player-{worker}.log").read_text()
    return re.findall(rf"environment parameter {parameter} (?:= |is drawn by )(\S+)", log)


def lesson_numbers(run: FinishedRun, behavior: str, parameter: str) -> list[tuple[int, float]]:
    return run.scalars(behavior)[f"Environment/Lesson Number/{parameter}"]


def test_lessons_of_two_behaviors_by_progress_and_reward(tmp_path: Path) -> None:
    parameters = {
        "fixed": 4.0,
        "speed": {
            "curriculum": [
                lesson("slow", 1.0, behavior="Basic", measure="progress", threshold=0.25),
                lesson("normal", 2.0, behavior="Basic", measure="progress", threshold=0.5),
                lesson("fast", 3.0),
            ]
        },
        "goal": {
            "curriculum": [
                lesson("near", 5.0, behavior="Hybrid", threshold=-100.0, min_lesson_length=30),
                lesson(
                    "anywhere",
                    {"sampler_type": "uniform", "sampler_parameters": {"min_value": 5.0, "max_value": 9.0}},
                    behavior="Hybrid",
                    threshold=1e6,
                ),
                lesson("never", 0.0),
            ]
        },
    }
    given = settings(parameters, Basic=ppo(4000, summary_freq=500), Hybrid=ppo(4000, summary_freq=500))
    run = learn(tmp_path, given, "--env=sim:Basic+Hybrid", "--num-envs=2", *AGENTS)
    assert run.exit_code == 0, run.output
    speeds = [list(dict.fromkeys(received(run, worker, "speed"))) for worker in range(2)]
    assert ["1", "2", "3"] in speeds
    for worker in range(2):
        assert received(run, worker, "fixed")[0] == "4"
        # One that connects later begins with the lesson of that time.
        assert speeds[worker] == ["1", "2", "3"][-len(speeds[worker]) :]
        assert list(dict.fromkeys(received(run, worker, "goal"))) == ["5", "Uniform"]
    status = run.status()
    assert [status[name]["lesson_num"] for name in parameters] == [0, 2, 1]
    for behavior in ("Basic", "Hybrid"):
        numbers = dict(lesson_numbers(run, behavior, "speed"))
        assert numbers[500] == 0.0
        assert numbers[4000] == 2.0
        assert [number for _, number in lesson_numbers(run, behavior, "goal")][-1] == 1.0
    # 1000 of 4000 steps are a quarter; what is learned from in one go may go a little further.
    assert [number for step, number in lesson_numbers(run, "Basic", "speed") if 1500 <= step < 2000] == [1.0]
    lines = re.findall(r"Parameter 'speed' is in lesson '(\w+)' and has value '(.*)'", run.output)
    assert lines == [("slow", "Float: value=1.0"), ("normal", "Float: value=2.0"), ("fast", "Float: value=3.0")]


@pytest.mark.parametrize("require_reset", [True, False])
def test_a_reset_only_where_the_lesson_asks_for_it(tmp_path: Path, require_reset: bool) -> None:
    """The player tells by dying in its second reset."""
    criteria = {"behavior": "Basic", "measure": "progress", "threshold": 0.3, "require_reset": require_reset}
    given = settings({"speed": {"curriculum": [lesson("slow", 1.0, **criteria), lesson("fast", 3.0)]}}, Basic=ppo(2000))
    run = learn(tmp_path, given, "--env=sim:Basic", "--max-lifetime-restarts=0", *AGENTS, *fault("crash-in-reset@2:5"))
    assert run.exit_code == int(require_reset), run.output
    assert ("return code 5" in run.output) is require_reset
    assert run.status()["speed"]["lesson_num"] == 1
    assert received(run, 0, "speed") == ["1", "3"]


def test_a_lesson_outlives_a_killed_run(tmp_path: Path) -> None:
    parameters = {
        "speed": {
            "curriculum": [
                lesson("slow", 1.0, behavior="Basic", threshold=-100.0, min_lesson_length=10),
                lesson("normal", 2.0, behavior="Basic", threshold=1000.0),
                lesson("fast", 3.0),
            ]
        }
    }
    given = settings(parameters, Basic=ppo(1_000_000, checkpoint_interval=500, summary_freq=500))
    run = LearnProcess(tmp_path, given, "--env=sim:Basic", "--num-envs=2", *AGENTS)
    saved = FinishedRun(0, "", run.folder)
    run.wait_for(lambda: bool(list((run.folder / "Basic").glob("Basic-*.pt"))))
    run.wait_for(lambda: saved.status().get("speed", {}).get("lesson_num") == 1)
    run.send(signal.SIGKILL)
    run.finish()
    step = saved.status()["Basic"]["checkpoints"][-1]["steps"]
    given["behaviors"]["Basic"] |= {"max_steps": step + 1500, "checkpoint_interval": 10_000}
    again = learn(tmp_path, given, "--resume", "--env=sim:Basic", "--num-envs=2", *AGENTS)
    assert again.exit_code == 0, again.output
    assert re.findall(r"Parameter 'speed' is in lesson '(\w+)'", again.output) == ["normal"]
    for worker in range(2):
        assert set(received(again, worker, "speed")) == {"2"}
    assert {number for at, number in lesson_numbers(again, "Basic", "speed") if at > step + 500} == {1.0}
    assert again.status()["speed"]["lesson_num"] == 1
