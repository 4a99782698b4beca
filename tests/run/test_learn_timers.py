"""timers.json of real runs says by name where the time went."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.run.runs import FinishedRun, LearnProcess, behaviors_settings, learn, ppo
from trajtrainer import Training

ENVIRONMENT = ("--env=sim:Basic", "--env-args", "--agents", "8")
UNNAMED = 0.15  # at most so much of the whole; 0.04 on a machine that does nothing else


def tree(run: FinishedRun) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((run.folder / "run_logs" / "timers.json").read_text())
    return content


def inner(node: dict[str, Any], *path: str) -> dict[str, Any]:
    for name in path:
        node = node["children"][name]
    return node


def check_names(root: dict[str, Any]) -> None:
    """Nothing that took long is nameless: neither in the root, nor in the blocks that only hold others."""
    learning = inner(root, "TrainerController.start_learning")
    for node in (root, learning, inner(learning, "TrainerController.advance")):
        assert node["self"] <= UNNAMED * root["total"]
    named = {"run_training.settings", "run_training.import", "run_training.setup", "env_start", "env_close"}
    assert named <= root["children"].keys()
    saving = inner(learning, "TrainerController._save_models", "RLTrainer._checkpoint")
    assert saving["count"] == 1
    assert saving["total"] > 0


@pytest.mark.parametrize("threaded", [False, True])
def test_a_finished_run(tmp_path: Path, threaded: bool) -> None:
    run = learn(tmp_path, behaviors_settings(Basic=ppo(4000, threaded=threaded)), *ENVIRONMENT)
    assert run.exit_code == 0, run.output
    root = tree(run)
    check_names(root)
    advance = inner(root, "TrainerController.start_learning", "TrainerController.advance")
    parts = ["env_wait", "record", "TorchPolicy.evaluate", "env_send"]
    assert list(inner(advance, "env_step")["children"]) == parts
    assert "make_behavior" in inner(advance, "env_step", "record")["children"]
    if threaded:
        assert list(inner(root, "trainer Basic")["children"]) == ["trajectory_wait", "trainer_advance"]
        assert "trainer_threads" in inner(root, "TrainerController.start_learning")["children"]
    learner = inner(root, "trainer Basic", "trainer_advance") if threaded else inner(advance, "trainer_advance")
    assert learner.get("is_parallel", False) is threaded
    assert {"process_trajectory", "_update_policy"} <= learner["children"].keys()


def test_an_interrupted_run(tmp_path: Path) -> None:
    run = LearnProcess(tmp_path, behaviors_settings(Basic=ppo(1_000_000)), *ENVIRONMENT)
    run.wait_for(lambda: "Step: 1000." in run.output)
    run.send(signal.SIGINT)
    finished = run.finish()
    assert finished.exit_code == 0, finished.output
    check_names(tree(finished))


def test_a_run_whose_environment_does_not_come(tmp_path: Path) -> None:
    run = learn(tmp_path, behaviors_settings(Basic=ppo(1000)), "--env=sim:Basic", "--env-args", "--no-such-option")
    assert run.exit_code == 1
    root = tree(run)
    assert root["self"] <= UNNAMED * root["total"]
    assert list(root["children"])[-1] == "env_start"


def test_a_resumed_run_counts_all_its_sessions(tmp_path: Path) -> None:
    settings = behaviors_settings(Basic=ppo(700))
    first = tree(learn(tmp_path, settings, *ENVIRONMENT))
    assert "earlier_sessions" not in first
    for session in (2, 3):
        settings["behaviors"]["Basic"]["max_steps"] = 700 * session
        run = learn(tmp_path, settings, "--resume", *ENVIRONMENT)
        assert run.exit_code == 0, run.output
        earlier = tree(run)["earlier_sessions"]
        assert earlier["sessions"] == session - 1
        assert earlier["start_time_seconds"] == first["metadata"]["start_time_seconds"]
        assert inner(earlier, "env_start")["count"] == session - 1
        assert earlier["total"] >= first["total"]


def test_a_run_at_work_writes_where_its_time_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Long before its first checkpoint, in a program that looks at its file meanwhile."""
    monkeypatch.setattr("trajtrainer.run.loop._TIMERS_S", 0.1)
    path = tmp_path / "first" / "run_logs" / "timers.json"
    settings = behaviors_settings(Basic=ppo(10**7))
    with Training(settings, "sim:Basic", run_id="first", results_dir=tmp_path, verbose=False) as training:
        for epoch in training.epochs(steps=100):
            content = json.loads(path.read_text())
            learning = content["children"].get("TrainerController.start_learning", {"children": {}})
            found = learning["children"].get("TrainerController.advance", {"count": 0})
            if found["count"] > 10:
                break
            assert epoch.epoch < 100_000
    assert not list(path.parent.glob(".timers*")), "a file of a moment is left"
