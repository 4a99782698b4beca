"""What a user gets from ``trajtrainer learn``: trained policies, files, curves."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch

from tests.run.runs import FinishedRun, behaviors_settings, learn, ppo
from trajtrainer.settings.yaml.convert import load

AGENTS = ("--env-args", "--agents", "8")


def check_files(run: FinishedRun, behavior: str) -> None:
    """The files of docs/explanation/mlagents-behavior.md#results-folder, whole and readable."""
    assert (run.folder / f"{behavior}.onnx").is_file()
    assert (run.folder / behavior / "checkpoint.pt").is_file()
    for record in run.status()[behavior]["checkpoints"]:
        assert Path(record["file_path"]).is_file()
        for path in record["auxillary_file_paths"]:
            assert "Policy" in torch.load(path, weights_only=True)
    load((run.folder / "configuration.yaml").read_text(), "configuration.yaml")
    assert (run.folder / "run_logs" / "timers.json").is_file()
    assert (run.folder / "run_logs" / "Player-0.log").is_file()


def test_basic_is_solved_and_the_exported_policy_acts_as_trained(tmp_path: Path) -> None:
    settings = behaviors_settings(Basic=ppo(5000, checkpoint_interval=2000))
    run = learn(tmp_path, settings, "--env=sim:Basic", *AGENTS)
    assert run.exit_code == 0, run.output
    assert np.mean(run.rewards("Basic")[-2:]) >= 0.9
    check_files(run, "Basic")
    session = onnxruntime.InferenceSession(run.folder / "Basic.onnx")
    position = np.eye(20, dtype=np.float32)[10:17]
    feeds = {"obs_0": position, "action_masks": np.ones((7, 3), np.float32)}
    (actions,) = session.run(["deterministic_discrete_actions"], feeds)
    assert len(set(actions.ravel().tolist())) == 1, "between start and large goal it always goes the same way"
    assert actions[0, 0] != 0


def test_3dball_improves(tmp_path: Path) -> None:
    settings = ppo(
        15000,
        hyperparameters={"batch_size": 64, "buffer_size": 1024, "learning_rate": 1e-3, "beta": 0.001, "lambd": 0.99},
        network_settings={"hidden_units": 32, "num_layers": 2, "normalize": True},
        time_horizon=200,
        summary_freq=2500,
        stop={"reward": 5.0},
    )
    run = learn(tmp_path, behaviors_settings(**{"3DBall": settings}), "--env=sim:3DBall")
    run.assert_reached("3DBall")
    rewards = run.rewards("3DBall")
    assert 4 * rewards[0] < 5.0
    check_files(run, "3DBall")


def test_hybrid_improves(tmp_path: Path) -> None:
    settings = ppo(
        13000,
        hyperparameters={"batch_size": 64, "buffer_size": 1024},
        network_settings={"hidden_units": 32},
        stop={"reward": 0.15},
    )
    run = learn(tmp_path, behaviors_settings(Hybrid=settings), "--env=sim:Hybrid")
    run.assert_reached("Hybrid")
    rewards = run.rewards("Hybrid")
    assert rewards[0] + 0.3 < 0.15
    check_files(run, "Hybrid")


@pytest.mark.parametrize("threaded", [False, True])
def test_two_behaviors_at_once(tmp_path: Path, threaded: bool) -> None:
    settings = {
        "default_settings": ppo(3000, threaded=threaded),
        "behaviors": {"Basic": {"time_horizon": 16}},
        "env_settings": {"seed": 3},
    }
    run = learn(tmp_path, settings, "--env=sim:Basic+Hybrid", *AGENTS)
    assert run.exit_code == 0, run.output
    assert max(run.rewards("Basic")) >= 0.85
    for behavior in ("Basic", "Hybrid"):
        check_files(run, behavior)
        assert run.status()[behavior]["final_checkpoint"]["steps"] > 3000


def test_a_seed_repeats_a_run_bit_for_bit(tmp_path: Path) -> None:
    settings = behaviors_settings(Basic=ppo(1300), Hybrid=ppo(1300))  # five updates, one summary
    runs = [
        learn(tmp_path, settings, "--env=sim:Basic+Hybrid", "--seed=11", *AGENTS, run_id=name)
        for name in ("first", "second")
    ]
    for behavior in ("Basic", "Hybrid"):
        first, second = (torch.load(r.folder / behavior / "checkpoint.pt", weights_only=True) for r in runs)
        assert first["Policy"].keys() == second["Policy"].keys()
        for name, weights in first["Policy"].items():
            assert torch.equal(weights, second["Policy"][name]), name
        rewards = [r.rewards(behavior) for r in runs]
        assert rewards[0] == rewards[1]
