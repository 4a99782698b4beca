"""SAC learns the toy tasks of ML-Agents' tests over the wire, with their settings and thresholds.

See docs/explanation/mlagents-behavior.md#built-in-tasks.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.run.runs import behaviors_settings, learn
from trajtrainer.policies.onnx.inspect import inspect_model

HYPER: dict[str, Any] = {
    "learning_rate": 5e-3,
    "batch_size": 8,
    "buffer_size": 5000,
    "buffer_init_steps": 100,
    "tau": 0.01,
    "init_entcoef": 0.01,
}
SLOWLY: dict[str, Any] = {"batch_size": 16, "learning_rate": 3e-4}
DISCRETE = ("--continuous", "0", "--discrete")
RECURRENT: dict[str, Any] = {"memory": {"memory_size": 16, "sequence_length": 16}}


def assert_learned(
    folder: Path,
    reward: float,
    *player: str,
    max_steps: int = 1000,
    network: dict[str, Any] | None = None,
    **hyper: Any,
) -> None:
    """At least 20 episodes in a row reach a mean ``reward`` within ``max_steps``. Unity would load the policy."""
    settings = {
        "trainer_type": "sac",
        "hyperparameters": HYPER | hyper,
        "network_settings": {"hidden_units": 16, "num_layers": 1} | (network or {}),
        "max_steps": max_steps,
        "summary_freq": 100,
        "stop": {"reward": reward},
    }
    run = learn(folder, behaviors_settings(Toy=settings), "--env=sim:Toy", "--env-args", *player)
    run.assert_reached("Toy")
    assert inspect_model(run.folder / "Toy.onnx").loads


def test_simple(tmp_path: Path) -> None:
    """Discrete; ``test_learn_sac`` has the continuous one."""
    assert_learned(tmp_path, 0.9, *DISCRETE, "1")


@pytest.mark.parametrize("actions", [("--continuous", "2"), (*DISCRETE, "2")], ids=["continuous", "discrete"])
def test_two_dimensions(tmp_path: Path, actions: tuple[str, ...]) -> None:
    player = (*actions, "--step-size", "0.8")
    assert_learned(tmp_path, 0.8, *player, max_steps=3000, buffer_init_steps=2000)


@pytest.mark.slow
def test_visual(tmp_path: Path) -> None:
    player = ("--vectors", "0", "--pictures", "1", *DISCRETE, "1")
    assert_learned(tmp_path, 0.9, *player, **SLOWLY)


@pytest.mark.slow
def test_variable_length(tmp_path: Path) -> None:
    assert_learned(tmp_path, 0.9, "--lists", "1", **SLOWLY)


@pytest.mark.slow
def test_recurrent(tmp_path: Path) -> None:
    """The goal is seen at the first three decisions only."""
    hyper: dict[str, Any] = {"batch_size": 256, "learning_rate": 3e-4, "buffer_init_steps": 1000, "steps_per_update": 2}
    player = ("--memory", *DISCRETE, "1")
    assert_learned(tmp_path, 0.9, *player, max_steps=4000, network=RECURRENT, **hyper)


@pytest.mark.slow
def test_both_kinds_of_actions(tmp_path: Path) -> None:
    player = ("--continuous", "1", "--discrete", "1", "--step-size", "0.8")
    hyper: dict[str, Any] = {"buffer_size": 50_000, "batch_size": 256, "buffer_init_steps": 0}
    assert_learned(tmp_path, 0.9, *player, max_steps=2200, **hyper)
