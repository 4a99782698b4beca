"""``trajtrainer learn`` with SAC: learning, files, tags, and going on with the saved experience."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch

from tests.runtime.runs import behaviors_settings, learn
from tests.runtime.test_learn import check_files
from trajtrainer.runtime.replay_files import NAME

TAGS = {
    "Environment/Cumulative Reward",
    "Environment/Episode Length",
    "Policy/Entropy",
    "Policy/Learning Rate",
    "Policy/Extrinsic Reward",
    "Policy/Extrinsic Value",
    "Policy/Continuous Entropy Coeff",
    "Policy/Discrete Entropy Coeff",
    "Losses/Policy Loss",
    "Losses/Value Loss",
    "Losses/Q1 Loss",
    "Losses/Q2 Loss",
}


def sac(max_steps: int, **changes: Any) -> dict[str, Any]:
    """The settings of the peer's toy tasks (reference 10.4), with the experience saved."""
    hyper = {
        "learning_rate": 5e-3,
        "batch_size": 8,
        "buffer_size": 5000,
        "buffer_init_steps": 100,
        "tau": 0.01,
        "init_entcoef": 0.01,
        "save_replay_buffer": True,
    }
    return {
        "trainer_type": "sac",
        "hyperparameters": hyper | changes.pop("hyperparameters", {}),
        "network_settings": {"hidden_units": 16, "num_layers": 1},
        "max_steps": max_steps,
        "summary_freq": 200,
        "checkpoint_interval": 400,
        **changes,
    }


@pytest.mark.parametrize("threaded", [False, True])
def test_a_toy_task_is_learnt_and_everything_is_left_behind(tmp_path: Path, threaded: bool) -> None:
    settings = behaviors_settings(Toy=sac(1500, threaded=threaded))
    run = learn(tmp_path, settings, "--env=sim:Toy")
    assert run.exit_code == 0, run.output
    assert run.rewards("Toy")[-1] > 0.9
    check_files(run, "Toy")
    assert run.scalars("Toy").keys() >= TAGS
    session = onnxruntime.InferenceSession(run.folder / "Toy.onnx")
    for goal in (-1.0, 1.0):
        (actions,) = session.run(
            ["deterministic_continuous_actions"], {"obs_0": np.array([[goal * 100.0]], np.float32)}
        )
        assert np.abs(actions).max() <= 1.0


def test_a_resumed_run_goes_on_with_its_experience(tmp_path: Path) -> None:
    first = learn(tmp_path, behaviors_settings(Toy=sac(600)), "--env=sim:Toy")
    assert first.exit_code == 0, first.output
    saved = first.folder / "Toy" / NAME
    assert saved.is_file()
    second = learn(tmp_path, behaviors_settings(Toy=sac(800)), "--env=sim:Toy", "--resume")
    assert second.exit_code == 0, second.output
    assert "steps of experience from" in second.output
    assert "Loaded" in second.output
    coefficients = torch.load(second.folder / "Toy" / "checkpoint.pt", weights_only=True)["trajtrainer"]["sac"]
    assert coefficients["log_alpha"]["continuous"] != np.float32(np.log(0.01))
    saved.write_bytes(saved.read_bytes()[:-100])
    third = learn(tmp_path, behaviors_settings(Toy=sac(1000)), "--env=sim:Toy", "--resume")
    assert third.exit_code == 0, third.output
    assert "Training goes on without earlier experience" in third.output
    check_files(third, "Toy")
