"""Stopping, killing and carrying on: nothing is lost, nothing is orphaned."""

from __future__ import annotations

import os
import shlex
import signal
import sys
from pathlib import Path

import pytest
import torch

from tests.envs.sim.faults import fault
from tests.run.runs import FinishedRun, LearnProcess, behaviors_settings, learn, living_processes, ppo
from tests.settings.command_line import parse_command_line
from trajtrainer.settings.run import CheckpointSettings

ENVIRONMENT = ("--env=sim:Basic", "--env-args", "--agents", "8")
OFTEN = {"checkpoint_interval": 1000, "summary_freq": 250}
LONG = behaviors_settings(Basic=ppo(1_000_000, **OFTEN))


def step_of(folder: Path) -> int:
    checkpoint = torch.load(folder / "Basic" / "checkpoint.pt", weights_only=True)
    return int(checkpoint["global_step"]["_GlobalSteps__global_step"])


def started(tmp_path: Path) -> LearnProcess:
    """A run that has saved at least two checkpoints."""
    run = LearnProcess(tmp_path, LONG, *ENVIRONMENT)
    run.wait_for(lambda: len(list((run.folder / "Basic").glob("Basic-*.pt"))) >= 2)
    return run


def continued(tmp_path: Path, step: int, more: int = 500) -> FinishedRun:
    settings = behaviors_settings(Basic=ppo(step + more, **OFTEN))
    return learn(tmp_path, settings, "--resume", *ENVIRONMENT)


@pytest.mark.parametrize(("number", "exit_code"), [(signal.SIGINT, 0), (signal.SIGTERM, 143)])
def test_a_signal_saves_everything_and_ends_the_player(tmp_path: Path, number: signal.Signals, exit_code: int) -> None:
    run = started(tmp_path)
    before = step_of(run.folder)
    run.send(number)
    finished = run.finish()
    assert finished.exit_code == exit_code, finished.output
    assert step_of(run.folder) > before
    final = finished.status()["Basic"]["final_checkpoint"]
    assert final["steps"] == step_of(run.folder)
    assert (run.folder / "Basic.onnx").is_file()
    assert (run.folder / "run_logs" / "timers.json").is_file()
    assert "Hyperparameters" not in finished.output
    for line in ("Connected new brain: Basic?team=0", "Hyperparameters for behavior name Basic"):
        assert finished.log.count(line) == 1
    assert finished.log.splitlines()[-1].endswith(finished.output.splitlines()[-1].removeprefix("[INFO] "))
    command = shlex.split(finished.output.splitlines()[-1].removeprefix("[INFO] To continue: "))
    assert command[:4] == [sys.executable, "-m", "trajtrainer", "learn"]
    resumed = parse_command_line(command[4:]).checkpoint_settings
    assert resumed == CheckpointSettings(run_id="run", results_dir=str(tmp_path / "results"), resume=True)
    assert living_processes(["trajtrainer.envs.sim", str(run.folder / "run_logs" / "Player-0.log")]) == []
    again = continued(tmp_path, final["steps"])
    assert again.exit_code == 0, again.output
    assert f"Resuming training from step {final['steps']}" in again.output
    assert "To continue" not in again.output
    assert f"Curves: trajtrainer page {run.folder} (or tensorboard --logdir {run.folder})" in again.output
    assert f"exported policy {run.folder / 'Basic.onnx'}" in again.output
    assert again.log.startswith(finished.log)
    assert again.log.count("Connected new brain") == 2


@pytest.mark.skipif(os.name == "nt", reason="Windows moves no folder with open files in it")
def test_a_folder_that_was_deleted_is_made_again(tmp_path: Path) -> None:
    run = started(tmp_path)
    run.folder.rename(tmp_path / "gone")
    run.send(signal.SIGTERM)
    finished = run.finish()
    assert finished.exit_code == 143, finished.output
    assert finished.status()["Basic"]["final_checkpoint"]["steps"] == step_of(run.folder)
    assert step_of(run.folder) > step_of(tmp_path / "gone")
    assert (run.folder / "Basic.onnx").is_file()
    assert (run.folder / "configuration.yaml").is_file()


def test_a_killed_run_is_resumed_from_its_newest_checkpoint(tmp_path: Path) -> None:
    run = started(tmp_path)
    run.wait_for(lambda: FinishedRun(0, "", run.folder).rewards_by_step("Basic")[-1][0] > step_of(run.folder) + 250)
    run.send(signal.SIGKILL)
    killed = run.finish()
    step = step_of(run.folder)
    before = [label for label, _ in killed.rewards_by_step("Basic")]
    again = continued(tmp_path, step, 1500)
    assert again.exit_code == 0, again.output
    assert f"Resuming training from step {step}" in again.output
    assert step_of(run.folder) > step + 1500
    # Each summary once. That of the checkpoint's step was written ahead of it, and stays.
    labels = [label for label, _ in again.rewards_by_step("Basic")]
    assert labels == list(range(labels[0], labels[-1] + 1, 250))
    assert labels[0] == before[0]
    assert labels[-1] > step + 1000
    steps = [record["steps"] for record in again.status()["Basic"]["checkpoints"]]
    assert steps == sorted(steps)
    assert len(steps) == len(list((run.folder / "Basic").glob("Basic-*.pt"))) <= 5


def test_a_finished_run_resumed_only_exports_again(tmp_path: Path) -> None:
    settings = behaviors_settings(Basic=ppo(600))
    first = learn(tmp_path, settings, *ENVIRONMENT)
    (first.folder / "Basic.onnx").unlink()
    second = learn(tmp_path, settings, "--resume", *ENVIRONMENT)
    assert second.exit_code == 0, second.output
    assert (first.folder / "Basic.onnx").is_file()


def test_the_same_run_id_again_is_refused_unless_forced(tmp_path: Path) -> None:
    settings = behaviors_settings(Basic=ppo(600))
    assert learn(tmp_path, settings, *ENVIRONMENT).exit_code == 0
    refused = learn(tmp_path, settings, *ENVIRONMENT)
    assert refused.exit_code == 1
    assert "Previous data from this run ID was found" in refused.output
    assert "Traceback" not in refused.output
    assert learn(tmp_path, settings, "--force", *ENVIRONMENT).exit_code == 0


def test_initialize_from_takes_the_weights_and_starts_at_step_0(tmp_path: Path) -> None:
    settings = behaviors_settings(Basic=ppo(3500))
    assert learn(tmp_path, settings, *ENVIRONMENT, run_id="first").exit_code == 0
    short = behaviors_settings(Basic=ppo(1200))
    second = learn(tmp_path, short, "--initialize-from=first", *ENVIRONMENT, run_id="second")
    assert second.exit_code == 0, second.output
    assert second.rewards("Basic")[0] > 0.85
    assert 1200 < second.status()["Basic"]["final_checkpoint"]["steps"] < 2000


def test_inference_writes_nothing_and_runs_until_stopped(tmp_path: Path) -> None:
    settings = behaviors_settings(Basic=ppo(600, summary_freq=200))
    first = learn(tmp_path, settings, *ENVIRONMENT)
    files = {path: path.stat().st_mtime_ns for path in first.folder.rglob("*")}
    run = LearnProcess(tmp_path, settings, "--resume", "--inference", *ENVIRONMENT)
    run.wait_for(lambda: run.output.count("Not Training") >= 3)
    run.send(signal.SIGINT)
    finished = run.finish()
    assert finished.exit_code == 0
    assert "graph is generated" not in finished.output
    assert "To continue" not in finished.output
    assert {path: path.stat().st_mtime_ns for path in first.folder.rglob("*")} == files


def test_a_crashing_player_ends_the_run_with_its_reason_and_everything_saved(tmp_path: Path) -> None:
    run = learn(tmp_path, LONG, "--env=sim:Basic", "--env-args", "--agents", "8", *fault("crash@300:3"))
    assert run.exit_code == 1
    assert "return code 3" in run.output
    assert "Traceback" not in run.output
    assert "To continue: " in run.output
    assert "return code 3" in run.log
    assert run.status()["Basic"]["final_checkpoint"]["steps"] == step_of(run.folder) > 0
