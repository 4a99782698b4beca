"""The discount that ``xqc`` chooses where a configuration gives none."""

from __future__ import annotations

import pytest

from trajtrainer.learning.algos.xqc.settings import XQCHyperparameters
from trajtrainer.settings.run import RunSettings
from trajtrainer.settings.yaml.convert import dump, load


def chooses(settings: RunSettings, name: str = "A") -> bool:
    hyper = settings.for_behavior(name).hyperparameters
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
def test_it_is_chosen_where_none_is_given(behavior: str, expected: bool) -> None:
    text = f"behaviors: {{A: {{trainer_type: xqc, {behavior}}}}}"
    settings = load(text, "a.yaml")
    assert chooses(settings) == expected
    assert chooses(load(dump(settings), "a.yaml")) == expected  # though a dump has a gamma


def test_defaults_may_give_one() -> None:
    given = "reward_signals: {extrinsic: {gamma: 0.9}}"
    settings = load(
        f"default_settings: {{trainer_type: xqc, {given}}}\nbehaviors: {{A: {{}}, B: {{{given}}}}}", "a.yaml"
    )
    assert [chooses(settings, name) for name in "ABC"] == [False, False, False]
    settings = load(f"default_settings: {{trainer_type: xqc}}\nbehaviors: {{A: {{}}, B: {{{given}}}}}", "a.yaml")
    assert [chooses(settings, name) for name in "ABC"] == [True, False, True]
