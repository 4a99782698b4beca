"""Imported models are evaluated."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.tools.importing.test_import import ENV, TOLD, agent, run


def test_a_model_is_evaluated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    agent(Path("actor.pt"))
    run("import", "actor.pt", *ENV, "-o", "3DBall.onnx", *TOLD)
    run("evaluate", "3DBall.onnx", *ENV, "--episodes", "12", "--json", "result.json", "--quiet")
    (result,) = json.loads(Path("result.json").read_text())["results"]
    assert result["behaviors"]["3DBall"]["episodes"] == 12
