"""``trajtrainer export --to godot-onnx``."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.test_export import export, refused, run_folder


def test_a_model_for_godot_lies_where_the_model_does(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = run_folder(tmp_path / "results" / "first", "A", "B")
    assert export(run, "--to", "godot-onnx") == 0
    files = sorted(path.name for path in run.iterdir() if path.is_file())
    assert files == ["A.godot.onnx", "B.godot.onnx"]
    assert export(run, "--to", "godot-onnx", "--behavior", "B", "--output", tmp_path / "own.onnx") == 0
    assert (tmp_path / "own.onnx").read_bytes() == (run / "B.godot.onnx").read_bytes()
    assert "cannot all be written" in refused(capsys, run, "--to", "godot-onnx", "--output", tmp_path / "a.onnx")
    assert "--action-order can only be used with --to godot-onnx" in refused(capsys, run, "--action-order", "discrete")
