"""Everything that can be known to be wrong before ``tournament`` starts anything is in one error."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.run.mistakes import assert_all_reported


def test_it_reports_everything_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    command = ["tournament", "nobody", "nothing", "--json=gone/a.json"]
    assert_all_reported(command, ["--json gone"], tmp_path, capsys)
