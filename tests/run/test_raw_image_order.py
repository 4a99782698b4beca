"""Runs on players that send raw images in either order: both learn the same, from real processes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.run.image_builds import write_build
from tests.run.runs import FinishedRun, behaviors_settings, learn, ppo
from trajtrainer.envs.scenes.vector import UnityVectorEnv

pytestmark = pytest.mark.skipif(os.name != "posix", reason="a script is a build")

NAME = "VisualBall"
TOLD = "The player's raw images are read as"


def settings(max_steps: int = 300, **run: Any) -> dict[str, Any]:
    return {**behaviors_settings(VisualBall=ppo(max_steps, network_settings={"hidden_units": 8})), **run}


def run(folder: Path, kind: str, *arguments: str, run_id: str = "run", **changes: Any) -> FinishedRun:
    build = write_build(folder, kind)
    finished = learn(folder, settings(**changes), f"--env={build}", "--timeout-wait=60", *arguments, run_id=run_id)
    assert finished.exit_code == 0, finished.output
    return finished


def weights(finished: FinishedRun) -> dict[str, torch.Tensor]:
    content = torch.load(finished.folder / NAME / "checkpoint.pt", weights_only=True)
    return {f"{part}.{key}": value for part in ("Policy", "Optimizer:critic") for key, value in content[part].items()}


def order(finished: FinishedRun) -> object:
    return finished.status()[NAME].get("raw_image_order")


def test_both_orders_are_learned_from_alike(tmp_path: Path) -> None:
    runs = {kind: run(tmp_path, kind, run_id=kind) for kind in ("hwc", "chw")}
    expected, found = map(weights, runs.values())
    assert expected.keys() == found.keys()
    for key, tensor in expected.items():
        assert torch.equal(tensor, found[key]), key
    for kind, finished in runs.items():
        assert order(finished) == kind
        assert finished.log.count(TOLD) == 1
        assert f"{TOLD} {kind}, based on the first " in finished.log


@pytest.mark.parametrize("arguments", [("--num-envs=2",), ("--actors=2",)], ids=["worker processes", "actor processes"])
def test_all_processes_read_them_alike(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    finished = run(tmp_path, "chw", *arguments)
    assert order(finished) == "chw"
    # Only the first player tells, and so short a run may be over before it has come.
    assert finished.output.count(TOLD) <= 1
    assert "a different order" not in finished.log


def test_a_resumed_run_keeps_the_order_that_it_has_found(tmp_path: Path) -> None:
    run(tmp_path, "chw")
    finished = run(tmp_path, "noise", "--resume", max_steps=400)
    assert order(finished) == "chw"
    assert "They are read as chw, as earlier in this run." in finished.log


def test_the_setting_overrides_it(tmp_path: Path) -> None:
    finished = run(tmp_path, "chw", "--raw-image-order=hwc")
    assert order(finished) == "hwc"
    assert TOLD not in finished.log
    assert "raw_image_order: hwc" in (finished.folder / "configuration.yaml").read_text()


def test_noise_keeps_the_rule(tmp_path: Path) -> None:
    finished = run(tmp_path, "noise")
    assert order(finished) == "hwc"
    assert finished.log.count("They are read as hwc, as released packages send them.") == 1


def test_evaluations_read_them_as_the_training_does(tmp_path: Path) -> None:
    evaluation = {"interval": 100, "episodes": 1}
    found = {
        kind: run(tmp_path, kind, run_id=kind, evaluation=evaluation).status()[NAME]["evaluation"]["mean"]
        for kind in ("hwc", "chw")
    }
    assert found["hwc"] == found["chw"]


def test_wrappers_show_the_same_of_either_player(tmp_path: Path) -> None:
    seen = []
    for kind in ("hwc", "chw"):
        env = UnityVectorEnv(str(write_build(tmp_path, kind)), seed=3)
        try:
            observations, _ = env.reset()
            seen.append(observations)
        finally:
            env.close()
    np.testing.assert_equal(seen[0], seen[1])
