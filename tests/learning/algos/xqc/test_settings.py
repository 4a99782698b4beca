"""XQC's settings: mistakes, dumps, the preset, and the discount where a configuration gives none."""

from __future__ import annotations

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.settings.builders import booleans, counts, off_policy, trainers_of
from tests.settings.test_error_matrix import behavior, problems_of
from trajtrainer.cli.main import main
from trajtrainer.learning.algos.xqc.settings import ROW, XQCHyperparameters
from trajtrainer.settings.run import RunSettings
from trajtrainer.settings.trainer import TrainerSettings
from trajtrainer.settings.yaml.convert import dump, load, trainer_mapping, trainer_settings

HYPERPARAMETERS = st.builds(
    XQCHyperparameters, **off_policy, critic_hidden_units=counts, critic_num_layers=counts, auto_gamma=booleans
)


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(trainers_of("xqc", HYPERPARAMETERS))
def test_a_behavior_survives_a_dump(trainer: TrainerSettings) -> None:
    assert trainer_settings(trainer_mapping(trainer)) == trainer


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            behavior("trainer_type: xqc\nhyperparameters: {reward_signal_steps_per_update: auto}"),
            "a.yaml:5: behaviors.A.hyperparameters.reward_signal_steps_per_update: found 'auto', expected a number, "
            "unless steps_per_update is also auto",
        ),
    ],
)
def test_the_one_problem_is_named_with_its_line(text: str, message: str) -> None:
    assert problems_of(text) == [message]


def test_the_preset_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "--presets"]) == 0

    shown = capsys.readouterr().out
    for preset in ROW.presets.values():
        assert yaml.safe_dump(dict(preset), sort_keys=False, default_flow_style=None, width=110) in shown
        assert trainer_settings(preset)


def chooses(run: RunSettings, name: str = "A") -> bool:
    hyper = run.for_behavior(name).hyperparameters
    assert isinstance(hyper, XQCHyperparameters)
    return hyper.auto_gamma


@pytest.mark.parametrize(
    ("behavior", "expected"),
    [
        ("", True),
        ("hyperparameters: {batch_size: 8}", True),
        ("reward_signals: {extrinsic: {strength: 2}}", True),
        ("reward_signals: {extrinsic: {gamma: 0.9}}", False),
        ("reward_signals: {extrinsic: {gamma: 0.9}}, hyperparameters: {auto_gamma: true}", True),
        ("hyperparameters: {auto_gamma: false}", False),
        ("reward_signals: {rnd: {strength: 2}}", False),
    ],
)
def test_a_discount_is_chosen_where_none_is_given(behavior: str, expected: bool) -> None:
    text = f"behaviors: {{A: {{trainer_type: xqc, {behavior}}}}}"
    run = load(text, "a.yaml")
    assert chooses(run) == expected
    assert chooses(load(dump(run), "a.yaml")) == expected  # though a dump has a gamma


def test_defaults_may_give_one() -> None:
    given = "reward_signals: {extrinsic: {gamma: 0.9}}"
    run = load(f"default_settings: {{trainer_type: xqc, {given}}}\nbehaviors: {{A: {{}}, B: {{{given}}}}}", "a.yaml")
    assert [chooses(run, name) for name in "ABC"] == [False, False, False]
    run = load(f"default_settings: {{trainer_type: xqc}}\nbehaviors: {{A: {{}}, B: {{{given}}}}}", "a.yaml")
    assert [chooses(run, name) for name in "ABC"] == [True, False, True]
