"""The examples of docs/unity-environments.md are run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "unity-environments.md"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def test_the_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    text = PAGE.read_text(encoding="utf-8")
    names: dict[str, Any] = {"__name__": "unity_environments_page"}
    for found in BLOCK.finditer(text):
        line = text[: found.start(1)].count("\n")
        exec(compile("\n" * line + found[1], str(PAGE), "exec"), names)  # errors tell the page's line
    assert "3DBall?team=0 [(8,)] Continuous: 2" in capsys.readouterr().out
