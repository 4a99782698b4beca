"""The step at which lessons, ``stop`` and evaluations take effect, whatever the trainer waits for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.run.fives import Fives, lessons, played, settings
from tests.run.runs import FinishedRun


def test_lessons_change_with_the_message_that_ends_the_last_episode_they_need(tmp_path: Path) -> None:
    game = Fives()
    session = played(settings(tmp_path, lessons(3, threshold=0.5, min_lesson_length=50)), game)
    assert game.received == [(0, 1.0), (251, 2.0), (501, 3.0), (751, 4.0)]
    assert session.run.status.lesson("my_param") == 3


def test_a_lesson_of_one_episode_ends_after_one(tmp_path: Path) -> None:
    game = Fives(reward=1.0)
    played(settings(tmp_path, lessons(1, threshold=-4, min_lesson_length=1), max_steps=100), game)
    assert game.received == [(0, 1.0), (6, 2.0)]


@pytest.mark.parametrize(
    ("criteria", "own", "steps"),
    [
        ({"measure": "progress", "threshold": 0.1}, {}, [66]),
        ({"measure": "group_reward", "threshold": 0.8, "min_lesson_length": 3}, {}, [17]),
        ({"threshold": 0.5, "min_lesson_length": 50}, {"threaded": True}, [251, 501]),
        ({"threshold": 0.5, "min_lesson_length": 50}, {"trainer_type": "poca"}, [251, 501]),
        ({"threshold": 0.5, "min_lesson_length": 50}, {"trainer_type": "sac", "hyperparameters": {}}, [251, 501]),
        # The smoothed mean is 0.75 after one check and 0.9375 after two; ML-Agents checks after each step.
        ({"threshold": 0.9}, {}, [7, 11]),
        ({"threshold": 0.9, "signal_smoothing": False}, {}, [6, 11]),
    ],
)
def test_lessons_are_checked_once_per_message(
    tmp_path: Path, criteria: dict[str, Any], own: dict[str, Any], steps: list[int]
) -> None:
    game = Fives(group=1 if criteria.get("measure") == "group_reward" else 0)
    own = {"max_steps": 600, "time_horizon": 5, **own}
    played(settings(tmp_path, lessons(len(steps), **criteria), **own), game)
    assert [step for step, _ in game.received] == [0, *steps]


def test_a_reset_takes_the_place_of_the_next_step(tmp_path: Path) -> None:
    game = Fives()
    given = settings(tmp_path, lessons(2, threshold=0.5, min_lesson_length=10, require_reset=True), max_steps=300)
    played(given, game)
    assert game.resets == [0, 50, 100]
    assert game.received == [(0, 1.0), (50, 2.0), (100, 3.0)]


def test_training_stops_with_the_episode_that_completes_the_number(tmp_path: Path) -> None:
    given = settings(tmp_path, {}, stop={"episodes": 40}, max_steps=20_000)
    session = played(given, Fives())
    assert session.behaviors["Les"].episodes.num_total == 40
    status = json.loads((session.folder.logs / "training_status.json").read_text())
    assert status["Les"]["stopped"] == {"by": "episodes", "steps": 200}


def test_models_are_evaluated_at_each_interval_and_train_as_without(tmp_path: Path) -> None:
    own: dict[str, Any] = {"max_steps": 1100, "network_settings": {"normalize": True, "hidden_units": 8}}
    given = settings(tmp_path, {}, {"evaluation": {"interval": 100, "episodes": 1}}, **own)
    played(given, Fives(), Fives())
    evaluated = FinishedRun(0, "", tmp_path / "run").scalars("Les")["Evaluation/Cumulative Reward"]
    steps = [step for step, _ in evaluated]
    assert steps == [*range(100, 1101, 100), 1105]
    best = torch.load(tmp_path / "run" / "Les" / "best.pt", weights_only=True)
    assert int(best["global_step"]["_GlobalSteps__global_step"]) == steps[-1], "of equals the newest"

    played(settings(tmp_path / "plain", {}, **own), Fives())
    states = [tmp_path / folder / "run" / "Les" / "checkpoint.pt" for folder in (".", "plain")]
    one, other = (torch.load(path, weights_only=True)["Policy"] for path in states)
    assert all(torch.equal(weights, other[name]) for name, weights in one.items())
