"""Which evaluations a behavior has, by its own settings and those of the run."""

from __future__ import annotations

import pytest
import yaml

from trajtrainer.settings.evaluation import Evaluations
from trajtrainer.settings.yaml.convert import dump, load

RUN = "evaluation: {interval: 100, episodes: 5}\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("behaviors: {A: {}}", None),
        (RUN + "behaviors: {A: {}}", Evaluations(100, 5, deterministic=False)),
        (RUN + "behaviors: {A: {evaluation: {interval: 7}}}", Evaluations(7, 5, deterministic=False)),
        (RUN + "behaviors: {A: {evaluation: {deterministic: true}}}", Evaluations(100, 5, deterministic=True)),
        (
            "evaluation: {deterministic: true}\nbehaviors: {A: {evaluation: {interval: 7, episodes: 8}}, B: {}}",
            Evaluations(7, 8, deterministic=True),
        ),
        (
            "default_settings: {evaluation: {interval: 9, episodes: 2}}\nbehaviors: {A: {evaluation: {episodes: 3}}}",
            Evaluations(9, 3, deterministic=False),
        ),
        ("behaviors: {A: {evaluation: {interval: 7, episodes: 8}}}", Evaluations(7, 8, deterministic=False)),
    ],
)
def test_a_behaviors_own_settings_go_before_those_of_the_run(text: str, expected: Evaluations | None) -> None:
    run = load(text, "a.yaml")
    assert run.evaluations_of(run.behaviors["A"]) == expected
    if "B" in run.behaviors:
        assert run.evaluations_of(run.behaviors["B"]) is None
    assert load(dump(run), "a.yaml") == run


def test_nothing_of_it_is_dumped_while_it_is_not_used() -> None:
    plain = yaml.safe_load(dump(load("behaviors: {A: {}}\ndefault_settings: {}", "a.yaml")))
    assert "evaluation" not in plain
    assert not {"evaluation", "stop", "keep_best"} & plain["behaviors"]["A"].keys()


def test_a_behavior_keeps_its_default_where_the_default_settings_have_another() -> None:
    text = "default_settings: {keep_best: 3, stop: {reward: 1}}\nbehaviors: {A: {keep_best: 1, stop: null}, B: {}}"
    run = load(dump(load(text, "a.yaml")), "b.yaml")
    assert (run.behaviors["A"].keep_best, run.behaviors["A"].stop) == (1, None)
    assert run.behaviors["B"].keep_best == 3


def test_the_option_deterministic_is_for_evaluations_too() -> None:
    run = load(RUN + "deterministic: true\nbehaviors: {A: {}}", "a.yaml")
    assert run.evaluations_of(run.behaviors["A"]) == Evaluations(100, 5, deterministic=True)
