"""``trajtrainer export --to LANGUAGE``."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.test_export import checkpoint_of, export, refused, run_folder, saved
from tests.learning.nn.specs import behavior, network, vector
from tests.policies.onnx.test_onnx import random_actor


@pytest.mark.parametrize(("language", "suffix"), [("c", ".h"), ("csharp", ".cs"), ("js", ".mjs"), ("gdscript", ".gd")])
def test_source_code_lies_where_the_model_does(tmp_path: Path, language: str, suffix: str) -> None:
    run = run_folder(tmp_path / "results" / "first", "A", "B")
    assert export(run, "--to", language) == 0
    assert sorted(path.name for path in run.iterdir() if path.is_file()) == [f"A{suffix}", f"B{suffix}"]
    assert "of the run 'first' after 7 steps" in (run / f"A{suffix}").read_text(encoding="utf-8")
    assert export(run, "--to", language, "--behavior", "B", "--output", tmp_path / f"own{suffix}") == 0
    assert (tmp_path / f"own{suffix}").read_bytes() == (run / f"B{suffix}").read_bytes()


def test_a_script_for_godot_and_its_node_lie_where_the_model_does(tmp_path: Path) -> None:
    run = run_folder(tmp_path / "results" / "first", "A", "B")
    assert export(run, "--to", "godot") == 0
    files = sorted(path.name for path in run.iterdir() if path.is_file())
    assert files == ["A.gd", "ANode.gd", "B.gd", "BNode.gd"]
    assert "class_name PolicyCrawlerNode" in (run / "ANode.gd").read_text(encoding="utf-8")


def test_source_code_of_a_checkpoint_in_no_run(tmp_path: Path) -> None:
    actor = random_actor(behavior([vector(3)]))
    path = saved(tmp_path / "A-7.pt", checkpoint_of(actor, network()))
    assert export(path, "--to", "js") == 0
    assert "The policy of 'Crawler' after 7 steps, for JavaScript." in (tmp_path / "A-7.mjs").read_text()


def test_source_code_has_no_opset(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = run_folder(tmp_path / "first", "A")
    assert "--opset can only be used with --to onnx" in refused(capsys, run, "--to", "c", "--opset", "15")
    assert "There is no checkpoint in" in refused(capsys, tmp_path / "first" / "run_logs", "--to", "c")
    assert [path.name for path in run.iterdir() if path.is_file()] == []


@pytest.mark.parametrize("language", ["c", "csharp", "js", "gdscript"])
def test_source_code_that_is_too_large(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, language: str
) -> None:
    monkeypatch.setattr("trajtrainer.tools.source.write.MOST_WEIGHTS", 10)
    run = run_folder(tmp_path / "first", "A")
    assert "source code can have at most 10. Use its .onnx" in refused(capsys, run, "--to", language)
    assert [path.name for path in run.iterdir() if path.is_file()] == []
