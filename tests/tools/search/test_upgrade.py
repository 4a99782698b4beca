"""Searches of earlier versions go on."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.upgrade.writing import RUNS
from trajtrainer.cli.main import main


def test_a_search_goes_on(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("optuna", reason="the extra 'tune' is not installed")
    journal = Path(RUNS, "search", "study.journal")
    before = journal.read_bytes()
    words = ["search", "configurations/search.yaml", "--run-id=search", "--resume", "--trials=3"]
    assert main([*words, f"--results-dir={RUNS}"]) == 0
    assert journal.read_bytes().startswith(before), "what is in the journal stays"
    assert "3 trials: 3 completed" in capsys.readouterr().out
    assert Path(RUNS, "search", "trial-0002", "Toy", "checkpoint.pt").is_file()
