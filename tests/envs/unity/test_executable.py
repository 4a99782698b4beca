"""Which file ``--env`` means."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from mlagents_envs.exception import UnityEnvironmentException

from trajtrainer.envs.unity import launcher
from trajtrainer.envs.unity.faults import LaunchError


def touch(folder: Path, *names: str) -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


@pytest.mark.parametrize(
    ("platform", "files", "given", "expected"),
    [
        # The order of the candidates.
        ("linux", ["Ball.x86_64", "Ball.x86", "Ball"], "Ball", "Ball.x86_64"),
        ("linux", ["Ball.x86", "Ball"], "Ball", "Ball.x86"),
        ("linux", ["Ball"], "Ball", "Ball"),
        ("linux2", ["Ball.x86"], "Ball", "Ball.x86"),
        # An ending may be given, another system's too.
        ("linux", ["Ball.x86_64"], "Ball.x86_64", "Ball.x86_64"),
        ("linux", ["Ball.x86_64"], "Ball.exe", "Ball.x86_64"),
        ("linux", ["Ball.x86_64"], "Ball.app", "Ball.x86_64"),
        ("linux", ["Ball.x86", "Ball.x86_64"], "Ball.x86", "Ball.x86_64"),
        ("linux", ["Ball.x86_64"], "  Ball\n", "Ball.x86_64"),
        ("linux", ["run.sh"], "run.sh", "run.sh"),
        # Only an ending is taken off, and only of the name.
        ("linux", ["my.app.v2/Ball.x86_64"], "my.app.v2/Ball", "my.app.v2/Ball.x86_64"),
        ("linux", ["old.x86/new.exe.d/Ball"], "old.x86/new.exe.d/Ball", "old.x86/new.exe.d/Ball"),
        ("linux", ["Ball.x86_64.backup"], "Ball.x86_64.backup", "Ball.x86_64.backup"),
        ("linux", ["Ball.exe"], "Ball.exe", "Ball.exe"),
        ("linux", [".x86"], ".x86", ".x86"),
        ("linux", ["Ball [1].x86_64"], "Ball [1]", "Ball [1].x86_64"),
        ("darwin", ["Ball.app/Contents/MacOS/Ball"], "Ball", "Ball.app/Contents/MacOS/Ball"),
        ("darwin", ["Ball.app/Contents/MacOS/Ball"], "Ball.app", "Ball.app/Contents/MacOS/Ball"),
        ("darwin", ["Ball.app/Contents/MacOS/Ball"], "Ball.app/", "Ball.app/Contents/MacOS/Ball"),
        (
            "darwin",
            ["Ball.app/Contents/MacOS/A Game", "Ball.app/Contents/MacOS/b"],
            "Ball",
            "Ball.app/Contents/MacOS/A Game",
        ),
        ("darwin", ["a.app.b/Ball.app/Contents/MacOS/Ball"], "a.app.b/Ball", "a.app.b/Ball.app/Contents/MacOS/Ball"),
        ("win32", ["Ball.exe"], "Ball", "Ball.exe"),
        ("win32", ["Ball.exe", "Ball/Game.exe"], "Ball", "Ball.exe"),
        ("win32", ["Ball/Game.exe", "Ball/AUnityCrashHandler.exe"], "Ball", "Ball/AUnityCrashHandler.exe"),
        ("win32", ["Ball/UnityCrashHandler64.exe", "Ball/Zoo.exe"], "Ball", "Ball/Zoo.exe"),
    ],
)
def test_paths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, platform: str, files: list[str], given: str, expected: str
) -> None:
    touch(tmp_path, *files)
    monkeypatch.chdir(tmp_path)
    assert launcher.command(given, platform) == [str(tmp_path / expected)]
    if given == given.strip():
        assert launcher.command(str(tmp_path / given), platform) == [str(tmp_path / expected)]


@pytest.mark.parametrize(
    ("platform", "files", "given"),
    [
        ("linux", [], "Ball"),
        ("linux", ["Ball/Ball_Data"], "Ball"),
        ("linux", ["Ball.x86_64/readme"], "Ball"),
        ("darwin", ["Ball.x86_64"], "Ball"),
        ("win32", ["Ball/UnityCrashHandler64.exe"], "Ball"),
    ],
)
def test_nothing_fits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, platform: str, files: list[str], given: str
) -> None:
    touch(tmp_path, *files)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(LaunchError) as caught:
        launcher.command(given, platform)
    assert "Couldn't launch the Ball environment. Provided filename does not match any environments." in str(
        caught.value
    )
    assert str(tmp_path / "Ball") in str(caught.value)
    assert isinstance(caught.value, UnityEnvironmentException)


@pytest.mark.parametrize(
    ("platform", "files", "given", "hint"),
    [
        ("linux", ["Out/Ball.x86_64", "Out/Ball_Data/x"], "Out", "It contains Ball.x86_64: --env=Out/Ball.x86_64"),
        ("darwin", ["Out/Ball.app/Contents/x", "Out/a.txt"], "Out/", "It contains Ball.app: --env=Out/Ball.app"),
        (
            "linux",
            ["Out/Ball.exe", "Out/Ball_Data/x"],
            "Out",
            "for linux. It contains Ball.exe, Ball_Data",
        ),
        (
            "win32",
            ["Out/UnityCrashHandler64.exe"],
            "Out",
            "for win32. It contains UnityCrashHandler64.exe",
        ),
        ("linux", ["Out/In/Ball.x86_64"], "Out/In/..", "without a build for linux. It contains In"),
        (
            "linux",
            [f"Out/{letter}" for letter in "abcdefghijk"],
            "Out",
            "contains a, b, c, d, e, f, g, h and 3 more",
        ),
        ("linux", ["Ball_Data/x", "Out/Ball.x86"], "Ball.x86", "Tried: "),
    ],
)
def test_what_may_be_meant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, platform: str, files: list[str], given: str, hint: str
) -> None:
    touch(tmp_path, *files)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(LaunchError) as caught:
        launcher.command(given, platform)
    assert hint in str(caught.value).replace(os.sep, "/")
    assert "\n" not in str(caught.value)


def test_an_empty_folder(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match="is an empty folder"):
        launcher.command(str(tmp_path))


@pytest.mark.parametrize("name", ["3DBall", "3DBall+Basic"])
def test_simulations(name: str) -> None:
    assert launcher.command(f"sim:{name}") == [sys.executable, "-m", "trajtrainer.envs.sim", name]
