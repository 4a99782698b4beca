"""``trajtrainer learn`` up to where the run starts."""

from __future__ import annotations

import logging
import shlex
import subprocess
import sys
import types
from pathlib import Path

import pytest

import trajtrainer.run
from trajtrainer.cli.main import main
from trajtrainer.core.errors import RunFolderError
from trajtrainer.run.logs import ConsoleHandler
from trajtrainer.settings.run import CheckpointSettings, RunSettings


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[tuple[RunSettings, int, str]]:
    """Stands in for the run: notes the settings and the level of the log, and fails if the run-id says so."""
    runs: list[tuple[RunSettings, int, str]] = []

    def run(settings: RunSettings, handler: ConsoleHandler, _timers: object, resume_command: str) -> int:
        runs.append((settings, handler.threshold, resume_command))
        if settings.checkpoint_settings.run_id == "taken":
            raise RunFolderError("taken already")
        return 143

    module = types.ModuleType("trajtrainer.run.session")
    module.__dict__["run"] = run
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(trajtrainer.run, "session", module, raising=False)
    return runs


def test_the_run_gets_the_settings_and_gives_the_exit_code(
    tmp_path: Path, started: list[tuple[RunSettings, int, str]]
) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("behaviors: {A: {max_steps: 7}}\n", encoding="utf-8")

    assert main(["learn", str(path), "--run-id", "x"]) == 143

    ((settings, level, _),) = started
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
    env: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)

    assert main(["learn", f"--env={env}"]) == 1

    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_debug_may_stand_in_the_file(tmp_path: Path, started: list[tuple[RunSettings, int, str]]) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("debug: true\n", encoding="utf-8")

    main(["learn", str(path)])

    assert [level for _, level, _ in started] == [logging.DEBUG]


def test_an_error_of_the_run(started: list[tuple[RunSettings, int, str]], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["learn", "--run-id", "taken"]) == 1
    assert capsys.readouterr().err == "error: taken already\n"
    assert len(started) == 1


def test_wrong_settings_are_reported_before_anything_slow_is_imported() -> None:
    program = (
        "import sys; from trajtrainer.cli.main import main; code = main(['learn', '--num-areas', '0']); "
        "print(code, 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=True)

    assert done.stdout == "1 False\n"
    assert "--num-areas: found 0" in done.stderr


def test_the_banner_is_there_before_torch() -> None:
    program = """
import sys
from importlib.abc import MetaPathFinder
from trajtrainer.cli.main import main

class Watch(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "torch":
            print("TORCH IS IMPORTED")
            sys.exit(3)

sys.meta_path.insert(0, Watch())
main(["learn", "--run-id", "x"])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=False)

    lines = done.stdout.splitlines()
    assert lines[0].startswith("trajtrainer 0.")
    assert lines[-1] == "TORCH IS IMPORTED"


@pytest.mark.parametrize(("arguments", "level"), [(["--quiet"], logging.WARNING), ([], logging.INFO)])
def test_quiet_is_quiet(
    arguments: list[str],
    level: int,
    started: list[tuple[RunSettings, int, str]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    main(["learn", "--run-id", "x", *arguments])

    assert [level for _, level, _ in started] == [level]
    assert (capsys.readouterr().out == "") == (level == logging.WARNING)


def test_the_command_to_resume_is_the_same_command(
    tmp_path: Path, started: list[tuple[RunSettings, int, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["/somewhere/bin/trajtrainer"])
    path = tmp_path / "my settings.yaml"
    path.write_text("behaviors: {A: {}}\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    for ending in (".x86_64", ".exe", ".app"):  # a build for whatever system this is
        (tmp_path / "builds").mkdir(exist_ok=True)
        (tmp_path / "builds" / f"My Game{ending}").touch(mode=0o755)
    options = ["--env=builds/My Game", "--run-id=x", "--seed=-1", "--num-envs=2", "--no-graphics"]
    main(["learn", str(path), *options, "--force", "--initialize-from=old", "--env-args", "--level", "two words"])
    ((first, _, command),) = started

    words = shlex.split(command)
    main(words[1:])

    again = started[1][0]
    assert command.startswith(f"trajtrainer learn '{path}' '--env=builds/My Game' --run-id=x ")
    assert again.checkpoint_settings == CheckpointSettings(run_id="x", resume=True)
    assert again.env_settings == first.env_settings
    assert again.engine_settings == first.engine_settings
