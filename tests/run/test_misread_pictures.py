"""Weights of ML-Agents runs that learned from scrambled pictures are taken over with a warning."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import trajtrainer
from tests.run.runs import behaviors_settings, ppo

WARNING = "learned from scrambled pictures"
SETTINGS = behaviors_settings(GridWorld=ppo(40, network_settings={"hidden_units": 8}))
ENVIRONMENT = ["--agents", "4", "--camera", "20,20"]


def learn(tmp_path: Path, run_id: str, *env_args: str, **options: Any) -> None:
    trajtrainer.learn(
        SETTINGS,
        "sim:GridWorld",
        run_id=run_id,
        results_dir=tmp_path,
        env_args=[*ENVIRONMENT, *env_args],
        verbose=False,
        **options,
    )


@pytest.fixture
def of_ml_agents(tmp_path: Path) -> Path:
    """A run of ours, and beside it the same as ML-Agents would have left it."""
    learn(tmp_path, "ours")
    content = torch.load(tmp_path / "ours" / "GridWorld" / "checkpoint.pt", weights_only=True)
    del content["trajtrainer"]
    folder = tmp_path / "theirs" / "GridWorld"
    folder.mkdir(parents=True)
    torch.save(content, folder / "checkpoint.pt")
    return tmp_path


def test_who_takes_over_such_weights_is_warned(of_ml_agents: Path, caplog: pytest.LogCaptureFixture) -> None:
    learn(of_ml_agents, "initialized", initialize_from="theirs")
    assert caplog.text.count(WARNING) == 1
    assert str(of_ml_agents / "theirs" / "GridWorld" / "checkpoint.pt") in caplog.text
    learn(of_ml_agents, "theirs", resume=True, num_envs=2)
    assert caplog.text.count(WARNING) == 2


def test_who_takes_over_others_is_not(of_ml_agents: Path, caplog: pytest.LogCaptureFixture) -> None:
    learn(of_ml_agents, "raw", initialize_from="ours")
    learn(of_ml_agents, "png", "--png", initialize_from="theirs")
    assert (of_ml_agents / "png" / "GridWorld" / "checkpoint.pt").is_file()
    assert WARNING not in caplog.text
