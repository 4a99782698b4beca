"""Runs that begin with ML-Agents and go on here, and files from here that need nothing else: over the wire."""

from __future__ import annotations

import os
import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
import yaml

from tests.run.runs import FinishedRun, behaviors_settings, learn, living_processes, ppo
from trajtrainer.cli.main import main
from trajtrainer.policies.onnx.inspect import inspect_model

MISMATCH = "does not fully match"


def mlagents_run(shared_data: Path, tmp_path: Path, name: str, run_id: str = "run") -> Path:
    """A run folder as ML-Agents left it, in the results folder of ``learn``."""
    folder = tmp_path / "results" / run_id
    shutil.copytree(shared_data / "golden" / "runs" / name, folder)
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return folder


def settings_of(folder: Path, **changes: Any) -> dict[str, Any]:
    """The YAML that the run was started with, with other settings for all behaviors."""
    settings: dict[str, Any] = yaml.safe_load((folder / "trainer.yaml").read_text())
    for behavior in [*settings["behaviors"].values(), settings.get("default_settings") or {}]:
        behavior.update(changes)
    return settings


def checkpoint(folder: Path, behavior: str) -> dict[str, Any]:
    content: dict[str, Any] = torch.load(folder / behavior / "checkpoint.pt", weights_only=True)
    return content


def step_of(content: dict[str, Any]) -> int:
    return int(content["global_step"]["_GlobalSteps__global_step"])


def finished(run: FinishedRun) -> FinishedRun:
    assert run.exit_code == 0, run.output
    return run


def test_a_finished_run_is_exported_as_it_was(shared_data: Path, tmp_path: Path) -> None:
    """Past its max_steps nothing is trained any more: the same policy comes out."""
    folder = mlagents_run(shared_data, tmp_path, "ppo_continuous")
    theirs = onnxruntime.InferenceSession(folder / "3DBall.onnx")
    before = checkpoint(folder, "3DBall")
    run = finished(learn(tmp_path, folder / "trainer.yaml", "--resume", "--env=sim:3DBall"))
    assert "Resuming training from step 8064." in run.output
    assert MISMATCH not in run.output
    ours = onnxruntime.InferenceSession(folder / "3DBall.onnx")
    obs = np.random.default_rng(5).normal(0.0, 2.0, (50, 8)).astype(np.float32)
    found, expected = (each.run(["deterministic_continuous_actions"], {"obs_0": obs})[0] for each in (ours, theirs))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)
    after = checkpoint(folder, "3DBall")
    for key in ("Policy", "Optimizer:critic"):
        for name, value in before[key].items():
            assert torch.equal(after[key][name], value), name


def test_a_run_goes_on_with_everything_it_had(shared_data: Path, tmp_path: Path) -> None:
    folder = mlagents_run(shared_data, tmp_path, "ppo_continuous")
    before = checkpoint(folder, "3DBall")
    settings = settings_of(folder, max_steps=9000, summary_freq=500)
    run = finished(learn(tmp_path, settings, "--resume", "--env=sim:3DBall", "--env-args", "--agents", "8"))
    assert MISMATCH not in run.output
    assert "Parameter 'scale' is in lesson 'Large'" in run.output
    after = checkpoint(folder, "3DBall")
    assert step_of(after) > 9000
    assert set(after) - {"trajtrainer"} == set(before)
    for key, module in before.items():
        assert after[key].keys() == module.keys(), key
    # The moments of Adam were taken over too, and its count goes on.
    adam = {n: int(each["Optimizer:value_optimizer"]["state"][6]["step"]) for n, each in enumerate((before, after))}
    assert adam[1] > adam[0] > 0
    steps = [record["steps"] for record in run.status()["3DBall"]["checkpoints"]]
    assert steps[-1] == step_of(after)
    assert inspect_model(folder / "3DBall.onnx").loads


@pytest.mark.parametrize("how", ["--resume", "--initialize-from=theirs"])
def test_a_trained_policy_acts_as_trained(shared_data: Path, tmp_path: Path, how: str) -> None:
    """The task is ML-Agents' own, Basic, and 0.93 is its best score; it takes thousands of steps to learn."""
    resuming = how == "--resume"
    run_id = "theirs" if resuming else "ours"
    mlagents_run(shared_data, tmp_path, "ppo_discrete_two_behaviors", "theirs")
    settings = behaviors_settings(Basic=ppo(7000 if resuming else 800, summary_freq=400))
    run = finished(learn(tmp_path, settings, how, "--env=sim:Basic", "--env-args", "--agents", "8", run_id=run_id))
    assert MISMATCH not in run.output
    assert run.rewards("Basic")[0] > 0.9
    assert 0 < step_of(checkpoint(run.folder, "Basic")) - (6022 if resuming else 0) < 1500


def test_a_recurrent_run_with_two_reward_signals_goes_on(shared_data: Path, tmp_path: Path) -> None:
    """There is no such task here, so one of the same observations and actions stands in for it."""
    folder = mlagents_run(shared_data, tmp_path, "ppo_discrete_two_behaviors")
    shutil.move(folder / "Recall", folder / "Bench")
    settings = settings_of(folder, max_steps=7000)
    settings["behaviors"] = {"Bench": settings["behaviors"]["Recall"]}
    before = checkpoint(folder, "Bench")
    player = ("--agents", "4", "--observation-size", "3", "--continuous", "0", "--branches", "2")
    run = finished(
        learn(tmp_path, settings, "--resume", "--env=sim:Bench", "--env-args", *player, "--episode-length", "20")
    )
    assert "Resuming training from step 6048." in run.output
    assert MISMATCH not in run.output
    after = checkpoint(folder, "Bench")
    assert {key: after[key].keys() for key in before} == {key: module.keys() for key, module in before.items()}
    predictor = "_encoder._body_endoder.seq_layers.0.weight"
    assert torch.equal(after["Module:RND-target"][predictor], before["Module:RND-target"][predictor])
    assert not torch.equal(after["Module:RND-pred"][predictor], before["Module:RND-pred"][predictor])


def test_what_does_not_fit_is_named_in_one_warning(shared_data: Path, tmp_path: Path) -> None:
    folder = mlagents_run(shared_data, tmp_path, "ppo_continuous", "theirs")
    settings = settings_of(folder, max_steps=300, network_settings={"hidden_units": 24, "num_layers": 2})
    run = finished(learn(tmp_path, settings, "--initialize-from=theirs", "--env=sim:3DBall", run_id="ours"))
    (warning,) = [line for line in run.output.splitlines() if MISMATCH in line]
    assert str(folder / "3DBall" / "checkpoint.pt") in warning
    layer = "network_body._body_endoder.seq_layers.0.weight"
    assert f"Policy/{layer} (shape (16, 8), expected shape (24, 8))" in warning
    assert "not used: Policy/network_body.observation_encoder.processors.0.normalizer" in warning
    assert checkpoint(run.folder, "3DBall")["Policy"][layer].shape == (24, 8)


class Malicious:
    """Unpickled without care, it makes a directory."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize(
    ("how", "damage", "words"),
    [("--resume", "code", "was rejected"), ("--initialize-from=theirs", "half", "damaged or not a checkpoint")],
)
def test_a_hostile_checkpoint_ends_the_run_and_runs_nothing(
    shared_data: Path, tmp_path: Path, how: str, damage: str, words: str
) -> None:
    run_id = "theirs" if how == "--resume" else "ours"
    folder = mlagents_run(shared_data, tmp_path, "ppo_continuous", "theirs")
    path = folder / "3DBall" / "checkpoint.pt"
    content = path.read_bytes()
    path.write_bytes(
        pickle.dumps({"Policy": Malicious(tmp_path / "ran")}) if damage == "code" else content[: len(content) // 2]
    )
    run = learn(tmp_path, folder / "trainer.yaml", how, "--env=sim:3DBall", run_id=run_id)
    assert run.exit_code == 1
    assert words in run.output
    assert "Traceback" not in run.output
    assert not (tmp_path / "ran").exists()
    assert living_processes(["trajtrainer.envs.sim", str(run.folder / "run_logs" / "Player-0.log")]) == []


def test_a_checkpoint_from_here_needs_nothing_else(tmp_path: Path) -> None:
    """Not even the run it came from."""
    network = {"memory": {"memory_size": 8, "sequence_length": 4}, "normalize": True, "hidden_units": 8}
    settings = behaviors_settings(Toy=ppo(300, network_settings=network))
    player = ("--agents", "4", "--vectors", "2", "--vector-size", "3", "--goal-sensor", "0", "--pictures", "1")
    run = finished(learn(tmp_path, settings, "--env=sim:Toy", "--env-args", *player, "--lists", "1", "--discrete", "2"))
    moved = shutil.copy(run.folder / "Toy" / "checkpoint.pt", tmp_path / "alone.pt")
    assert main(["export", str(moved)]) == 0
    assert (tmp_path / "alone.onnx").read_bytes() == (run.folder / "Toy.onnx").read_bytes()
