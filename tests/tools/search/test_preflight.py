"""Everything that can be known to be wrong before a search starts anything is in one error."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest

from tests.run.mistakes import MISTAKES, TOLD, assert_told, lose_the_pad, problems, write
from trajtrainer.cli.main import main


def test_it_reports_everything_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    lose_the_pad(monkeypatch)
    settings = copy.deepcopy(MISTAKES)
    del settings["checkpoint_settings"], settings["behaviors"]["Reader"]
    section = {"trials": 2, "ranges": {"behaviors.Imitator.hyperparameters.beta": {"low": 1e-4, "high": 1e-2}}}
    settings["search"] = {**section, "behavior": "Imitator"}

    assert main(["search", write(tmp_path, settings)]) == 1

    told = [each for each in TOLD if "Reader" not in each and each != "earlier"]
    assert_told(problems(capsys.readouterr().err), told)
    assert [path.name for path in tmp_path.iterdir()] == ["a.yaml"]


def test_the_shipped_search_is_correct() -> None:
    assert main(["config", "builtin:search/CartPole"]) == 0
