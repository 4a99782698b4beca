"""``trajtrainer config``."""

from __future__ import annotations

from pathlib import Path

import pytest

from trajtrainer.cli.main import main
from trajtrainer.settings.yaml.convert import load


def test_it_prints_the_whole_configuration_as_yaml(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("behaviors: {A: {framework: pytorch, max_steps: 5e3}}\n", encoding="utf-8")

    assert main(["config", str(path), "--seed", "4"]) == 0

    shown = capsys.readouterr()
    settings = load(shown.out, "shown.yaml")
    assert settings.behaviors["A"].max_steps == 5000
    assert settings.env_settings.seed == 4
    assert shown.err.startswith(f"[WARNING] {path}:1: behaviors.A.framework: ")


def test_it_starts_nothing_and_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    assert main(["config", "--env", "no such player", "--run-id", "x"]) == 0
    assert list(tmp_path.iterdir()) == []


def test_it_reports_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("behaviors:\n  A:\n    max_step: 5\nengine_setting: {}\n", encoding="utf-8")

    assert main(["config", str(path)]) == 1
    assert capsys.readouterr().err.splitlines() == [
        "error: 2 problems in the configuration:",
        f"  {path}:3: behaviors.A.max_step: unknown option; did you mean max_steps?",
        f"  {path}:4: engine_setting: unknown option; did you mean engine_settings?",
    ]


def test_it_refuses_a_name_that_fits_no_folder(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "--run-id", "../x"]) == 1
    assert capsys.readouterr().err.startswith("error: ")
