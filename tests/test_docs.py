"""The examples of the pages are run, and every public name has one."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import trajtrainer

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "python.md"
PLUGINS = ROOT / "tests" / "plugin_package" / "trajtrainer_sample"  # which tests/test_plugins.py runs
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def test_the_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("trajtrainer.run.evaluations.usable_cores", lambda: 1)  # in turn: a process takes long to start
    text = PAGE.read_text(encoding="utf-8")
    names: dict[str, Any] = {"__name__": "python_page"}
    for found in BLOCK.finditer(text):
        line = text[: found.start(1)].count("\n")
        exec(compile("\n" * line + found[1], str(PAGE), "exec"), names)  # errors tell the page's line
    printed = capsys.readouterr().out
    for word in ("saved CartPole-v1", "better CartPole-v1", "evaluated CartPole-v1", "s of learning"):
        assert word in printed


def test_every_public_name_has_an_example() -> None:
    code = "\n".join(BLOCK.findall(PAGE.read_text(encoding="utf-8")))
    used = set(re.findall(r"trajtrainer\.(\w+)", code))
    samples = "\n".join(path.read_text(encoding="utf-8") for path in PLUGINS.glob("*.py"))
    used |= {name for name in trajtrainer.__all__ if re.search(rf"\b{name}\b", samples)}
    assert set(trajtrainer.__all__) - used - {"__version__"} == set()
