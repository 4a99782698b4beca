"""``--resume=auto`` starts a run or goes on with it; ``--resume`` alone takes no value."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest

from trajtrainer.cli.main import main
from trajtrainer.settings.flags import RESUME_AUTO, add_arguments


def learn(folder: Path, max_steps: int, *options: str) -> int:
    """Train ``sim:Basic`` as run ``x``."""
    configuration = folder / "c.yaml"
    configuration.write_text(
        f"behaviors:\n  Basic:\n    trainer_type: ppo\n    max_steps: {max_steps}\n    summary_freq: 50\n"
        "    hyperparameters: {batch_size: 16, buffer_size: 64}\n    network_settings: {hidden_units: 8}\n",
        encoding="utf-8",
    )
    results = f"--results-dir={folder / 'results'}"
    return main(["learn", str(configuration), "--env=sim:Basic", "--run-id=x", results, *options])


def steps(folder: Path) -> int:
    status: dict[str, Any] = json.loads((folder / "results/x/run_logs/training_status.json").read_text())
    found: int = status["Basic"]["final_checkpoint"]["steps"]
    return found


def test_the_same_command_starts_a_run_and_goes_on_with_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert learn(tmp_path, 100, "--resume=auto") == 0
    assert "has no checkpoint yet and starts" in capsys.readouterr().out
    first = steps(tmp_path)
    assert learn(tmp_path, 300, "--resume=auto") == 0
    shown = capsys.readouterr().out
    assert "has a checkpoint and continues" in shown
    assert f"Resuming training from step {first}." in shown
    assert steps(tmp_path) > 300
    assert [path.name for path in (tmp_path / "results").iterdir() if path.is_dir()] == ["x"]


def test_an_attempt_without_a_checkpoint_is_set_aside(tmp_path: Path) -> None:
    left = tmp_path / "results/x/Basic/events.out.tfevents.1.host"
    left.parent.mkdir(parents=True)
    left.write_bytes(b"left behind")
    assert learn(tmp_path, 100, "--resume=auto") == 0
    assert steps(tmp_path) > 100
    assert (tmp_path / "results/x.old/Basic" / left.name).read_bytes() == b"left behind"


def test_initial_weights_are_for_the_start_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert learn(tmp_path, 100) == 0
    (tmp_path / "results/x").rename(tmp_path / "results/other")
    options = ("--resume=auto", "--initialize-from=other")
    assert learn(tmp_path, 100, *options) == 0
    assert "results/other/Basic/checkpoint.pt" in capsys.readouterr().out
    assert learn(tmp_path, 300, *options) == 0
    assert "Resuming training from step" in capsys.readouterr().out


def parsed(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return parser.parse_args(words)


def test_the_switch_takes_no_value() -> None:
    for option in ("--resume", "--resum"):
        arguments = parsed(option, "auto")
        assert arguments.resume is True
        assert arguments.trainer_config_path == "auto"
        assert not hasattr(arguments, RESUME_AUTO)
    arguments = parsed("c.yaml", "--resume=auto")
    assert getattr(arguments, RESUME_AUTO) is True
    assert not hasattr(arguments, "resume")
    with pytest.raises(SystemExit):
        parsed("--resume=yes")


def test_config_shows_what_would_happen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = [f"--results-dir={tmp_path}", "--run-id=x", "--resume=auto"]
    assert main(["config", *options]) == 0
    assert "  resume: false\n" in capsys.readouterr().out
    (tmp_path / "x/Basic").mkdir(parents=True)
    (tmp_path / "x/Basic/checkpoint.pt").touch()
    assert main(["config", *options]) == 0
    assert "  resume: true\n" in capsys.readouterr().out


@pytest.mark.parametrize("words", ["--resume auto builtin:ppo/Basic", "builtin:ppo/Basic --resume auto"])
def test_auto_without_its_sign_is_explained(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["learn", *words.split()]) == 2
    assert "write --resume=auto" in capsys.readouterr().err
