"""The causes that are planted are named, and nothing is named where nothing is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tools.verify.planting import Planted, plant_all, plant_none
from trajtrainer.cli.main import main

SEED = 46  # never changed to one that happens to do better


def named(planted: Planted, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Exit code and what the command printed."""
    code = main(["verify", *planted.arguments])
    return code, capsys.readouterr().out


def test_planted_causes_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    right: list[str] = []
    wrong: list[str] = []
    for planted in plant_all(tmp_path, SEED):
        code, out = named(planted, capsys)
        assert planted.cause is not None
        is_named = code == 1 and f"  likely cause: {planted.cause.value}\n" in out
        if planted.step is not None:
            is_named = is_named and f"the checkpoint of step {planted.step:,} " in out
        (right if is_named else wrong).append(f"{planted.name}: {out}")
    assert len(right) >= 11, "\n".join(wrong)


def test_nothing_is_named_where_nothing_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for planted in plant_none(tmp_path, SEED, 12):
        code, out = named(planted, capsys)
        assert code == 0, out
        assert "AGREE: " in out
        assert "likely cause" not in out
