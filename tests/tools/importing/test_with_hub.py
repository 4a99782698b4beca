"""Imported models and runs are pushed to the hub."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.tools.importing.test_import import ENV, TOLD, agent, run
from trajtrainer.tools.hub.push import pack


def test_a_model_and_a_run_are_packed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    agent(Path("actor.pt"))
    Path("out").mkdir()
    run("import", "actor.pt", *ENV, "-o", "out/3DBall.onnx", *TOLD)
    assert "3DBall.onnx" in packed("out")
    assert b"Exported with trajtrainer" in packed("out")["README.md"]

    run("import", "actor.pt", *ENV, "-o", "theirs", *TOLD)
    files = packed("theirs")
    assert {"3DBall.onnx", "3DBall/checkpoint.pt", "configuration.yaml", "README.md"} <= files.keys()
    assert b"Trained with PPO of CleanRL, and imported with trajtrainer" in files["README.md"]


def packed(run: str) -> dict[str, bytes]:
    with TemporaryDirectory() as name:
        folder = Path(name)
        pack(Path(run), "anna/ball", folder)
        return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
