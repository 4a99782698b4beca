"""Whole runs with the built-in game: what else a run can do works as with players of Unity, or is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from tests.ports import free_ports
from tests.run.runs import behaviors_settings, learn, ppo
from trajtrainer.cli.main import main

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


@pytest.mark.slow
def test_settings_are_searched_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("optuna")
    monkeypatch.chdir(tmp_path)
    config = tmp_path / "search.yaml"
    ranges = {f"behaviors.{POLICY}.hyperparameters.learning_rate": {"low": 1e-4, "high": 1e-2, "log": True}}
    config.write_text(yaml.safe_dump(settings({"search": {"trials": 2, "parallel": 1, "ranges": ranges}})))
    assert main(["search", str(config), GAME, "--run-id=found", f"--base-port={free_ports(8)}"]) == 0
    assert len(list(tmp_path.glob("results/found*/**/training_status.json"))) >= 2


def recorded(path: Path, episodes: int) -> Path:
    """What the plugin writes of somebody who walks straight to the targets."""
    random, found = np.random.default_rng(1), []
    for _ in range(episodes):
        place, target = random.uniform(-1, 1, (2, 2))
        observed = [[*place, *target]]
        done: list[list[float]] = []
        while not done or np.linalg.norm(target - place) > 0.1:
            done.append(np.clip(10 * (target - place), -1, 1).tolist())
            place = place + 0.1 * np.array(done[-1])
            observed.append([*place, *target])
        found.append([observed, done])
    path.write_text(json.dumps(found))
    return path


@pytest.mark.slow
def test_what_the_plugin_recorded_is_imitated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recording = recorded(tmp_path / "expert_demos.json", 60)
    converted = tmp_path / "expert.demo"
    assert main(["demo", "convert", str(recording), "--actions=continuous:2", "-o", str(converted)]) == 0
    assert "60 episodes" in capsys.readouterr().out
    refused, done = (
        learn(
            tmp_path, settings(behavioral_cloning={"demo_path": str(path), "strength": 1.0}), GAME, run_id=path.suffix
        )
        for path in (recording, converted)
    )
    assert refused.exit_code == 1
    assert f"trajtrainer demo convert {recording}" in refused.output
    assert done.exit_code == 0, done.output
    assert done.rewards(POLICY)[-1] > 0.5  # about 0 without


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
