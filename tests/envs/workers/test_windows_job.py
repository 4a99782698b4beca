"""No player outlives the trainer on Windows, nor what it has started."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from trajtrainer.envs.unity.launcher import PlayerProcess

LIMIT_S = 300.0
pytestmark = pytest.mark.skipif(sys.platform != "win32", reason="job objects of Windows")

# Appends to the file NAME.player for as long as it lives, and its child to NAME.child.
PLAYER = """
import subprocess, sys, time
name, role = sys.argv[1:]
if role == "player":
    subprocess.Popen([sys.executable, "-c", sys.orig_argv[2], name, "child"])
while True:
    with open(f"{name}.{role}", "a") as file:
        file.write("x")
    time.sleep(0.05)
"""
TRAINER = """
import sys, time
from trajtrainer.envs.unity.launcher import PlayerProcess
PlayerProcess(sys.argv[1:], show_output=False, on_exit=lambda: None)
time.sleep(600)
"""


class Family:
    """A player and its child, by what they write."""

    def __init__(self, folder: Path) -> None:
        self.command = [sys.executable, "-c", PLAYER, str(folder / "beat"), "player"]
        self._files = [folder / "beat.player", folder / "beat.child"]

    def wait_until_alive(self) -> None:
        until(lambda: all(file.exists() for file in self._files))

    def wait_until_gone(self) -> None:
        until(lambda: not self._beats())

    def _beats(self) -> bool:
        before = [file.stat().st_size for file in self._files]
        time.sleep(1.0)
        return before != [file.stat().st_size for file in self._files]


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.fixture
def family(tmp_path: Path) -> Family:
    return Family(tmp_path)


def test_a_killed_trainer_takes_them_along(family: Family) -> None:
    trainer = subprocess.Popen([sys.executable, "-c", TRAINER, *family.command])
    family.wait_until_alive()
    trainer.kill()
    trainer.wait()
    family.wait_until_gone()


def test_a_killed_player_takes_its_child_along(family: Family) -> None:
    player = PlayerProcess(family.command, show_output=False, on_exit=lambda: None)
    family.wait_until_alive()
    player.kill()
    assert player.wait(LIMIT_S)
    family.wait_until_gone()


def test_what_a_player_leaves_behind_may_finish(tmp_path: Path) -> None:
    """Unity's crash handler, say."""
    report = tmp_path / "report"
    handler = f"import time; time.sleep(2); open({str(report)!r}, 'w').close()"
    program = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {handler!r}]); sys.exit(3)"
    player = PlayerProcess([sys.executable, "-c", program], show_output=False, on_exit=lambda: None)
    assert player.wait(LIMIT_S)
    assert player.describe_end() == "exited with return code 3"
    until(report.exists)
