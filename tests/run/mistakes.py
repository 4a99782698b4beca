"""Mistakes in all parts of a command, which one error is to report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from trajtrainer.cli.main import main
from trajtrainer.core.errors import SettingsError
from trajtrainer.core.plugins import Registry
from trajtrainer.core.stats import StatsWriterRow
from trajtrainer.run import followers

MISTAKES: dict[str, Any] = {
    "behaviors": {
        "Imitator": {"trainer_type": "ppo", "behavioral_cloning": {"demo_path": "none.demo"}},
        "Player": {"self_play": {"opponents": ["nothing.pt"]}},
        "Reader": {"reward_signals": {"gail": {"demo_path": "none.demo"}}},
    },
    "env_settings": {"env_path": "sim:3DBal"},
    "actors": {"backend": "process", "overrides": [{"exploration_noise": 0.1}]},
    "checkpoint_settings": {"initialize_from": "earlier"},
    "torch_settings": {"device": "abacus"},
}


TOLD = [
    "behaviors.Imitator.behavioral_cloning.demo_path: there is no file or folder",
    "behaviors.Reader.reward_signals.gail.demo_path: there is no file or folder",
    "behaviors.Player.self_play.opponents: ",
    "actors.overrides has an exploration_noise, but Imitator (ppo)",
    "The pad is lost",
    "Did you mean '3DBall'?",
    "earlier",
    "torch_settings.device is 'abacus'",
]


def lost(_settings: object) -> None:
    raise SettingsError("The pad is lost.")


def write(folder: Path, settings: dict[str, Any]) -> str:
    (folder / "a.yaml").write_text(yaml.safe_dump(settings, sort_keys=False), encoding="utf-8")
    return "a.yaml"


def problems(shown: str) -> list[str]:
    """The lines of an error with several problems, whose number it says."""
    head, *lines = shown[shown.index("error: ") :].splitlines()
    assert head == f"error: {len(lines)} problems were found, and nothing was started:"
    assert all(line.startswith("  ") for line in lines)
    return lines


def assert_told(lines: list[str], told: list[str]) -> None:
    assert len(lines) == len(told)
    for line, part in zip(lines, told, strict=True):
        assert part in line


ENVIRONMENT = ["--env=sim:3DBal", "--torch-device=abacus"]


WRONG = ["3DBall", "abacus", "nobody"]


def lose_the_pad(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a writer of statistics find something wrong in every run."""
    rows = {"pad": StatsWriterRow(lambda _: [], check=lost)}
    monkeypatch.setattr(followers, "STATS_WRITERS", Registry("statistics writer", "nobody's", StatsWriterRow, rows))


def assert_all_reported(command: list[str], told: list[str], folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A command that acts reports what it was told wrong in one error, and what is wrong with the environment."""
    assert main([*command, *ENVIRONMENT]) == 1
    lines = problems(capsys.readouterr().err)
    for part in [*told, *WRONG]:
        assert any(part in line for line in lines), part
    assert list(folder.iterdir()) == []
