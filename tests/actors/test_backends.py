"""Runs whose actors are elsewhere learn what a run in one loop learns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.runtime.runs import ppo
from tests.test_learn_api import learn
from trajtrainer import LearnResult

LAMP = "python:tests.test_learn_api:Lamp"


def settings(max_steps: int, *, v_trace: bool = False, **run: Any) -> dict[str, Any]:
    # A buffer is taken in as a whole, so that values are estimated in the same batches however it comes.
    hyper = {"batch_size": 256, "buffer_size": 256, "learning_rate": 0.01, "v_trace": v_trace}
    trainer = ppo(
        max_steps,
        hyperparameters=hyper,
        network_settings={"hidden_units": 8},
        time_horizon=8,
        checkpoint_interval=50000,
    )
    return {"behaviors": {"Lamp": trainer}, "env_settings": {"seed": 7}, "torch_settings": {"device": "cpu"}, **run}


def run(
    folder: Path, max_steps: int = 2500, num_envs: int = 4, *, v_trace: bool = False, **actors: Any
) -> tuple[LearnResult, dict[str, Any]]:
    sections = {"actors": actors} if actors else {}
    name = "-".join(str(value) for value in actors.values()) or "inline"
    result = learn(folder, settings(max_steps, v_trace=v_trace, **sections), LAMP, run_id=name, num_envs=num_envs)
    return result, torch.load(folder / name / "Lamp" / "checkpoint.pt", weights_only=True)


@pytest.fixture(scope="module")
def inline(tmp_path_factory: pytest.TempPathFactory) -> tuple[LearnResult, dict[str, Any]]:
    return run(tmp_path_factory.mktemp("inline"))


@pytest.mark.parametrize("backend", ["thread", "process"])
def test_one_actor_in_turn_with_the_learner_is_bit_equal_to_the_loop(
    tmp_path: Path, inline: tuple[LearnResult, dict[str, Any]], backend: str
) -> None:
    result, state = run(tmp_path, backend=backend, max_policy_lag=0)
    expected, weights = inline
    assert result.behaviors["Lamp"].steps == expected.behaviors["Lamp"].steps
    assert result.behaviors["Lamp"].mean_reward == expected.behaviors["Lamp"].mean_reward
    for part in ("Policy", "Optimizer:critic"):
        assert state[part].keys() == weights[part].keys()
        tensors = [name for name, value in weights[part].items() if isinstance(value, torch.Tensor)]
        assert tensors
        assert all(torch.equal(state[part][name], weights[part][name]) for name in tensors)


@pytest.mark.parametrize("correction", [{}, {"v_trace": True, "max_policy_lag": 3}])
def test_several_actors_that_go_on_while_the_learner_learns(tmp_path: Path, correction: dict[str, Any]) -> None:
    result, _ = run(tmp_path, 4000, 2, backend="thread", count=3, **correction)
    lamp = result.behaviors["Lamp"]
    assert lamp.steps > 4000
    assert lamp.mean_reward is not None
    assert lamp.mean_reward > 6, "random actions get 4"
