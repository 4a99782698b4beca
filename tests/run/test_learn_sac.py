"""``trajtrainer learn`` with SAC: learning, files, tags, and going on with the saved experience."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch

from tests.run.runs import behaviors_settings, learn
from tests.run.test_learn import check_files
from trajtrainer.policies.checkpoints.replay_file import NAME

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
    """ML-Agents' toy tasks (docs/explanation/mlagents-behavior.md#built-in-tasks), with the experience saved."""
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
def test_a_toy_task_is_learned_and_everything_is_left_behind(tmp_path: Path, threaded: bool) -> None:
    # A trainer in its own thread falls behind on a busy machine.
    settings = behaviors_settings(Toy=sac(2500 if threaded else 1000, threaded=threaded, stop={"reward": 0.9}))
    run = learn(tmp_path, settings, "--env=sim:Toy")
    run.assert_reached("Toy")
    check_files(run, "Toy")
    assert run.scalars("Toy").keys() >= TAGS
    session = onnxruntime.InferenceSession(run.folder / "Toy.onnx")
    for goal in (-1.0, 1.0):
        (actions,) = session.run(
            ["deterministic_continuous_actions"], {"obs_0": np.array([[goal * 100.0]], np.float32)}
        )
        assert np.abs(actions).max() <= 1.0


def test_a_resumed_run_goes_on_with_its_experience(tmp_path: Path) -> None:
    first = learn(tmp_path, behaviors_settings(Toy=sac(300)), "--env=sim:Toy")
    assert first.exit_code == 0, first.output
    saved = first.folder / "Toy" / NAME
    assert saved.is_file()
    second = learn(tmp_path, behaviors_settings(Toy=sac(450)), "--env=sim:Toy", "--resume")
    assert second.exit_code == 0, second.output
    assert "steps of experience from" in second.output
    assert "Loaded" in second.output
    coefficients = torch.load(second.folder / "Toy" / "checkpoint.pt", weights_only=True)["trajtrainer"]["sac"]
    assert coefficients["log_alpha"]["continuous"] != np.float32(np.log(0.01))
    saved.write_bytes(saved.read_bytes()[:-100])
    third = learn(tmp_path, behaviors_settings(Toy=sac(600)), "--env=sim:Toy", "--resume")
    assert third.exit_code == 0, third.output
    assert "Training continues without earlier experience" in third.output
    check_files(third, "Toy")


@pytest.mark.parametrize(
    ("name", "how", "sensors_and_actions"),
    [
        ("sac_continuous_two_signals", "--initialize-from=theirs", ("--observation-size", "5")),
        ("sac_hybrid", "--resume", ("--observation-size", "5", "--branches", "3,2")),
        ("sac_lstm", "--resume", ("--observation-size", "4")),
    ],
    ids=["two signals", "both kinds of actions", "lstm"],
)
def test_a_checkpoint_of_mlagents_goes_on(
    shared_data: Path, tmp_path: Path, name: str, how: str, sensors_and_actions: tuple[str, ...]
) -> None:
    golden, resuming = shared_data / "golden" / "updates" / name, how == "--resume"
    folder = tmp_path / "results" / "theirs" / "Bench"
    folder.mkdir(parents=True)
    (folder / "checkpoint.pt").write_bytes((golden / "start.pt").read_bytes())
    before = torch.load(golden / "start.pt", weights_only=True)
    start = 3100 if resuming else 0
    settings = json.loads((golden / "case.json").read_text())["config"] | {"max_steps": start + 200}
    player = ("--env=sim:Bench", "--env-args", "--agents", "4", "--episode-length", "20", *sensors_and_actions)
    run = learn(tmp_path, behaviors_settings(Bench=settings), how, *player, run_id="theirs" if resuming else "ours")
    assert run.exit_code == 0, run.output
    assert "does not fully match" not in run.output
    after = torch.load(run.folder / "Bench" / "checkpoint.pt", weights_only=True)
    assert {key: after[key].keys() for key in before} == {key: module.keys() for key, module in before.items()}
    assert 0 < int(after["global_step"]["_GlobalSteps__global_step"]) - start < 400
    # The moments of Adam were taken over, and its count goes on.
    for optimizer in ("policy", "value", "entropy"):
        ours, theirs = (each[f"Optimizer:{optimizer}_optimizer"]["state"] for each in (after, before))
        assert ours.keys() >= theirs.keys() != set()
        for index, moments in theirs.items():
            assert 100 < ours[index]["step"] - moments["step"] <= 200
