"""``trajtrainer learn`` with XQC: learning, files, tags, and going on with the saved experience."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.run.runs import FinishedRun, behaviors_settings, learn
from tests.run.test_learn import check_files
from trajtrainer.policies.checkpoints.replay_file import NAME

TAGS = {
    "Environment/Cumulative Reward",
    "Policy/Entropy",
    "Policy/Learning Rate",
    "Policy/Extrinsic Reward",
    "Policy/Extrinsic Value",
    "Policy/Continuous Entropy Coeff",
    "Policy/Discrete Entropy Coeff",
    "Losses/Policy Loss",
    "Losses/Q1 Loss",
    "Losses/Q2 Loss",
}
DISCRETE = ("--continuous", "0", "--discrete", "1")


def xqc(max_steps: int, **changes: Any) -> dict[str, Any]:
    hyper = {
        "batch_size": 32,
        "learning_rate": 1e-3,
        "learning_starts": 100,
        "steps_per_update": 1,
        "critic_hidden_units": 32,
        "critic_num_layers": 2,
        "save_replay_buffer": True,
    }
    return {
        "trainer_type": "xqc",
        "hyperparameters": hyper,
        "network_settings": {"hidden_units": 32, "num_layers": 2},
        "max_steps": max_steps,
        "summary_freq": 200,
        "checkpoint_interval": 400,
        **changes,
    }


def learned(folder: Path, settings: dict[str, Any], *arguments: str) -> FinishedRun:
    run = learn(folder, behaviors_settings(Toy=settings), "--env=sim:Toy", *arguments)
    assert run.exit_code == 0, run.output
    return run


@pytest.mark.parametrize("player", [(), ("--env-args", *DISCRETE)], ids=["continuous", "discrete"])
def test_a_toy_task_is_learned_and_everything_is_left_behind(tmp_path: Path, player: tuple[str, ...]) -> None:
    run = learned(tmp_path, xqc(800, stop={"reward": 0.9}), *player)
    run.assert_reached("Toy")
    check_files(run, "Toy")
    assert run.scalars("Toy").keys() >= TAGS
    assert "Losses/Value Loss" not in run.scalars("Toy")
    assert "ML-Agents cannot read the checkpoints of trainer_type xqc" in run.output


def state_of(run: FinishedRun) -> dict[str, Any]:
    state: dict[str, Any] = torch.load(run.folder / "Toy" / "checkpoint.pt", weights_only=True)["trajtrainer"]["xqc"]
    return state


def test_a_resumed_run_goes_on_with_its_experience_and_its_discount(tmp_path: Path) -> None:
    first = learned(tmp_path, xqc(300))
    assert (first.folder / "Toy" / NAME).is_file()
    assert "gamma is" in first.output
    before = state_of(first)
    second = learned(tmp_path, xqc(450), "--resume")
    assert "steps of experience from" in second.output
    assert "gamma is" not in second.output
    after = state_of(second)
    assert after["gamma"] == before["gamma"]
    assert after["returns"][0][0] > before["returns"][0][0]


@pytest.mark.parametrize("elsewhere", [{}, {"actors": {"backend": "process", "count": 1}}], ids=["thread", "process"])
def test_a_toy_task_is_learned_while_acting_goes_on(tmp_path: Path, elsewhere: dict[str, Any]) -> None:
    settings = xqc(2500, threaded=not elsewhere, stop={"reward": 0.9})
    learn(tmp_path, behaviors_settings(Toy=settings) | elsewhere, "--env=sim:Toy").assert_reached("Toy")
