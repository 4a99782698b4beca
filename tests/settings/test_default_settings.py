"""``default_settings`` below each behavior: only what a user wrote is passed on.

See docs/explanation/mlagents-behavior.md#default-settings.
"""

from __future__ import annotations

import logging

import pytest

from trajtrainer.learning.algos.poca.settings import POCAHyperparameters
from trajtrainer.learning.algos.ppo.settings import PPOHyperparameters
from trajtrainer.learning.algos.sac.settings import SACHyperparameters
from trajtrainer.settings.checks import ConfigurationError
from trajtrainer.settings.components import ScheduleType
from trajtrainer.settings.run import RunSettings
from trajtrainer.settings.yaml.convert import load


def loaded(text: str) -> RunSettings:
    return load(text, "a.yaml")


def test_maps_merge_and_other_values_replace() -> None:
    settings = loaded("""
default_settings:
  trainer_type: ppo
  hyperparameters: {batch_size: 32, buffer_size: 320}
  network_settings: {hidden_units: 16, memory: {memory_size: 8, sequence_length: 4}}
  max_steps: 70
behaviors:
  A: {hyperparameters: {batch_size: 64}, network_settings: {num_layers: 3, memory: {sequence_length: 2}}}
  B: {network_settings: {memory: null}, max_steps: 80}
  C: {}
""")
    a, b, c = settings.behaviors.values()

    assert (a.hyperparameters.batch_size, a.buffer_size) == (64, 320)
    assert (a.network_settings.hidden_units, a.network_settings.num_layers) == (16, 3)
    assert a.network_settings.memory is not None
    assert (a.network_settings.memory.memory_size, a.network_settings.memory.sequence_length) == (8, 2)
    assert b.network_settings.memory is None
    assert (a.max_steps, b.max_steps, c.max_steps) == (70, 80, 70)
    assert c == settings.default_settings


def test_a_behavior_with_another_trainer_takes_what_its_trainer_knows() -> None:
    settings = loaded("""
default_settings:
  trainer_type: ppo
  hyperparameters: {batch_size: 32, beta: 0.5, learning_rate: 0.25}
  max_steps: 70
behaviors:
  A: {trainer_type: sac, hyperparameters: {tau: 0.5}}
  B: {trainer_type: poca}
""")
    sac, poca = (settings.behaviors[name] for name in "AB")

    assert sac.hyperparameters == SACHyperparameters(batch_size=32, learning_rate=0.25, tau=0.5)
    assert sac.max_steps == 70
    assert poca.trainer_type == "poca"
    assert isinstance(poca.hyperparameters, POCAHyperparameters)
    assert poca.hyperparameters.beta == 0.5


def test_schedules_follow_the_behavior_unless_someone_wrote_them() -> None:
    settings = loaded("""
default_settings:
  trainer_type: ppo
  hyperparameters: {learning_rate_schedule: linear, beta_schedule: linear}
behaviors:
  A: {hyperparameters: {learning_rate_schedule: constant}}
""")

    hyperparameters = settings.behaviors["A"].hyperparameters
    assert isinstance(hyperparameters, PPOHyperparameters)
    assert hyperparameters.beta_schedule is ScheduleType.LINEAR
    assert hyperparameters.epsilon_schedule is ScheduleType.CONSTANT


def test_reward_signals_that_nobody_wrote_are_not_added() -> None:
    settings = loaded("""
default_settings: {max_steps: 70}
behaviors:
  A: {reward_signals: {gail: {demo_path: d}}}
""")

    assert list(settings.behaviors["A"].reward_signals) == ["gail"]


def test_hyperparameters_need_no_trainer_type_when_there_are_defaults() -> None:
    settings = loaded("default_settings: {max_steps: 70}\nbehaviors:\n  A: {hyperparameters: {batch_size: 32}}\n")

    assert settings.behaviors["A"].hyperparameters == PPOHyperparameters(batch_size=32)


def test_a_mistake_in_the_defaults_is_reported_once_and_where_it_is() -> None:
    with pytest.raises(ConfigurationError) as caught:
        loaded("default_settings:\n  max_stepz: 70\nbehaviors:\n  A: {}\n  B: {}\n")

    assert [str(problem) for problem in caught.value.problems] == [
        "a.yaml:2: default_settings.max_stepz: unknown option; did you mean max_steps?"
    ]


def test_a_default_that_does_not_fit_a_behavior_is_reported_where_it_is() -> None:
    with pytest.raises(ConfigurationError) as caught:
        loaded("""\
default_settings:
  network_settings:
    memory:
      sequence_length: 16
behaviors:
  A:
    hyperparameters: {batch_size: 8}
""")

    assert [str(problem) for problem in caught.value.problems] == [
        "a.yaml:4: default_settings.network_settings.memory.sequence_length: found 16, expected at most "
        "hyperparameters.batch_size (8)"
    ]


def test_warnings_about_the_defaults_come_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        settings = loaded("""\
default_settings:
  framework: pytorch
  reward_signals: {rnd: {encoding_size: 64}}
behaviors:
  A: {}
  B: {framework: tensorflow}
""")

    assert len(caplog.records) == 3
    assert [
        trainer.reward_signals["rnd"].network_settings.hidden_units
        for trainer in (settings.for_behavior(name) for name in ("A", "B", "unlisted"))
    ] == [64, 64, 64]


def test_one_file_leaves_nothing_behind_for_the_next() -> None:
    loaded("default_settings: {max_steps: 70}\nbehaviors:\n  A: {}\n")

    assert loaded("behaviors:\n  A: {}\n").behaviors["A"].max_steps == 500000


def test_absent_defaults() -> None:
    assert loaded("default_settings: null\nbehaviors: {A: {}}\n").default_settings is None
