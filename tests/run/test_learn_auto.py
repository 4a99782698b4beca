"""Runs with ``steps_per_update: auto``, whose players take their time, or do not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import trajtrainer
from tests.run.api.test_learn_api import Lamp
from tests.run.runs import FinishedRun, behaviors_settings, learn

FIRST = 40
HORIZON = 16
TAG = "Perf/Optimizer Steps per Agent Step"
SLOW = ("--env-args", "--agents", "1", "--step-ms", "50")
FREE = ("--env-args", "--agents", "1")


SAC: dict[str, Any] = {"buffer_init_steps": FIRST}


def trainer(
    kind: str, max_steps: int, pace: float | str = "auto", own: dict[str, Any] = SAC, **changes: Any
) -> dict[str, Any]:
    hyper: dict[str, Any] = {"batch_size": 16, "steps_per_update": pace, "save_replay_buffer": True}
    return {
        "trainer_type": kind,
        "hyperparameters": hyper | own,
        "network_settings": {"hidden_units": 16, "num_layers": 1},
        "time_horizon": HORIZON,
        "max_steps": max_steps,
        "summary_freq": 60,
        **changes,
    }


def pace_of(run: FinishedRun, behavior: str, kind: str = "sac") -> dict[str, Any]:
    state: dict[str, Any] = torch.load(run.folder / behavior / "checkpoint.pt", weights_only=True)
    found: dict[str, Any] = state["trajtrainer"][kind]["pace"]
    return found


def step_of(run: FinishedRun, behavior: str) -> int:
    return int(run.status()[behavior]["final_checkpoint"]["steps"])


def rates(run: FinishedRun, behavior: str) -> list[float]:
    """Gradient steps per agent step, without the summary in which they start."""
    return [value for _, value in run.scalars(behavior)[TAG]][2:]


def updates_once_per_message(folder: Path, kind: str, own: dict[str, Any]) -> None:
    given = behaviors_settings(Lamp=trainer(kind, 300, own=own))
    trajtrainer.learn(given, Lamp, run_id="run", results_dir=folder, verbose=False)
    run = FinishedRun(0, "", folder / "run")
    found = rates(run, "Lamp")
    assert sum(found) / len(found) == pytest.approx(1, abs=0.1)
    given = behaviors_settings(Lamp=trainer(kind, 120, 2, own))
    assert TAG not in trajtrainer.learn(given, Lamp, run_id="number", results_dir=folder, verbose=False).curves()


def test_where_nothing_computes_meanwhile_there_is_one_update_per_message(tmp_path: Path) -> None:
    updates_once_per_message(tmp_path, "sac", SAC)


def test_more_updates_fit_while_a_player_is_slow(tmp_path: Path) -> None:
    found = {}
    for name, player in (("free", FREE), ("slow", SLOW)):
        run = learn(
            tmp_path,
            behaviors_settings(Toy=trainer("sac", 200, summary_freq=40)),
            "--env=sim:Toy",
            *player,
            run_id=name,
        )
        assert run.exit_code == 0, run.output
        made = pace_of(run, "Toy")["count"] - 1
        steps = step_of(run, "Toy") - FIRST
        assert steps - 2 * HORIZON <= made <= 2 * steps
        found[name] = sum(rates(run, "Toy")) / len(rates(run, "Toy"))
    assert found["slow"] > 1.5
    assert found["slow"] >= found["free"] - 0.25


def test_resuming_and_changing_the_pace(tmp_path: Path) -> None:
    paces: list[dict[str, Any]] = []
    resume: tuple[str, ...] = ()
    steps: list[int] = []
    for max_steps, pace in ((120, "auto"), (200, "auto"), (280, 4), (360, "auto")):
        given = behaviors_settings(Toy=trainer("sac", max_steps, pace))
        run = learn(tmp_path, given, "--env=sim:Toy", *resume, *FREE)
        assert run.exit_code == 0, run.output
        paces.append(pace_of(run, "Toy"))
        steps.append(step_of(run, "Toy"))
        resume = ("--resume",)
    first, second, number, last = paces
    assert first["steps_per_update"] == second["steps_per_update"] == last["steps_per_update"] == "auto"
    for before, after, new in ((first, second, steps[1] - steps[0]), (number, last, steps[3] - steps[2])):
        made, saved = after["count"] - before["count"], before.get("allowed", 0)
        assert new - 3 * HORIZON <= made <= saved + 2 * (new + HORIZON)
    # With a number, the gradient steps until the change count as made at that pace.
    assert number["steps_per_update"] == 4
    assert number["count"] == pytest.approx((steps[2] - FIRST) / 4, abs=HORIZON / 4 + 1)


def test_two_behaviors_share_the_time(tmp_path: Path) -> None:
    given = behaviors_settings(Basic=trainer("sac", 110), Hybrid=trainer("sac", 110))
    run = learn(tmp_path, given, "--env=sim:Basic+Hybrid", *SLOW)
    assert run.exit_code == 0, run.output
    paces = []
    for behavior in ("Basic", "Hybrid"):
        steps, made = step_of(run, behavior) - FIRST, pace_of(run, behavior)["count"] - 1
        assert steps - HORIZON <= made <= 2 * steps
        paces.append(made / steps)
    assert max(paces) < 1.5 * min(paces)  # however many fit, which depends on the machine


def test_actors_in_processes_do_not_wait_for_updates(tmp_path: Path) -> None:
    given = behaviors_settings(Basic=trainer("sac", 110)) | {"actors": {"count": 2, "backend": "process"}}
    run = learn(tmp_path, given, "--env=sim:Basic", *SLOW)
    assert run.exit_code == 0, run.output
    steps, made = step_of(run, "Basic") - FIRST, pace_of(run, "Basic")["count"] - 1
    assert steps - 4 * HORIZON <= made <= 2 * steps


def test_a_thread_of_its_own_learns_until_the_run_ends(tmp_path: Path) -> None:
    given = behaviors_settings(Toy=trainer("sac", 110, threaded=True))
    run = learn(tmp_path, given, "--env=sim:Toy", *SLOW)
    assert run.exit_code == 0, run.output
    steps, made = step_of(run, "Toy") - FIRST, pace_of(run, "Toy")["count"] - 1
    assert steps - 2 * HORIZON <= made <= 2 * steps
