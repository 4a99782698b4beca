"""A tournament of imported models."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.tools.importing.test_import import run


def test_a_tournament(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    for name, favorite in (("low", 0), ("high", 2)):
        state = {"actor.0.weight": torch.zeros(3, 3), "actor.0.bias": torch.eye(3)[favorite] * 9}
        torch.save(state, f"{name}.pt")
        run("import", f"{name}.pt", "--env=python:tests.tools.bids:Bids", "-o", f"{name}.onnx", "--quiet")
    capsys.readouterr()
    run(
        "tournament",
        "low.onnx",
        "high.onnx",
        "--env=python:tests.tools.bids:Bids",
        "--games",
        "6",
        "--quiet",
    )
    winner, loser = (line.split()[0] for line in capsys.readouterr().out.splitlines()[1:3])
    assert (winner, loser) == ("high.onnx", "low.onnx")
