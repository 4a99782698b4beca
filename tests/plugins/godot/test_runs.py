"""Whole runs with the built-in game: what else a run can do works as with players of Unity, or is refused."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.run.runs import behaviors_settings, learn, ppo

POLICY = "shared_policy"
GAME = "--env=godot:sim:Chase"


def settings(*sections: dict[str, Any], **changes: Any) -> dict[str, Any]:
    whole = behaviors_settings(**{POLICY: ppo(2000, **changes)})
    for section in sections:
        whole |= section
    return whole


def test_teams_play_against_each_other(tmp_path: Path) -> None:
    self_play = {"save_steps": 500, "team_change": 1000, "swap_steps": 250, "window": 2}
    done = learn(tmp_path, settings(self_play=self_play), GAME, "--env-args", "--teams=2")
    assert done.exit_code == 0, done.output
    assert len(done.scalars(POLICY)["Self-play/ELO"]) == 2


LESSONS = {
    "environment_parameters": {
        "reach": {
            "curriculum": [
                {
                    "name": "Wide",
                    "value": 3.0,  # all targets are reached at once
                    "completion_criteria": {
                        "behavior": POLICY,
                        "measure": "reward",
                        "threshold": 0.3,
                        "min_lesson_length": 5,
                    },
                },
                {"name": "Narrow", "value": 0.1},
            ]
        }
    },
    "evaluation": {"interval": 1000, "episodes": 4},
}


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), ("--actors=1",)], ids=["inline", "actor"])
def test_memories_lessons_and_evaluations(options: tuple[str, ...], tmp_path: Path) -> None:
    network = {"hidden_units": 16, "num_layers": 1, "memory": {"memory_size": 8, "sequence_length": 8}}
    done = learn(tmp_path, settings(LESSONS, network_settings=network), GAME, *options)
    assert done.exit_code == 0, done.output
    assert "lesson 'Narrow'" in done.output
    assert len(re.findall(r"Evaluation at step \d+: reward", done.output)) == 2
    tags = done.scalars(POLICY)
    assert tags["Environment/Lesson Number/reach"][-1][1] == 1
    lengths = [value for _, value in tags["Environment/Episode Length"]]
    assert lengths[0] < lengths[-1] / 2


@pytest.mark.parametrize(
    ("section", "options", "message"),
    [
        (
            {
                "environment_parameters": {
                    "reach": {"sampler_type": "uniform", "sampler_parameters": {"min_value": 0.1}}
                }
            },
            (),
            "'reach' is drawn at random",
        ),
        ({}, ("--num-areas=4",), "num_areas is for Unity players"),
    ],
)
def test_what_is_refused(section: dict[str, Any], options: tuple[str, ...], message: str, tmp_path: Path) -> None:
    done = learn(tmp_path, settings(section), GAME, *options)
    assert done.exit_code == 1
    (error,) = re.findall(r"^error: .*$", done.output, re.MULTILINE)
    assert message in error
    assert "Traceback" not in done.output
