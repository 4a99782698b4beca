"""The settings of offline trainers and of DAgger: mistakes, and what is printed."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from tests.settings import test_complete
from tests.settings.test_complete import FILES
from tests.settings.test_demonstrations import configuration
from tests.settings.test_error_matrix import behavior, problems_of, with_option
from tests.settings.test_unmeasured import found, lesson
from trajtrainer.cli.main import main
from trajtrainer.settings.presets import covered
from trajtrainer.settings.yaml.convert import dump, load


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            behavior("trainer_type: dagger\nhyperparameters: {steps_per_update: 0, expert: heuristic}"),
            "a.yaml:5: behaviors.A.hyperparameters.steps_per_update: found 0.0, expected a number above 0, or auto",
        ),
        (
            behavior("trainer_type: iql\ndataset: [a.demo]\nhyperparameters: {steps_per_update: auto}"),
            "a.yaml:6: behaviors.A.hyperparameters.steps_per_update: is only for trainer_type "
            f"{with_option('steps_per_update')}",
        ),
        (
            behavior(
                "trainer_type: dagger\nhyperparameters: {expert: heuristic}\nnetwork_settings: {critic_only: [1]}"
            ),
            "a.yaml:6: behaviors.A.network_settings.critic_only: found [1], expected no sensors with trainer_type "
            "dagger, which does not support critic_only",
        ),
        (
            behavior("trainer_type: ppo\ndataset: [x.demo]"),
            "a.yaml:5: behaviors.A.dataset: found a list, expected no data set, as trainer_type ppo learns from "
            "an environment (trainer_type bc or iql)",
        ),
        (
            behavior("trainer_type: bc"),
            "a.yaml:3: behaviors.A.dataset: found nothing (null), expected a .demo or .npz file or a folder of .demo "
            "files to learn from, or a list of these",
        ),
        (
            behavior("trainer_type: bc\ndataset: [x.demo]\nself_play: {window: 3}"),
            "a.yaml:6: behaviors.A.self_play: found a mapping, expected no self_play, as trainer_type bc learns from "
            "a data set",
        ),
        (
            behavior("trainer_type: bc\ndataset: [x.demo]\nreward_signals: {curiosity: {strength: 0.1}}"),
            "a.yaml:6: behaviors.A.reward_signals.curiosity: found a mapping, expected no reward signal but extrinsic, "
            "as trainer_type bc learns from a data set, which contains no other rewards",
        ),
        (
            behavior(
                "trainer_type: dagger\nhyperparameters: {expert: heuristic, student_sensors: [Eyes]}\n"
                "reward_signals: {rnd: {}}"
            ),
            "a.yaml:6: behaviors.A.reward_signals.rnd: found a mapping, expected no reward signal but extrinsic with "
            "student_sensors, as the others see all sensors",
        ),
        (
            "behaviors: {A: {preset: baselines, trainer_type: dagger, hyperparameters: {expert: heuristic}}}",
            "a.yaml:1: behaviors.A.preset: found 'baselines', expected no preset with trainer_type dagger, "
            f"because baselines only covers {', '.join(covered('baselines'))}",
        ),
    ],
)
def test_the_one_problem_is_named_with_its_line(text: str, message: str) -> None:
    assert problems_of(text) == [message]


@pytest.mark.parametrize("trainer_type", ["bc", "iql"])
def test_the_buffer_size_of_an_old_file_is_ignored_without_a_buffer(
    trainer_type: str, caplog: pytest.LogCaptureFixture
) -> None:
    text = behavior(f"trainer_type: {trainer_type}\ndataset: a.demo\nhyperparameters: {{buffer_size: 64}}")

    with caplog.at_level(logging.WARNING):
        settings = load(text, "a.yaml")

    assert [record.getMessage() for record in caplog.records] == [
        "a.yaml:6: behaviors.A.hyperparameters.buffer_size: this is ignored, because this trainer_type has no buffer"
    ]
    assert "buffer_size" not in dump(settings)
    assert settings == load(text.replace("buffer_size: 64", ""), "a.yaml")


@pytest.mark.parametrize(
    "asking",
    [
        {"demo_path": "x.demo"},
        {"hyperparameters": {"demo_path": "x.demo"}},
    ],
)
@pytest.mark.parametrize("trainer", ["bc", "iql"])
def test_a_demo_path_of_a_trainer_that_learns_from_recordings_alone_points_to_dataset(
    asking: dict[str, Any],
    trainer: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.demo").touch()
    assert main(["config", str(configuration(tmp_path, {"trainer_type": trainer, **asking}))]) == 1
    told = capsys.readouterr().err
    assert f"trainer_type {trainer} learns from 'dataset'; write dataset: [x.demo] in the behavior" in told
    assert len(told.splitlines()) == 1


def test_a_lesson_that_never_ends() -> None:
    behaviors = "{A: {trainer_type: bc, dataset: tests/experience}}"
    (fault,) = found(f"behaviors: {behaviors}\n{lesson('behavior: A, threshold: 1')}")
    place = "environment_parameters.mass.curriculum.0.completion_criteria"
    assert fault == f"{place}: this lesson never ends, because behavior 'A' learns from recordings and has no episodes"


@pytest.fixture
def printed(monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a file with every key."""
    monkeypatch.setitem(FILES, "bc", {"behaviors": {"A": {"trainer_type": "bc", "dataset": ["x.demo"]}}})
    return "bc"


def test_every_commented_key_can_be_uncommented(printed: str) -> None:
    test_complete.test_every_commented_key_can_be_uncommented(printed)


def test_uncommented_defaults_change_nothing(printed: str) -> None:
    test_complete.test_uncommented_defaults_change_nothing(printed)


def test_ml_agents_reads_the_same_as_in_the_plain_dump(printed: str) -> None:
    test_complete.test_ml_agents_reads_the_same_as_in_the_plain_dump(printed)
