"""The configuration that the Gymnasium tutorial lets ``trajtrainer init`` write is learned with."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.test_tutorials import TUTORIALS, shorten, write_files
from trajtrainer.cli.main import main


@pytest.mark.slow
def test_the_environment_of_the_gymnasium_tutorial(here: Path) -> None:
    write_files(TUTORIALS / "gymnasium.md", here)
    assert main(["init", "--env=python:docking:Docking"]) == 0
    shorten(here / "Docking.yaml", 500)
    assert main(["learn", "Docking.yaml", "--run-id=dock", "--num-envs=8"]) == 0
