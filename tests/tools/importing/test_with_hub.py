"""Imported models and runs are pushed to the hub."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tools.importing.test_import import ENV, TOLD, agent, run
from trajtrainer.tools.hub.push import pack


def test_a_model_and_a_run_are_packed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    agent(Path("actor.pt"))
    Path("out").mkdir()
    run("import", "actor.pt", *ENV, "-o", "out/3DBall.onnx", *TOLD)
    parcel = pack(Path("out"), "anna/ball", Path())
    assert "3DBall.onnx" in parcel.files
    assert b"Exported with trajtrainer" in parcel.files["README.md"]  # type: ignore[operator]

    run("import", "actor.pt", *ENV, "-o", "theirs", *TOLD)
    parcel = pack(Path("theirs"), "anna/ball", Path())
    assert {"3DBall.onnx", "3DBall/checkpoint.pt", "configuration.yaml", "README.md"} <= parcel.files.keys()
    assert b"Trained with PPO of CleanRL, and imported with trajtrainer" in parcel.files["README.md"]  # type: ignore[operator]
