"""SIGKILL while checkpoints are being saved: the next start finds a whole one, as new as the last reported."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.run import prefork

KILLS = 25


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_kill_at_any_moment_leaves_a_run_to_resume(tmp_path: Path) -> None:
    program = Path(__file__).with_name("kill_while_saving.py").read_text(encoding="utf-8")
    code, output = prefork.run(program, str(tmp_path), str(KILLS), "1", log=tmp_path / "log")
    assert code == 0, output
    rounds = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    assert len(rounds) == KILLS
    assert rounds[-1]["resumed"] > 10, "the children got to save"
    for found in rounds:
        assert found["whole"]
        assert found["resumed"] in (found["reported"], found["reported"] + 1)
        assert not [name for name in found["files"] if name.startswith(".")]
        numbered = {name for name in found["files"] if name.startswith("Ball-") and name.endswith(".pt")}
        assert numbered <= {f"Ball-{step}.pt" for step in found["listed"]}, "no file is left that nobody knows"
        assert len(found["listed"]) <= 6, "two are kept, and one per kill in a row that came before the rotation"
