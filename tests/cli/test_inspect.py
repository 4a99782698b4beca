"""``trajtrainer inspect``: what it prints and returns."""

from __future__ import annotations

from pathlib import Path

import onnx.parser
import pytest

from tests.policies.onnx.test_inspect import POLICY
from trajtrainer.cli.main import main


def run(*files: Path) -> int:
    return main(["inspect", *map(str, files)])


@pytest.fixture
def good(tmp_path: Path) -> Path:
    path = tmp_path / "good.onnx"
    path.write_bytes(onnx.parser.parse_model(POLICY).SerializeToString())
    return path


@pytest.fixture
def bad(tmp_path: Path) -> Path:
    path = tmp_path / "bad.onnx"
    path.write_text("rubbish")
    return path


def test_a_good_model_gives_0_and_a_readable_report(good: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(good) == 0

    text = capsys.readouterr().out
    assert "Unity loads it: yes" in text
    assert "actions: 2 continuous and discrete branches of 3, 2; memory of 4" in text
    assert "obs_1 float32 [batch, 3, 4, 4]" in text
    assert "error" not in text


def test_one_bad_file_of_several_gives_1_and_all_are_reported(
    good: Path, bad: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(good, bad) == 1

    text = capsys.readouterr().out
    assert text.index("good.onnx") < text.index("Unity loads it: yes") < text.index("bad.onnx")
    assert "Unity loads it: NO" in text
    assert "error: this is not an ONNX model" in text


def test_a_missing_file_gives_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path / "none.onnx") == 1
    assert "the file does not exist" in capsys.readouterr().out


def test_at_least_one_file_must_be_given(capsys: pytest.CaptureFixture[str]) -> None:
    assert run() == 2
    assert "FILE.onnx" in capsys.readouterr().err


def test_names_in_a_file_forge_no_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = onnx.parser.parse_model(POLICY)
    model.producer_name = "x\n  Unity loads it: yes\x1b[2J"
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    run(path)
    text = capsys.readouterr().out
    assert text.count("\n  Unity loads it: yes\n") == 1
    assert r"made by x\n  Unity loads it: yes\x1b[2J" in text
