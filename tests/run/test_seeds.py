"""Random numbers of environments: no two streams are equal, and a seed repeats what it promises to repeat."""

from __future__ import annotations

import pickle
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import trajtrainer
from tests.run.drawing_world import DrawingWorld, drawn
from tests.run.runs import behaviors_settings, learn, ppo

_SMALL = {"hyperparameters": {"batch_size": 16, "buffer_size": 64}, "time_horizon": 16}
_MASS = {"mass": {"sampler_type": "uniform", "sampler_parameters": {"min_value": 0, "max_value": 1}}}


def settings(max_steps: int = 200, **more: Any) -> dict[str, Any]:
    return behaviors_settings(DrawingWorld=ppo(max_steps, **_SMALL)) | {"environment_parameters": _MASS} | more


def train(folder: Path, *arguments: str, given: dict[str, Any] | None = None) -> list[list[dict[str, Any]]]:
    """Run the command line; return what each copy has drawn in its episodes, sorted by the first number."""
    worlds = folder / "worlds"
    worlds.mkdir(exist_ok=True)
    env = "--env=python:tests.run.drawing_world:DrawingWorld"
    copies = 4 if "--num-envs=2" in arguments else 1
    finished = learn(folder, given or settings(), *arguments, env, "--env-args", f"folder={worlds}", f"copies={copies}")
    assert finished.exit_code == 0, finished.output
    return sorted(drawn(worlds), key=lambda copy: float(copy[0]["own"]))


def numbers(copies: Sequence[Sequence[dict[str, Any]]], *names: str) -> list[float]:
    return [episode[name] for copy in copies for episode in copy for name in names]


def test_a_parameter_is_independent_of_what_its_environment_draws(tmp_path: Path) -> None:
    (copy,) = train(tmp_path)
    found = numbers([copy], "mass", "own", "np", "py")
    assert len(copy) >= 40
    assert len(set(found)) == len(found)


def test_no_two_copies_or_actors_draw_the_same(tmp_path: Path) -> None:
    copies = train(tmp_path, "--num-envs=2", "--actors=2")
    assert len(copies) == 4
    found = numbers(copies, "mass", "own")
    assert len(set(found)) == len(found)
    # The two copies of an actor share its global generators, but no two processes share them.
    found = numbers(copies, "np", "py")
    assert len(set(found)) == len(found)


@pytest.mark.parametrize("arguments", [(), ("--num-envs=2", "--actors=2")])
def test_a_resumed_run_does_not_repeat_its_first_episodes(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    before = train(tmp_path, *arguments, "--seed=1")
    after = train(tmp_path, *arguments, "--seed=1", "--resume", given=settings(400))
    found = numbers(before + after, "mass", "own", "np", "py")
    assert len(set(found)) == len(found)


def test_two_resumed_runs_draw_the_same(tmp_path: Path) -> None:
    def resumed(folder: Path) -> list[list[dict[str, Any]]]:
        folder.mkdir()
        train(folder)
        return train(folder, "--resume", given=settings(400))

    assert resumed(tmp_path / "one") == resumed(tmp_path / "other")


def test_the_command_line_repeats_what_global_generators_draw(tmp_path: Path) -> None:
    (one,), (other,) = train(tmp_path), train(tmp_path, "--force")
    assert one == other
    (different,) = train(tmp_path, "--force", "--seed=8")
    assert not set(numbers([one], "np", "py")) & set(numbers([different], "np", "py"))


def test_actors_repeat_what_global_generators_draw(tmp_path: Path) -> None:
    def first_episodes(*arguments: str) -> list[dict[str, Any]]:
        return [copy[0] for copy in train(tmp_path, "--num-envs=2", "--actors=2", *arguments)]

    assert first_episodes() == first_episodes("--force")


def test_evaluations_are_all_of_the_same_episodes_and_do_not_affect_training(tmp_path: Path) -> None:
    (alone,) = train(tmp_path)
    evaluated = settings(evaluation={"interval": 100, "episodes": 4})
    copies = train(tmp_path, "--force", given=evaluated)
    assert alone in copies
    (played,) = [copy for copy in copies if copy != alone]
    # After the four episodes of an evaluation, another one begins.
    evaluations = [played[start : start + 5] for start in range(0, len(played), 5)]
    assert len(evaluations) >= 2
    assert all(one == evaluations[0] for one in evaluations)
    found = numbers([played[:4], alone], "mass", "own", "np", "py")
    assert len(set(found)) == len(found)


def test_learn_leaves_the_generators_of_the_program_alone(tmp_path: Path) -> None:
    worlds = tmp_path / "worlds"
    worlds.mkdir()

    def run(seed: int) -> list[list[dict[str, Any]]]:
        given = settings() | {"evaluation": {"interval": 100, "episodes": 2}}
        options: dict[str, Any] = {
            "run_id": f"run{seed}",
            "results_dir": tmp_path,
            "force": True,
            "env_args": {"folder": str(worlds)},
        }
        trajtrainer.learn(given, DrawingWorld, seed=seed, verbose=False, **options)
        return drawn(worlds)

    run(1)  # what it imports may draw numbers
    np.random.seed(3)
    random.seed(3)
    states = pickle.dumps((np.random.get_state(), random.getstate()))
    one = run(1)
    assert pickle.dumps((np.random.get_state(), random.getstate())) == states
    other = run(2)
    # The program has seeded them, and the seed of the run does not change that.
    assert numbers(one[:1], "np", "py") == numbers(other[:1], "np", "py")
    assert numbers(one[:1], "own", "mass") != numbers(other[:1], "own", "mass")
