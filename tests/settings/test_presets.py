"""``preset``: names for settings that lie below those of a behavior."""

from __future__ import annotations

from textwrap import dedent

import pytest
import yaml

from trajtrainer.cli.main import main
from trajtrainer.learning.algos.ppo.settings import PPOHyperparameters
from trajtrainer.learning.algos.sac.settings import SACHyperparameters
from trajtrainer.settings.checks import ConfigurationError
from trajtrainer.settings.network import Activation, Initialization
from trajtrainer.settings.presets import PRESETS, covered
from trajtrainer.settings.run import RunSettings
from trajtrainer.settings.yaml.convert import dump, load, trainer_settings


def loaded(text: str) -> RunSettings:
    return load(dedent(text), "a.yaml")


def hyper_of(settings: RunSettings, name: str = "A") -> PPOHyperparameters:
    hyper = settings.behaviors[name].hyperparameters
    assert isinstance(hyper, PPOHyperparameters)
    return hyper


def test_own_settings_go_before_those_of_the_preset() -> None:
    settings = loaded("behaviors: {A: {preset: baselines, hyperparameters: {num_epoch: 20}}}")

    assert (hyper_of(settings).num_epoch, hyper_of(settings).joint_ratio) == (20, True)
    assert settings.behaviors["A"].network_settings.activation is Activation.TANH


def test_a_run_has_the_settings_and_not_the_preset() -> None:
    settings = loaded("behaviors: {A: {preset: baselines}, B: {}}")
    text = dump(settings)

    assert "preset" not in text
    assert yaml.safe_load(text)["behaviors"]["A"]["hyperparameters"]["max_grad_norm"] == 0.5
    assert "max_grad_norm" not in yaml.safe_load(text)["behaviors"]["B"]["hyperparameters"]
    assert load(text, "b.yaml") == settings


def test_a_preset_lies_above_the_default_settings() -> None:
    settings = loaded(
        """
        default_settings: {trainer_type: ppo, hyperparameters: {num_epoch: 7, value_clipping: true}}
        behaviors: {A: {preset: baselines}}
        """
    )

    assert (hyper_of(settings).num_epoch, hyper_of(settings).value_clipping) == (10, True)


def test_a_preset_of_the_default_settings_lies_below_them_and_is_of_each_trainer() -> None:
    settings = loaded(
        """
        default_settings: {preset: baselines, trainer_type: ppo, hyperparameters: {num_epoch: 7}}
        behaviors: {A: {}, B: {trainer_type: sac}, C: {preset: null}}
        """
    )

    assert (hyper_of(settings).num_epoch, hyper_of(settings).joint_ratio) == (7, True)
    assert settings.behaviors["B"].network_settings.activation is Activation.RELU
    assert settings.behaviors["B"].network_settings.initialization is Initialization.TORCH_DEFAULT
    assert isinstance(settings.behaviors["B"].hyperparameters, SACHyperparameters)
    assert not hyper_of(settings, "C").joint_ratio
    assert settings.default_settings is not None
    assert settings.default_settings.network_settings.initialization is Initialization.ORTHOGONAL
    assert load(dump(settings), "b.yaml") == settings


def test_one_behavior_alone() -> None:
    network = trainer_settings({"preset": "baselines", "trainer_type": "poca"}).network_settings
    assert network.initialization is Initialization.ORTHOGONAL


def test_options_that_mlagents_does_not_know_are_dumped_where_they_are_set() -> None:
    given = {"learning_starts": 100, "ent_coef": 0.1, "policy_delay": 20, "layer_norm": True, "dropout_rate": 0.01}
    settings = loaded(f"behaviors: {{A: {{trainer_type: sac, hyperparameters: {given}}}, B: {{trainer_type: sac}}}}")
    dumped = yaml.safe_load(dump(settings))["behaviors"]

    plain = dumped["B"]["hyperparameters"]
    assert {name: value for name, value in dumped["A"]["hyperparameters"].items() if name not in plain} == given
    assert load(dump(settings), "b.yaml") == settings


@pytest.mark.parametrize(
    ("options", "messages"),
    [
        ("learning_start: 5", ["hyperparameters.learning_start: unknown option; did you mean learning_starts?"]),
        (
            "learning_starts: -1, ent_coef: auto, policy_delay: 0",
            [
                "hyperparameters.ent_coef: found 'auto', expected a number",
                "hyperparameters.learning_starts: found -1, expected a whole number of at least 0",
                "hyperparameters.policy_delay: found 0, expected a whole number of at least 1",
            ],
        ),
        ("ent_coef: 0", ["hyperparameters.ent_coef: found 0.0, expected a number above 0"]),
    ],
)
def test_mistakes_in_options_of_sac(options: str, messages: list[str]) -> None:
    with pytest.raises(ConfigurationError) as caught:
        loaded(f"behaviors: {{A: {{trainer_type: sac, hyperparameters: {{{options}}}}}}}")

    assert sorted(map(str, caught.value.problems)) == [f"a.yaml:1: behaviors.A.{message}" for message in messages]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{preset: baseline}", "found 'baseline', expected one of baselines; did you mean baselines?"),
        ("{preset: 3}", "found '3', expected one of baselines"),
    ],
)
def test_what_cannot_be_meant(text: str, message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        loaded(f"behaviors: {{A: {text}}}")

    assert [str(problem) for problem in caught.value.problems] == [f"a.yaml:1: behaviors.A.preset: {message}"]


def test_presets_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "--presets"]) == 0

    shown = capsys.readouterr().out
    for name, preset in PRESETS.items():
        assert f"preset: {name}" in shown
        assert covered(name)[: len(preset.of_trainer)] == [*preset.of_trainer]
        for settings in preset.of_trainer.values():
            assert yaml.safe_dump(dict(settings), sort_keys=False, default_flow_style=None, width=110) in shown
            assert trainer_settings(settings)
