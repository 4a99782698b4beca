"""The tutorial on Pendulum, which compares SAC and XQC, runs as printed."""

from __future__ import annotations

import importlib
import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import trajtrainer
from tests.blocks import DOCS, run_examples


@pytest.mark.slow
def test_pendulum(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    sb3 = pytest.importorskip("stable_baselines3", reason="stable-baselines3 is not installed")
    evaluation = importlib.import_module("stable_baselines3.common.evaluation")
    learn, evaluate = sb3.SAC.learn, evaluation.evaluate_policy

    def few(*arguments: Any, n_eval_episodes: int, **options: Any) -> Any:
        assert n_eval_episodes == 50
        return evaluate(*arguments, n_eval_episodes=2, **options)

    monkeypatch.setattr(evaluation, "evaluate_policy", few)
    monkeypatch.setattr(sb3.SAC, "learn", lambda model, _: learn(model, 150))
    monkeypatch.setattr(trajtrainer, "learn", partial(trajtrainer.learn, max_epochs=1, epoch_steps=150))
    run_examples(DOCS / "tutorials" / "pendulum.md")
    assert re.search(r"Stable-Baselines3: -\d+\.\d \+/- ", capsys.readouterr().out)
