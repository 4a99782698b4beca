"""Which file ``--env`` means."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from mlagents_envs.exception import UnityEnvironmentException

from trajtrainer.unity import executable
from trajtrainer.unity.faults import LaunchError


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
    assert executable.command(given, platform) == [str(tmp_path / expected)]
    if given == given.strip():
        assert executable.command(str(tmp_path / given), platform) == [str(tmp_path / expected)]


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
        executable.command(given, platform)
    assert "Couldn't launch the Ball environment. Provided filename does not match any environments." in str(
        caught.value
    )
    assert str(tmp_path / "Ball") in str(caught.value)
    assert isinstance(caught.value, UnityEnvironmentException)


@pytest.mark.parametrize("name", ["3DBall", "3DBall+Basic"])
def test_simulations(name: str) -> None:
    assert executable.command(f"sim:{name}") == [sys.executable, "-m", "trajtrainer.sim", name]


def test_a_simulation_needs_a_name() -> None:
    with pytest.raises(LaunchError, match="sim:3DBall"):
        executable.command("sim:")
