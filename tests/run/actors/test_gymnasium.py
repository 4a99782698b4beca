"""Gymnasium environments by their ids, in actors that are processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import trajtrainer
from tests.run.runs import ppo
from trajtrainer.core.errors import SettingsError
from trajtrainer.experience.trajectory import PackedSteps
from trajtrainer.learning.trainers.trainer import Trainer
from trajtrainer.run import evaluations

COUNTING = "gym:tests.envs.python.registering:Counting-v3"
PLUS = "tests.envs.python.wrappers:Plus"


def settings(max_steps: int, **run: Any) -> dict[str, Any]:
    trainer = ppo(max_steps, network_settings={"hidden_units": 4, "num_layers": 1}, time_horizon=3)
    trainer["hyperparameters"] |= {"batch_size": 32, "buffer_size": 64}
    env = {"env_path": COUNTING, "seed": 100, "num_envs": 5, "wrappers": [PLUS], "env_args": ["length=6"]}
    return {
        "behaviors": {"Counting-v3": trainer | {"keep_best": 0}},
        "env_settings": env,
        "actors": {"count": 1, "envs": 3},
        "torch_settings": {"device": "cpu"},
        **run,
    }


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What trainers take in of the observations: seed of the copy, episode and step, plus 1 by the wrapper."""
    seen: list[Any] = []
    count = Trainer._count

    def recording(trainer: Trainer, packed: PackedSteps) -> bool:
        seen.extend(packed.obs[0].astype(int).tolist())
        return count(trainer, packed)

    monkeypatch.setattr(Trainer, "_count", recording)
    return seen


def check(steps: list[Any], result: trajtrainer.LearnResult) -> set[int]:
    """Checks what was taken in, and returns the seeds of the copies."""
    assert len(steps) == result.behaviors["Counting-v3"].steps
    assert {step for _, _, step in steps} == set(range(1, 7))
    return {seed for seed, _, _ in steps}


def test_a_process_steps_wrapped_copies_of_its_own(tmp_path: Path, steps: list[Any]) -> None:
    seeds = check(steps, trajtrainer.learn(settings(400), results_dir=tmp_path, verbose=False))
    assert seeds == {101, 102, 103}


def test_evaluations_have_wrappers_of_their_own_and_a_run_goes_on(
    tmp_path: Path, steps: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluations, "usable_cores", lambda: 1)  # they are made in this process
    actors = {"count": 2, "envs": 3, "backend": "thread"}
    evaluation = {"interval": 300, "episodes": 2, "wrappers": ["gymnasium.wrappers:TimeLimit max_episode_steps=2"]}
    lengths: list[float] = []
    given: dict[str, Any] = {"results_dir": tmp_path, "run_id": "run", "verbose": False}
    result = trajtrainer.learn(
        settings(400, actors=actors, evaluation=evaluation),
        **given,
        on_evaluation=lambda each: lengths.append(each.result.lengths.mean),
    )
    assert set(lengths) == {2}
    first = check(steps, result)
    assert first == set(range(101, 107))
    # The resumed run does not repeat these episodes. Its seeds are rounded here, as observations are f32.
    more = check(steps, trajtrainer.learn(settings(700, actors=actors), **given, resume=True)) - first
    assert more
    assert min(more) > 1000


def test_a_mistake_in_a_wrapper_ends_the_run_at_once(tmp_path: Path) -> None:
    given = settings(400, actors={"backend": "thread"})
    given["env_settings"]["wrappers"] = [f"{PLUS} size=3"]
    with pytest.raises(SettingsError, match=r"Plus cannot be called with the arguments \{'size': 3\}"):
        trajtrainer.learn(given, results_dir=tmp_path, verbose=False)
