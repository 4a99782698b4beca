"""Recordings of earlier versions are summarized and learned from."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.upgrade.corpus import (
    command,
    configuration,
    step_of_new,
)
from tests.upgrade.writing import RUNS
from trajtrainer.cli.main import main


@pytest.mark.parametrize(
    "path", ["recordings/Toy.demo", "recordings/Toy.npz", f"{RUNS}/sac/Toy/last_replay_buffer.npz"]
)
def test_recordings_are_summarized_and_learned_from(
    path: str, corpus: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["demo", "info", path]) == 0
    said = capsys.readouterr().out
    assert "behavior Toy" in said
    if path.startswith("recordings"):
        assert "12 episodes, 396 steps" in said
    assert main(["demo", "convert", path, "-o", "converted.demo"]) == 0
    given = configuration("offline", max_steps=10, dataset=["converted.demo"])
    assert command("learn", given, "--run-id=new") == 0
    assert step_of_new("offline") == 10
