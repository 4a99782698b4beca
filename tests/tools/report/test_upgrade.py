"""Runs of earlier versions are reported."""

from __future__ import annotations

from pathlib import Path

from tests.upgrade.writing import KINDS, RUNS
from trajtrainer.cli.main import main


def test_runs_are_reported(corpus: Path) -> None:
    assert main(["report", *KINDS, f"--results-dir={RUNS}", "-o", "report.html"]) == 0
    page = Path("report.html").read_text(encoding="utf-8")
    assert all(name in page for name in KINDS)
