"""What ``--env=godot`` may say, and what is said when it cannot be."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.envs.test_select import NoLogs, settings
from trajtrainer.core.errors import TrajtrainerError
from trajtrainer.envs import select
from trajtrainer.plugins.godot import build, environment
from trajtrainer.settings.run import RunSettings
from trajtrainer.settings.schemes import UNITY, find_scheme


@pytest.mark.parametrize("path", ["godot", "godot:sim:Chase", "godot:build/game.x86_64"])
def test_games_of_godot(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[RunSettings] = []
    monkeypatch.setattr(build, "command", lambda path: [path])
    monkeypatch.setattr(environment, "make_godot_environment", lambda given, logs, **_: asked.append(given))
    given = settings(path)
    select.make_environment(given, NoLogs())
    select.make_separate_environments(given, NoLogs())
    assert asked == [given, given]
    assert select.is_player(path)
    assert find_scheme(path) not in (None, UNITY)


def test_games_of_godot_that_there_are_not(tmp_path: Path) -> None:
    (tmp_path / "project.godot").touch()
    for path, message in (
        ("godot:", "does not name the game"),
        ("godot:sim:Chas", "Did you mean 'Chase'"),
        (f"godot:{tmp_path}/none", "exported for this system"),
        (f"godot:{tmp_path}", "is a project. Export it"),
        (f"godot:{tmp_path.parent}", "is a folder. Pass the path of the exported file"),
    ):
        with pytest.raises(TrajtrainerError, match=message):
            select.check(path)
    select.check("godot")
    select.check("godot:sim:Chase+Basic")


def test_paths_of_games_that_mean_the_same_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for path in ("godot", "godot:sim:Chase"):
        assert select.absolute(path) == path
    assert select.absolute("godot:build/game") == f"godot:{tmp_path / 'build/game'}"


def test_arguments_of_a_game_of_godot() -> None:
    given = {"action_repeat": 4, "--level": "cave", "no-headless": True, "off": False}
    assert select.to_env_args("godot:game", given) == ["--action_repeat=4", "--level=cave", "--no-headless"]
