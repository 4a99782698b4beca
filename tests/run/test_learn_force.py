"""``--force``: the earlier run stays whole, in its place or beside it, whatever happens."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.run.runs import LearnProcess, behaviors_settings, learn, ppo
from tests.run.test_learn_stopping import step_of

ENVIRONMENT = ("--env=sim:Basic", "--env-args", "--agents", "8")


def short_run(folder: Path, *options: str) -> Path:
    finished = learn(folder, behaviors_settings(Basic=ppo(600, checkpoint_interval=200)), *options, *ENVIRONMENT)
    assert finished.exit_code == 0, finished.output
    return finished.folder


def earlier_run(folder: Path) -> Path:
    """Whatever is in it: nothing of it may be looked at."""
    path = folder / "results" / "run"
    for name in ("Basic/checkpoint.pt", "Basic/Basic-600.pt", "Basic/events.out.tfevents.1", "run_logs/Player-0.log"):
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text(f"earlier {name}")
    (path / "run_logs" / "training_status.json").write_text('{"Basic": {"checkpoints": [{"steps": 600}]}}')
    return path


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX systems")
def test_a_start_that_comes_to_nothing_touches_nothing(tmp_path: Path) -> None:
    old = earlier_run(tmp_path)
    before = snapshot(old)
    settings = behaviors_settings(Basic=ppo(600))
    refused = learn(tmp_path, settings, "--force", f"--env={tmp_path / 'missing.x86_64'}")
    assert refused.exit_code == 1
    assert snapshot(old) == before
    waiting = LearnProcess(tmp_path, settings, "--force", "--timeout-wait=60")
    waiting.wait_for(lambda: "Play" in waiting.output)
    assert snapshot(old) == before
    waiting.send(signal.SIGKILL)
    waiting.finish()
    assert snapshot(old) == before
    assert not (tmp_path / "results" / "run.old").exists()


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX systems")
def test_a_forced_run_killed_before_its_first_checkpoint(tmp_path: Path) -> None:
    before = snapshot(earlier_run(tmp_path))
    run = LearnProcess(tmp_path, behaviors_settings(Basic=ppo(1_000_000)), "--force", *ENVIRONMENT)
    aside = tmp_path / "results" / "run.old"
    run.wait_for(lambda: f"moved to {aside}" in run.output and run.folder.is_dir())
    run.send(signal.SIGKILL)
    run.finish()
    assert snapshot(aside) == before
    assert not list(run.folder.rglob("*.pt"))
    again = learn(tmp_path, behaviors_settings(Basic=ppo(300)), "--resume", *ENVIRONMENT)
    assert again.exit_code == 0, again.output
    assert "Its training starts from step 0" in again.output
    assert 300 < step_of(again.folder) < 600
    assert snapshot(aside) == before


def test_a_forced_run_starts_from_the_weights_of_the_one_it_overwrites(tmp_path: Path) -> None:
    before = snapshot(short_run(tmp_path))
    folder = short_run(tmp_path, "--force", "--initialize-from=run")
    assert snapshot(tmp_path / "results" / "run.old") == before
    assert (folder / "run_logs" / "Player-0.log").is_file()
    assert sorted(path.name for path in folder.parent.iterdir()) == ["run", "run.old"]
