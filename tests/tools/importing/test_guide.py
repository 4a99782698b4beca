"""The examples of docs/deploy/importing.md run."""

from __future__ import annotations

import pickle
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tests.blocks import DOCS, run_examples
from trajtrainer.cli.main import main
from trajtrainer.tools.importing.weights import read_statistics


def test_the_examples_of_other_trainers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sb3 = pytest.importorskip("stable_baselines3", reason="stable-baselines3 is not installed")
    monkeypatch.chdir(tmp_path)
    learn = sb3.PPO.learn
    monkeypatch.setattr(sb3.PPO, "learn", lambda model, _: learn(model, 1_000))
    torch.save(torch.nn.Linear(3, 2), "model.pt")
    rms = SimpleNamespace(mean=np.zeros(8), var=np.ones(8), count=7.0)
    (tmp_path / "vecnormalize.pkl").write_bytes(pickle.dumps(SimpleNamespace(obs_rms=rms, epsilon=1e-8, clip_obs=9.0)))
    run_examples(DOCS / "deploy" / "importing.md")
    assert read_statistics(Path("stats.npz")).clip == 9
    assert torch.load("weights.pt").keys() == {"weight", "bias"}
    assert main(["import", "ball.zip", "--env=sim:3DBall", "--statistics=stats.npz", "-o", "3DBall.onnx"]) == 0
