"""``trajtrainer learn`` up to where the run starts."""

from __future__ import annotations

import logging
import subprocess
import sys
import types
from pathlib import Path

import pytest

import trajtrainer.runtime
from trajtrainer.cli.main import main
from trajtrainer.errors import RunFolderError
from trajtrainer.settings.run import RunSettings


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[tuple[RunSettings, int]]:
    """Stands in for the run: notes the settings and the level of the log, and fails if the run-id says so."""
    runs: list[tuple[RunSettings, int]] = []

    def run(settings: RunSettings, _handler: object, _timers: object) -> int:
        runs.append((settings, logging.getLogger("trajtrainer").getEffectiveLevel()))
        if settings.checkpoint_settings.run_id == "taken":
            raise RunFolderError("taken already")
        return 143

    module = types.ModuleType("trajtrainer.runtime.learn")
    module.__dict__["run"] = run
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(trajtrainer.runtime, "learn", module, raising=False)
    return runs


def test_the_run_gets_the_settings_and_gives_the_exit_code(
    tmp_path: Path, started: list[tuple[RunSettings, int]]
) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("behaviors: {A: {max_steps: 7}}\n", encoding="utf-8")

    assert main(["learn", str(path), "--run-id", "x"]) == 143

    ((settings, level),) = started
    assert settings.for_behavior("A").max_steps == 7
    assert settings.checkpoint_settings.run_id == "x"
    assert level == logging.INFO


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ("sim:3DBal", "Did you mean '3DBall'?"),
        ("CartPole-v1", "--env=gym:CartPole-v1"),
        ("gym:", "gym:CartPole-v1"),
    ],
)
def test_an_environment_that_cannot_be_is_refused_before_anything_starts(
    env: str, message: str, started: list[tuple[RunSettings, int]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["learn", f"--env={env}"]) == 1

    assert message in capsys.readouterr().err
    assert started == []


def test_debug_may_stand_in_the_file(tmp_path: Path, started: list[tuple[RunSettings, int]]) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("debug: true\n", encoding="utf-8")

    main(["learn", str(path)])

    assert [level for _, level in started] == [logging.DEBUG]


def test_an_error_of_the_run(started: list[tuple[RunSettings, int]], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["learn", "--run-id", "taken"]) == 1
    assert capsys.readouterr().err == "error: taken already\n"
    assert len(started) == 1


def test_wrong_settings_are_reported_before_anything_slow_is_imported() -> None:
    program = (
        "import sys; from trajtrainer.cli.main import main; code = main(['learn', '--num-areas', '0']); "
        "print(code, 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)

    assert done.stdout == "1 False\n"
    assert "--num-areas: found 0" in done.stderr
