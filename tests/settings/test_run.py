"""What a whole run says about a behavior, and its seeds."""

from __future__ import annotations

import logging

import pytest

from trajtrainer.core.errors import SettingsError
from trajtrainer.learning.algos.ppo.settings import PPOHyperparameters
from trajtrainer.learning.algos.sac.settings import SACHyperparameters
from trajtrainer.settings.checks import InvalidValueError
from trajtrainer.settings.environment import EnvironmentSettings
from trajtrainer.settings.network import MemorySettings, NetworkSettings
from trajtrainer.settings.run import RunSettings
from trajtrainer.settings.trainer import TrainerSettings
from trajtrainer.settings.yaml.convert import dump, load, to_mapping


def test_a_listed_behavior() -> None:
    assert load("behaviors: {A: {max_steps: 5}}", "a.yaml").for_behavior("A").max_steps == 5


def test_a_behavior_that_is_not_listed_gets_the_defaults() -> None:
    settings = load("default_settings: {max_steps: 7}\nbehaviors: {A: {max_steps: 5}}", "a.yaml")

    assert settings.for_behavior("B").max_steps == 7


def test_a_behavior_that_the_file_does_not_cover() -> None:
    with pytest.raises(
        SettingsError, match=r"'Walkr', which the configuration does not list \(listed: Walker, Ant; did"
    ):
        load("behaviors: {Walker: {}, Ant: {}}", "a.yaml").for_behavior("Walkr")


def test_without_a_file_every_behavior_gets_ppo(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert RunSettings().for_behavior("A") == TrainerSettings()

    assert "'A'" in caplog.text


@pytest.mark.parametrize("defaults", ["", "default_settings: {max_steps: 7}\n"])
def test_deterministic_reaches_every_behavior(defaults: str) -> None:
    text = f"{defaults}deterministic: true\nbehaviors: {{A: {{network_settings: {{normalize: true}}}}}}"
    settings = load(text, "a.yaml")

    network = settings.for_behavior("A").network_settings
    assert (network.deterministic, network.normalize) == (True, True)
    if defaults:
        assert settings.for_behavior("B").network_settings.deterministic
    assert RunSettings(deterministic=True).for_behavior("B").network_settings.deterministic


def test_deterministic_is_dumped_where_ml_agents_looks_for_it() -> None:
    mapping = to_mapping(load("deterministic: true\nbehaviors: {A: {}}", "a.yaml"))

    assert "deterministic" not in mapping
    assert mapping["behaviors"]["A"]["network_settings"]["deterministic"] is True


def test_our_own_options_are_dumped_only_when_changed() -> None:
    changed = load(
        "env_settings: {listen_address: 0.0.0.0}\n"
        "behaviors: {A: {trainer_type: ppo, hyperparameters: {value_clipping: true}}, B: {}}",
        "a.yaml",
    )
    mapping = to_mapping(changed)

    assert mapping["env_settings"]["listen_address"] == "0.0.0.0"
    assert mapping["behaviors"]["A"]["hyperparameters"]["value_clipping"] is True
    assert "value_clipping" not in mapping["behaviors"]["B"]["hyperparameters"]
    assert "listen_address" not in to_mapping(RunSettings())["env_settings"]


def test_an_option_of_ours_that_a_behavior_turns_off_again_is_dumped() -> None:
    settings = load(
        "default_settings: {trainer_type: ppo, hyperparameters: {value_clipping: true}}\n"
        "behaviors: {A: {hyperparameters: {value_clipping: false}}, B: {}, C: {trainer_type: sac}}",
        "a.yaml",
    )

    assert load(dump(settings), "b.yaml") == settings


def test_samplers_without_a_seed_get_the_next_one() -> None:
    settings = load(
        """
behaviors: {A: {}}
environment_parameters:
  first: 1.0
  own: {sampler_type: uniform, sampler_parameters: {seed: 3}}
  lessons:
    curriculum:
      - {name: a, value: 1, completion_criteria: {behavior: A}}
      - {name: b, value: {sampler_type: gaussian, sampler_parameters: {}}}
""",
        "a.yaml",
    ).with_seed(100)

    parameters = settings.environment_parameters or {}
    seeds = {name: [lesson.value.seed for lesson in each.curriculum] for name, each in parameters.items()}
    assert seeds == {"first": [100], "own": [3], "lessons": [101, 102]}
    assert settings.env_settings.seed == 100
    assert settings.behaviors_required


def test_classes_refuse_senseless_values_without_a_file_too() -> None:
    with pytest.raises(InvalidValueError, match="batch_size: found 0, expected a whole number of at least 1"):
        PPOHyperparameters(batch_size=0)
    with pytest.raises(InvalidValueError, match="num_envs: found 2, expected 1, as no env_path is given"):
        EnvironmentSettings(num_envs=2)
    with pytest.raises(InvalidValueError, match=r"network_settings\.memory\.sequence_length: .*; keep_checkpoints: "):
        TrainerSettings(
            network_settings=NetworkSettings(memory=MemorySettings(sequence_length=2048)),
            even_checkpoints=True,
            keep_checkpoints=0,
        )
    with pytest.raises(InvalidValueError, match=r"hyperparameters: .*, expected those of trainer_type ppo"):
        TrainerSettings(hyperparameters=SACHyperparameters())


def test_classes_fill_in_what_follows_from_another_field() -> None:
    assert isinstance(TrainerSettings(trainer_type="sac").hyperparameters, SACHyperparameters)
    assert TrainerSettings(even_checkpoints=True, max_steps=1000, keep_checkpoints=3).checkpoint_interval == 333
