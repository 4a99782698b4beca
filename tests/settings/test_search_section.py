"""The section ``search``: what ranges name, and whether a configuration fits at their ends."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from trajtrainer.cli.main import main
from trajtrainer.core.errors import SettingsError
from trajtrainer.settings.environment import ConstantSettings
from trajtrainer.settings.search import Plan, Range, make_plan
from trajtrainer.settings.yaml.convert import dump, load, read_document

BASE: dict[str, Any] = {
    "behaviors": {"my.Ball": {"trainer_type": "ppo", "max_steps": 1000, "summary_freq": 500}},
    "env_settings": {"env_path": "gym:CartPole-v1"},
}
HYPER = "behaviors.my.Ball.hyperparameters"


def plan(ranges: dict[str, Any], base: dict[str, Any] | None = None, **search: Any) -> Plan:
    text = yaml.safe_dump({**BASE, **(base or {}), "search": {**search, "ranges": ranges}})
    return make_plan(*_read(text))


def _read(text: str) -> tuple[Any, dict[str, object], Any]:
    root, problems = read_document(text, "search.yaml")
    return root, {}, problems


def test_values_get_to_their_places_and_the_rest_stays() -> None:
    made = plan(
        {
            f"{HYPER}.learning_rate": {"low": "1e-5", "high": 0.01, "log": True},  # YAML reads 1e-5 as text
            f"{HYPER}.batch_size": {"low": 32, "high": 128, "step": 32},
            "behaviors.my.Ball.network_settings.normalize": {"choices": [True, False]},
            "behaviors.my.Ball.reward_signals.extrinsic.gamma": {"low": 0.9, "high": 1},
        }
    )
    assert made.ranges[f"{HYPER}.learning_rate"] == Range(1e-5, 0.01, log=True)
    assert made.ranges[f"{HYPER}.batch_size"] == Range(32, 128, step=32, is_whole=True)
    assert not made.ranges["behaviors.my.Ball.reward_signals.extrinsic.gamma"].is_whole  # 1 is written, 0.95 is meant
    assert made.behavior == "my.Ball"

    settings = made.settings_with({f"{HYPER}.batch_size": 96, "behaviors.my.Ball.network_settings.normalize": True})
    ball = settings.behaviors["my.Ball"]
    assert (ball.hyperparameters.batch_size, ball.network_settings.normalize, ball.max_steps) == (96, True, 1000)
    plain = made.settings.behaviors["my.Ball"]
    assert (plain.hyperparameters.batch_size, plain.network_settings.normalize) == (1024, False)
    assert load(dump(settings), "again") == settings


def test_a_constant_of_the_environment_may_be_searched() -> None:
    made = plan({"environment_parameters.mass": {"low": 1, "high": 5}}, {"environment_parameters": {"mass": 2}})
    parameters = made.settings_with({"environment_parameters.mass": 4}).environment_parameters
    assert parameters is not None
    assert parameters["mass"].curriculum[0].value == ConstantSettings(value=4.0)


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        (
            "behaviors.my.Bal.max_steps",
            {"low": 1, "high": 2},
            "no 'my.Bal.max_steps' in behaviors; did you mean my.Ball?",
        ),
        (f"{HYPER}.learning_rat", {"low": 1, "high": 2}, "unknown option; did you mean learning_rate?"),
        ("behaviors.my.Ball.self_play.window", {"low": 1, "high": 2}, "self_play is nothing (null), not a section"),
        (f"{HYPER}.beta.x", {"low": 1, "high": 2}, "beta is 0.005, not a section"),
        ("environment_parameters.mass", {"low": 1, "high": 2}, "environment_parameters is nothing (null)"),
        ("env_settings.seed", {"low": 1, "high": 2}, "set by the search itself"),
        (f"{HYPER}.beta", 5, "found 5, expected {low: ..., high: ...} or {choices: [...]}"),
        (f"{HYPER}.beta", {"low": 1}, "high: is missing"),
        (f"{HYPER}.beta", {"low": 1, "high": 2, "stepp": 1}, "unknown option; did you mean step?"),
        (f"{HYPER}.beta", {"low": 0.2, "high": 0.1}, "expected low below high"),
        (f"{HYPER}.beta", {"low": 0.1, "high": 0.1}, "expected low below high"),
        (
            f"{HYPER}.beta",
            {"low": 0.1, "high": 0.2, "step": 0.5},
            "step: found 0.5, expected a number above 0 and at most",
        ),
        (f"{HYPER}.beta", {"low": 0, "high": 1, "log": True}, "low: found 0.0, expected a number above 0, as log"),
        (f"{HYPER}.beta", {"low": 1, "high": 9, "log": True, "step": 1}, "cannot be combined with log: true"),
        (f"{HYPER}.beta", {"low": "much", "high": 1}, "low: found 'much', expected a number"),
        (f"{HYPER}.beta", {"choices": []}, "expected a list of two or more"),
        (f"{HYPER}.beta", {"choices": [{"a": 1}, 2]}, "expected a list of two or more"),
        (f"{HYPER}.beta", {"choices": [1, 2], "low": 3}, "unknown option; known here: choices"),
        (f"{HYPER}.batch_size", {"low": 32.5, "high": 64}, "low: found 32.5, expected a whole number"),
        (f"{HYPER}.batch_size", {"low": 0, "high": 64}, "found 0, expected a whole number of at least 1"),
        (f"{HYPER}.learning_rate_schedule", {"choices": ["linear", "cubic"]}, "found 'cubic', expected one of"),
    ],
)
def test_what_is_wrong_with_a_range_is_told_with_its_place(name: str, given: object, message: str) -> None:
    with pytest.raises(SettingsError, match=rf"search\.yaml:\d+: search\.ranges\.{re.escape(name)}") as caught:
        plan({name: given})
    assert message in str(caught.value)


def test_two_ranges_that_do_not_fit_together() -> None:
    keep = "behaviors.my.Ball.keep_checkpoints"
    even = "behaviors.my.Ball.even_checkpoints"
    one, other = {keep: {"low": 0, "high": 3}}, {even: {"choices": [True, False]}}
    plan(one)
    plan(other)
    with pytest.raises(SettingsError, match=r"keep_checkpoints: found 0, expected"):
        plan({**one, **other})


@pytest.mark.parametrize(
    ("base", "search", "message"),
    [
        ({}, {"trials": 0}, r"search.yaml:\d+: search.trials: found 0"),
        ({}, {"metrics": "x"}, "unknown option; did you mean metric?"),
        ({}, {"pruner": "median ", "sampler": 1}, "2 problems"),
        ({}, {"behavior": "my.Bal"}, "expected one of my.Ball; did you mean"),
        ({}, {"metric": "Evaluation/Cumulative Reward"}, "has no evaluation"),
        ({}, {"metric": "Self-play/ELO"}, "has no self_play"),
        ({"env_settings": {}}, {"parallel": 2}, "the Editor is one environment"),
        ({"behaviors": {"A": {}, "B": {}}}, {}, "behavior is missing: expected one of A, B"),
    ],
)
def test_what_is_wrong_with_the_rest_of_the_section(base: dict[str, Any], search: dict[str, Any], message: str) -> None:
    behavior = next(iter({**BASE, **base}["behaviors"]))
    with pytest.raises(SettingsError, match=message):
        plan({f"behaviors.{behavior}.max_steps": {"low": 1000, "high": 2000}}, base, **search)


@pytest.mark.parametrize("text", ["search: 5", "search: {}", "search: {ranges: }"])
def test_a_search_without_ranges(text: str) -> None:
    with pytest.raises(SettingsError, match="there are no ranges"):
        make_plan(*_read(yaml.safe_dump(BASE) + text))


def test_a_configuration_without_the_section() -> None:
    with pytest.raises(SettingsError, match=r"search\.yaml: has no section 'search'"):
        make_plan(*_read(yaml.safe_dump(BASE)))


def test_learning_leaves_the_section_aside_and_config_checks_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.yaml"
    wrong = {**BASE, "search": {"ranges": {f"{HYPER}.betta": {"low": 1, "high": 2}}}}
    path.write_text(yaml.safe_dump(wrong), encoding="utf-8")
    assert load(path.read_text(encoding="utf-8"), "a.yaml").behaviors["my.Ball"].max_steps == 1000

    assert main(["config", str(path)]) == 1

    assert "search.ranges.behaviors.my.Ball.hyperparameters.betta: unknown option" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("ranges", "search", "ok"),
    [
        ({}, {}, False),
        ({}, {"metric": "Losses/Value Loss"}, False),
        ({}, {"metric": "Evaluation/Cumulative Reward"}, True),
        ({"behaviors.my.Ball.summary_freq": {"low": 100, "high": 1000}}, {}, True),
        ({"behaviors.my.Ball.summary_freq": {"low": 100, "high": 1001}}, {}, False),
        ({"behaviors.my.Ball.max_steps": {"choices": [50000, 60000]}}, {}, True),
        ({"behaviors.my.Ball.max_steps": {"choices": [49999, 60000]}}, {}, False),
    ],
)
def test_a_search_that_could_not_measure_a_trial_is_refused(
    ranges: dict[str, Any], search: dict[str, Any], ok: bool
) -> None:
    ball = {"trainer_type": "ppo", "max_steps": 1000}
    base = {"behaviors": {"my.Ball": ball}, "evaluation": {"interval": 5000, "episodes": 1}}
    ranges = {f"{HYPER}.beta": {"low": 0.1, "high": 0.2}, **ranges}
    if ok:
        assert plan(ranges, base, **search).ranges
    else:
        with pytest.raises(
            SettingsError, match=r"summary_freq: found .* expected at most max_steps \(.* is never measured"
        ):
            plan(ranges, base, **search)
