"""Independent mistakes are reported together. One that depends on another may appear only once that is corrected."""

from __future__ import annotations

import logging
from textwrap import dedent

import pytest

from trajtrainer.settings.checks import ConfigurationError
from trajtrainer.settings.components import ALGORITHMS
from trajtrainer.settings.yaml.convert import load

NAMES = ", ".join(ALGORITHMS)


def problems_of(text: str) -> list[str]:
    """What is wrong with a YAML text, without the file's name."""
    with pytest.raises(ConfigurationError) as caught:
        load(dedent(text), "a.yaml")
    return [str(problem).removeprefix("a.yaml:") for problem in caught.value.problems]


def test_independent_mistakes_come_together() -> None:
    assert problems_of(
        """\
        behaviors:
          A:
            trainer_type: ppo
            hyperparameters:
              batch_size: many
              learning_rat: 3e-4
              epsilon: -1
            network_settings:
              memory: {memory_size: 3, sequence_length: 2000}
              hiden_units: 64
            max_steps: 1e3
            time_horizon: 0
        engine_settings: {width: wide}
        """
    ) == [
        "5: behaviors.A.hyperparameters.batch_size: found 'many', expected a whole number",
        "6: behaviors.A.hyperparameters.learning_rat: unknown option; did you mean learning_rate?",
        "7: behaviors.A.hyperparameters.epsilon: found -1.0, expected a number above 0",
        "9: behaviors.A.network_settings.memory.memory_size: found 3, expected an even whole number above 0",
        "10: behaviors.A.network_settings.hiden_units: unknown option; did you mean hidden_units?",
        "12: behaviors.A.time_horizon: found 0, expected a whole number of at least 1",
        "13: engine_settings.width: found 'wide', expected a whole number",
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "behaviors: {A: {trainer_type: sac, hyperparameters: {tau: 7, lambd: 1}}}",
            [
                "1: behaviors.A.hyperparameters.lambd: is only for trainer_type ppo, poca",
                "1: behaviors.A.hyperparameters.tau: found 7.0, expected a number from 0 to 1",
            ],
        ),
        (
            "behaviors: {A: {trainer_typ: sac, hyperparameters: {tau: 7}, max_steps: no}}",
            [
                "1: behaviors.A.trainer_typ: unknown option; did you mean trainer_type?",
                f"1: behaviors.A.hyperparameters: these need a trainer_type next to them: {NAMES}",
                "1: behaviors.A.max_steps: found false, expected a whole number",
            ],
        ),
        (
            "behaviors: {A: {trainer_type: soc, hyperparameters: {tau: 7}, max_steps: no}}",
            [
                f"1: behaviors.A.trainer_type: found 'soc', expected one of {NAMES}; did you mean sac?",
                "1: behaviors.A.max_steps: found false, expected a whole number",
            ],
        ),
        (
            "behaviors: {A: {reward_signals: {extrinsc: {gamma: 7}, rnd: {gamma: 7}}}}",
            [
                "1: behaviors.A.reward_signals.extrinsc: found 'extrinsc', expected one of extrinsic, curiosity, "
                "gail, rnd; did you mean extrinsic?",
                "1: behaviors.A.reward_signals.rnd.gamma: found 7.0, expected a number from 0 to 1",
            ],
        ),
        (
            "behaviors: {A: {behavioral_cloning: {demo_pth: x}}}",
            [
                "1: behaviors.A.behavioral_cloning.demo_pth: unknown option; did you mean demo_path?",
                "1: behaviors.A.behavioral_cloning.demo_path: is missing and has no default",
            ],
        ),
        (
            "environment_parameters: {g: {sampler_typ: uniform, sampler_parameters: {min_value: no}}}",
            [
                "1: environment_parameters.g.sampler_typ: unknown option; did you mean sampler_type?",
                "1: environment_parameters.g.sampler_type: is missing and has no default",
            ],
        ),
        (
            "environment_parameters: {g: {sampler_type: uniform, sampler_parameters: {min_value: no, maxvalue: 1}}}",
            [
                "1: environment_parameters.g.sampler_parameters.min_value: found false, expected a number",
                "1: environment_parameters.g.sampler_parameters.maxvalue: unknown option; did you mean max_value?",
            ],
        ),
    ],
)
def test_what_depends_on_a_mistake_waits_and_the_rest_is_checked(text: str, expected: list[str]) -> None:
    assert sorted(problems_of(text)) == sorted(expected)


def test_an_option_is_not_read_as_one_that_is_there() -> None:
    assert problems_of("behaviors: {A: {max_step: no, max_steps: 5}}") == [
        "1: behaviors.A.max_step: unknown option; did you mean max_steps?"
    ]


def test_sections_whose_fields_do_not_fit_together_are_reported_beside_others() -> None:
    assert problems_of(
        """\
        behaviors:
          A:
            trainer_type: ppo
            hyperparameters: {batch_size: 8}
            network_settings:
              memory: {sequence_length: 9}
            keep_checkpoints: 0
            even_checkpoints: true
        env_settings: {num_envs: 2}
        engine_settings: {width: x}
        """
    ) == [
        "6: behaviors.A.network_settings.memory.sequence_length: found 9, expected at most "
        "hyperparameters.batch_size (8)",
        "7: behaviors.A.keep_checkpoints: found 0, expected at least 1 with even_checkpoints",
        "9: env_settings.num_envs: found 2, expected 1, as no env_path is given (the Editor is one environment)",
        "10: engine_settings.width: found 'x', expected a whole number",
    ]


@pytest.mark.parametrize(
    ("text", "path"),
    [
        (
            "behaviors: {A: {trainer_type: ppo, hyperparameters: {batch_size: x}, "
            "network_settings: {memory: {sequence_length: 2000}}}}",
            "behaviors.A.hyperparameters.batch_size",
        ),
        (
            "environment_parameters: {g: {sampler_type: uniform, sampler_parameters: {min_value: 5, max_value: x}}}",
            "environment_parameters.g.sampler_parameters.max_value",
        ),
        ("env_settings: {env_path: [], num_envs: 2}", "env_settings.env_path"),
        ("behaviors: {A: {reward_signals: {extrinsic: {gamma: 7}}}}", "behaviors.A.reward_signals.extrinsic.gamma"),
        ("behaviors: {A: {behavioral_cloning: {demo_path: []}}}", "behaviors.A.behavioral_cloning.demo_path"),
    ],
)
def test_nothing_is_held_against_a_value_that_nobody_knows(text: str, path: str) -> None:
    (problem,) = problems_of(text)

    assert problem.startswith(f"1: {path}: ")


@pytest.mark.parametrize("trainer", ["ppo", "sac"])
def test_a_batch_above_the_buffer_is_told(trainer: str, caplog: pytest.LogCaptureFixture) -> None:
    text = f"""\
        behaviors:
          Large: {{trainer_type: {trainer}, hyperparameters: {{batch_size: 600, buffer_size: 500}}}}
          Equal: {{trainer_type: {trainer}, hyperparameters: {{batch_size: 500, buffer_size: 500}}}}
        """
    with caplog.at_level(logging.WARNING):
        load(dedent(text), "a.yaml")

    assert caplog.messages == [
        "Behavior 'Large': batch_size (600) is greater than buffer_size (500): a batch cannot be larger than the "
        "buffer."
    ]


def test_a_default_batch_above_the_buffer_is_told(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        load("default_settings: {trainer_type: ppo, hyperparameters: {buffer_size: 500}}", "a.yaml")

    assert [message.split(":")[0] for message in caplog.messages] == ["default_settings"]
