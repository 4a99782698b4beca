"""Runs of earlier versions are evaluated."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.upgrade.corpus import (
    behavior_of,
    command,
)
from tests.upgrade.writing import KINDS


@pytest.mark.parametrize("name", [*KINDS, "ppo@best", "selfplay@best", "evaluated@best"])
def test_a_run_is_evaluated(name: str, corpus: Path) -> None:
    env = KINDS[name.partition("@")[0]][0] or "sim:Toy"
    assert command("evaluate", name, "--episodes=2", f"--env={env}", "--json=found.json") == 0
    (found,) = json.loads(Path("found.json").read_text())["results"]
    assert found["behaviors"][behavior_of(name.partition("@")[0])]["episodes"] >= 2
