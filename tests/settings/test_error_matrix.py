"""Every wrong configuration of reference 2.8: what is said about it, and in which line; and what is accepted."""

from __future__ import annotations

import logging
from pathlib import Path
from textwrap import dedent

import pytest
from attrs import fields_dict

from trajtrainer.core.errors import SettingsError
from trajtrainer.settings.checks import ConfigurationError
from trajtrainer.settings.components import ALGORITHMS
from trajtrainer.settings.run import RunSettings
from trajtrainer.settings.yaml.convert import load, read_file, run_settings


def problems_of(text: str) -> list[str]:
    with pytest.raises(ConfigurationError) as caught:
        load(dedent(text), "a.yaml")
    return [str(problem) for problem in caught.value.problems]


def behavior(text: str) -> str:
    """A file whose fourth line is the first of ``text``, in the behavior A."""
    return "\nbehaviors:\n  A:\n" + "".join(f"    {line}\n" for line in dedent(text).strip().splitlines())


def mirror(symmetry: str) -> str:
    """A behavior whose mirror is described from the seventh line on."""
    return behavior(f"trainer_type: ppo\nhyperparameters:\n  symmetry:\n    {symmetry}")


def with_option(name: str) -> str:
    """The algorithms that have this hyperparameter."""
    return ", ".join(each for each, row in ALGORITHMS.builtin.items() if name in fields_dict(row.settings))


def load_behavior(text: str) -> RunSettings:
    return load(behavior(text), "a.yaml")


NAMES = ", ".join(ALGORITHMS)
UNKNOWN = [
    ("behaviours: {}", "a.yaml:1: behaviours: unknown option; did you mean behaviors?"),
    ("env_settings: {env_pth: x}", "a.yaml:1: env_settings.env_pth: unknown option; did you mean env_path?"),
    ("engine_settings: {widht: 4}", "a.yaml:1: engine_settings.widht: unknown option; did you mean width?"),
    ("checkpoint_settings: {runid: 4}", "a.yaml:1: checkpoint_settings.runid: unknown option; did you mean run_id?"),
    ("torch_settings: {devise: cpu}", "a.yaml:1: torch_settings.devise: unknown option; did you mean device?"),
    ("behaviors_required: true", "a.yaml:1: behaviors_required: unknown option; did you mean behaviors?"),
    (behavior("max_step: 4"), "a.yaml:4: behaviors.A.max_step: unknown option; did you mean max_steps?"),
    (
        behavior("trainer_type: ppo\nhyperparameters:\n  batch_sise: 4"),
        "a.yaml:6: behaviors.A.hyperparameters.batch_sise: unknown option; did you mean batch_size?",
    ),
    (
        behavior("trainer_type: sac\nhyperparameters: {Tau: 0.1}"),
        "a.yaml:5: behaviors.A.hyperparameters.Tau: unknown option; did you mean tau?",
    ),
    (
        behavior("reward_signals: {extrinsic: {gama: 1}}"),
        "a.yaml:4: behaviors.A.reward_signals.extrinsic.gama: unknown option; did you mean gamma?",
    ),
    (
        behavior("network_settings: {hiden_units: 1}"),
        "a.yaml:4: behaviors.A.network_settings.hiden_units: unknown option; did you mean hidden_units?",
    ),
    (
        behavior("network_settings: {memory: {memorysize: 8}}"),
        "a.yaml:4: behaviors.A.network_settings.memory.memorysize: unknown option; did you mean memory_size?",
    ),
    (
        behavior("behavioral_cloning: {demo_path: d, step: 1}"),
        "a.yaml:4: behaviors.A.behavioral_cloning.step: unknown option; did you mean steps?",
    ),
    (
        behavior("self_play: {save_step: 1}"),
        "a.yaml:4: behaviors.A.self_play.save_step: unknown option; did you mean save_steps?",
    ),
    (
        behavior("hidden_units: 5"),
        "a.yaml:4: behaviors.A.hidden_units: unknown option; it belongs under network_settings",
    ),
    (
        behavior("batch_size: 5"),
        "a.yaml:4: behaviors.A.batch_size: unknown option; it belongs under hyperparameters",
    ),
    (
        "torch_settings: {zzz: 1}",
        "a.yaml:1: torch_settings.zzz: unknown option; known here: device",
    ),
    (
        "environment_parameters: {g: {curriculum: [{name: a, value: 1, lessn: 1}]}}",
        "a.yaml:1: environment_parameters.g.curriculum.0.lessn: unknown option; known here: name, value, "
        "completion_criteria",
    ),
    (
        """\
environment_parameters:
  g:
    curriculum:
      - name: a
        value: 1
        completion_criteria: {behavior: A, tresold: 1}
      - {name: b, value: 1}
""",
        "a.yaml:6: environment_parameters.g.curriculum.0.completion_criteria.tresold: unknown option; did you mean "
        "threshold?",
    ),
]

SAMPLER = "environment_parameters:\n  g: {}"

EVERYWHERE = "here or in every behavior"

WRONG = [
    (
        "behaviors: {A: {}}\nevaluation: {interval: 9}",
        f"a.yaml:2: evaluation.episodes: is missing: expected the number of episodes of each evaluation, {EVERYWHERE}",
    ),
    (
        behavior("evaluation: {episodes: 9}"),
        "a.yaml:4: behaviors.A.evaluation.interval: is missing: expected the number of steps between two evaluations, "
        f"{EVERYWHERE}",
    ),
    (
        "evaluation: {seed: 3}",
        "a.yaml:1: evaluation: has neither interval nor episodes; expected both, here or in a behavior",
    ),
    (
        "evaluation: {interval: 0, episodes: 5}",
        "a.yaml:1: evaluation.interval: found 0, expected a whole number of at least 1",
    ),
    (
        "evaluation: {interval: 5, episodes: 5, num_envs: 2}",
        "a.yaml:1: evaluation.num_envs: found 2, expected 1, as no env_path is given (the Editor is one environment)",
    ),
    (
        behavior("evaluation: {interval: 5, episodes: 0}"),
        "a.yaml:4: behaviors.A.evaluation.episodes: found 0, expected a whole number of at least 1",
    ),
    (
        behavior("stop: {time: 2h}"),
        "a.yaml:4: behaviors.A.stop.time: found '2h', expected a number",
    ),
    (
        behavior("trainer_type: sac\nhyperparameters: {v_trace: true}"),
        "a.yaml:5: behaviors.A.hyperparameters.v_trace: is only for trainer_type ppo, poca",
    ),
    (
        behavior("trainer_type: sac\nhyperparameters: {steps_per_update: often}"),
        "a.yaml:5: behaviors.A.hyperparameters.steps_per_update: found 'often', expected a number or auto",
    ),
    (
        behavior("trainer_type: poca\nhyperparameters: {rho_bar: 2}"),
        "a.yaml:5: behaviors.A.hyperparameters.rho_bar: has no effect without v_trace: true",
    ),
    (
        behavior("trainer_type: ppo\nhyperparameters: {v_trace: true, rho_bar: 0}"),
        "a.yaml:5: behaviors.A.hyperparameters.rho_bar: found 0.0, expected a number above 0",
    ),
    (
        behavior("trainer_type: ppo\nhyperparameters: {v_trace: true, c_bar: 2}"),
        "a.yaml:5: behaviors.A.hyperparameters.c_bar: found 2.0, expected at most rho_bar (1.0)",
    ),
    (
        behavior("keep_best: -1"),
        "a.yaml:4: behaviors.A.keep_best: found -1, expected a whole number of at least 0",
    ),
    (
        behavior("hyperparameters: {batch_size: 4}"),
        f"a.yaml:4: behaviors.A.hyperparameters: these need a trainer_type next to them: {NAMES}",
    ),
    (
        behavior("trainer_type: pp"),
        f"a.yaml:4: behaviors.A.trainer_type: found 'pp', expected one of {NAMES}; did you mean ppo?",
    ),
    (
        behavior("trainer_type: 5\nhyperparameters: {anything: 5}"),
        f"a.yaml:4: behaviors.A.trainer_type: found '5', expected one of {NAMES}",
    ),
    (
        behavior("network_settings: {critic_only: Truth}"),
        "a.yaml:4: behaviors.A.network_settings.critic_only: found 'Truth', expected a list",
    ),
    (
        behavior("network_settings: {critic_only: [Truth, -1]}"),
        "a.yaml:4: behaviors.A.network_settings.critic_only: found a list, expected a list of sensors, by name or by "
        "number (from 0)",
    ),
    (
        behavior("trainer_type: ppo\nhyperparameters: {shared_critic: true}\nnetwork_settings: {critic_only: [1]}"),
        "a.yaml:6: behaviors.A.network_settings.critic_only: found [1], expected none with shared_critic: true, "
        "because the critic then has the same inputs as the policy",
    ),
    (
        behavior("reward_signals: {rnd: {network_settings: {critic_only: [1]}}}"),
        "a.yaml:4: behaviors.A.reward_signals.rnd.network_settings.critic_only: found [1], expected no sensors "
        "here, because reward signals observe the same sensors as the policy (network_settings of the behavior)",
    ),
    (
        behavior("trainer_type: poca\nhyperparameters: {symmetry: {}}"),
        f"a.yaml:5: behaviors.A.hyperparameters.symmetry: is only for trainer_type {with_option('symmetry')}",
    ),
    (
        behavior("trainer_type: sac\nhyperparameters: {symmetry: {}}\nnetwork_settings: {memory: {}}"),
        "a.yaml:5: behaviors.A.hyperparameters.symmetry: found a mapping, expected no symmetry with "
        "network_settings.memory, because a memory cannot be mirrored",
    ),
    (
        mirror("observations: {Eyes: {indices: [1, 2, 0]}}"),
        "a.yaml:7: behaviors.A.hyperparameters.symmetry.observations.Eyes.indices: found [1, 2, 0], expected each "
        "index from 0 on exactly once, swapped in pairs or left in place",
    ),
    (
        mirror("continuous_actions: {signs: [1, 0]}"),
        "a.yaml:7: behaviors.A.hyperparameters.symmetry.continuous_actions.signs: found [1, 0], expected a list of 1 "
        "and -1",
    ),
    (
        mirror("continuous_actions: {indices: [1, 0], signs: [1, 1, -1]}"),
        "a.yaml:7: behaviors.A.hyperparameters.symmetry.continuous_actions.signs: found [1, 1, -1], expected as many "
        "as indices (2)",
    ),
    (
        mirror("continuous_actions: {indices: [1, 0], signs: [1, -1]}"),
        "a.yaml:7: behaviors.A.hyperparameters.symmetry.continuous_actions.signs: found [1, -1], expected the same "
        "sign for two elements that swap places",
    ),
    (
        mirror("discrete_actions: [[0, 1], [0, 2, 3]]"),
        "a.yaml:7: behaviors.A.hyperparameters.symmetry.discrete_actions.1: found [0, 2, 3], expected each action of "
        "the branch, numbered from 0, exactly once",
    ),
    (
        mirror("discrete_actions: [[1, 2, 0]]"),
        "a.yaml:7: behaviors.A.hyperparameters.symmetry.discrete_actions.0: found [1, 2, 0], expected numbers that "
        "give back the same actions when mirrored twice",
    ),
    (
        mirror("{discrete_actions: [[0, 1]], branches: [1, 0]}"),
        "a.yaml:7: behaviors.A.hyperparameters.symmetry.discrete_actions: found a list, expected as many as branches "
        "(2)",
    ),
    (
        behavior("trainer_type: ppo\nhyperparameters: {demonstrations: {demo_path: d}}"),
        "a.yaml:5: behaviors.A.hyperparameters.demonstrations: is only for trainer_type "
        f"{with_option('demonstrations')}",
    ),
    (
        behavior("trainer_type: sac\nhyperparameters: {demonstrations: {ratio: 0.5}}"),
        "a.yaml:5: behaviors.A.hyperparameters.demonstrations.demo_path: is missing and has no default",
    ),
    (
        behavior("trainer_type: poca\nnetwork_settings: {hidden_units: 130}"),
        "a.yaml:5: behaviors.A.network_settings.hidden_units: found 130, expected a multiple of 4 with trainer_type "
        "poca",
    ),
    (
        behavior("trainer_type: sac\nreward_signals: {rnd: {episodic_bonus: 0.5}}"),
        "a.yaml:5: behaviors.A.reward_signals.rnd.episodic_bonus: found 0.5, expected nothing (null) with trainer_type "
        "sac, whose replay buffer does not keep episodes together",
    ),
    (
        behavior("trainer_type: sac\nhyperparameters: {n_step: 9}\ntime_horizon: 8"),
        "a.yaml:5: behaviors.A.hyperparameters.n_step: found 9, expected at most time_horizon (8)",
    ),
    (
        "env_settings: {env_path: Game, wrappers: ['a:B']}",
        "a.yaml:1: env_settings.wrappers: expected no wrappers: they are for gym:, pettingzoo: and python: "
        "environments, and 'Game' is not a Python environment",
    ),
    (
        "env_settings: {env_path: 'gym:Pong-v5', wrappers: [\"a:B 'x=1\"]}",
        'a.yaml:1: env_settings.wrappers.0: found "a:B \'x=1", expected package.module:Wrapper and its arguments, each '
        "as key=value (in quotes if it has spaces)",
    ),
    (
        behavior("network_settings: {memory: {memory_size: 0}}"),
        "a.yaml:4: behaviors.A.network_settings.memory.memory_size: found 0, expected an even whole number above 0",
    ),
    (
        behavior("network_settings: {memory: {memory_size: 3}}"),
        "a.yaml:4: behaviors.A.network_settings.memory.memory_size: found 3, expected an even whole number above 0",
    ),
    (
        behavior("""
            trainer_type: ppo
            hyperparameters: {batch_size: 8}
            network_settings:
              memory:
                sequence_length: 9"""),
        "a.yaml:8: behaviors.A.network_settings.memory.sequence_length: found 9, expected at most "
        "hyperparameters.batch_size (8)",
    ),
    (
        SAMPLER.format("{sampler_type: uniform}"),
        "a.yaml:2: environment_parameters.g.sampler_parameters: is missing and has no default",
    ),
    (
        SAMPLER.format("{sampler_parameters: {}}"),
        "a.yaml:2: environment_parameters.g.sampler_type: is missing and has no default",
    ),
    (
        SAMPLER.format("{sampler_type: constant, sampler_parameters: {}, seed: 4}"),
        "a.yaml:2: environment_parameters.g.seed: unknown option; it belongs under sampler_parameters",
    ),
    (
        SAMPLER.format("{sampler_type: unifrom, sampler_parameters: {}}"),
        "a.yaml:2: environment_parameters.g.sampler_type: found 'unifrom', expected one of constant, uniform, "
        "gaussian, multirangeuniform; did you mean uniform?",
    ),
    (
        SAMPLER.format("heavy"),
        "a.yaml:2: environment_parameters.g: found 'heavy', expected a number, or a mapping with sampler_type and "
        "sampler_parameters",
    ),
    (
        SAMPLER.format("null"),
        "a.yaml:2: environment_parameters.g: found nothing (null), expected a number, or a mapping with sampler_type "
        "and sampler_parameters",
    ),
    (
        SAMPLER.format("{sampler_type: uniform, sampler_parameters: {min_value: 2}}"),
        "a.yaml:2: environment_parameters.g.sampler_parameters.min_value: found 2.0, expected at most max_value (1.0)",
    ),
    (
        SAMPLER.format("{sampler_type: multirangeuniform, sampler_parameters: {intervals: [[0, 1], [3, 2]]}}"),
        "a.yaml:2: environment_parameters.g.sampler_parameters.intervals.1: found [3.0, 2.0], expected [low, high] "
        "with low not above high",
    ),
    (
        SAMPLER.format("{sampler_type: multirangeuniform, sampler_parameters: {intervals: [[0, 1, 2]]}}"),
        "a.yaml:2: environment_parameters.g.sampler_parameters.intervals.0: found [0, 1, 2], expected exactly two "
        "numbers [low, high]",
    ),
    (
        SAMPLER.format("{sampler_type: multirangeuniform, sampler_parameters: {intervals: []}}"),
        "a.yaml:2: environment_parameters.g.sampler_parameters.intervals: found [], expected at least one interval "
        "[low, high]",
    ),
    (
        SAMPLER.format("{curriculum: [{name: a, value: 1}, {name: b, value: 1}]}"),
        "a.yaml:2: environment_parameters.g.curriculum.0: lesson 'a' has no completion_criteria, which every lesson "
        "but the last needs",
    ),
    (
        SAMPLER.format("{curriculum: []}"),
        "a.yaml:2: environment_parameters.g.curriculum: found [], expected at least one lesson",
    ),
    (
        SAMPLER.format(
            "{curriculum: [{name: a, value: 1, completion_criteria: "
            "{behavior: A, measure: progress, threshold: 1.5}}, {name: b, value: 1}]}"
        ),
        "a.yaml:2: environment_parameters.g.curriculum.0.completion_criteria.threshold: found 1.5, expected a number "
        "from 0 to 1, as the measure is progress",
    ),
    (
        SAMPLER.format("{curriculum: [{name: a, value: 1, completion_criteria: {behavior: A, measure: Elo}}]}"),
        "a.yaml:2: environment_parameters.g.curriculum.0.completion_criteria.measure: found 'Elo', expected one of "
        "reward, group_reward, progress, elo; did you mean elo?",
    ),
    (
        SAMPLER.format(
            "{curriculum: [{name: a, value: 1, completion_criteria: {behavior: A, measure: elo}}, {name: b, value: 1}]}"
        ),
        "a.yaml:2: environment_parameters.g.curriculum.0.completion_criteria.measure: found 'elo', expected reward or "
        "progress, as behavior 'A' has no self_play",
    ),
    (
        SAMPLER.format("{curriculum: [{value: 1}]}"),
        "a.yaml:2: environment_parameters.g.curriculum.0.name: is missing and has no default",
    ),
    (
        "behaviors:\n  A:\n  B: {}",
        "a.yaml:2: behaviors.A: found nothing (null), expected a mapping ({} means the defaults)",
    ),
    (
        "env_settings:",
        "a.yaml:1: env_settings: found nothing (null), expected a mapping ({} means the defaults)",
    ),
    ("behaviors:", "a.yaml:1: behaviors: found nothing (null), expected a mapping of names"),
    ("behaviors: [A]", "a.yaml:1: behaviors: found a list, expected a mapping of names"),
    (
        behavior("reward_signals: {}"),
        "a.yaml:4: behaviors.A.reward_signals: found {}, expected at least one reward signal",
    ),
    (
        behavior("reward_signals:"),
        "a.yaml:4: behaviors.A.reward_signals: found nothing (null), expected a mapping of reward signals",
    ),
    (
        behavior("reward_signals: {extrinsc: {}}"),
        "a.yaml:4: behaviors.A.reward_signals.extrinsc: found 'extrinsc', expected one of extrinsic, curiosity, "
        "gail, rnd; did you mean extrinsic?",
    ),
    (
        behavior("reward_signals: {gail: {}}"),
        "a.yaml:4: behaviors.A.reward_signals.gail.demo_path: is missing and has no default",
    ),
    (
        behavior("behavioral_cloning: {}"),
        "a.yaml:4: behaviors.A.behavioral_cloning.demo_path: is missing and has no default",
    ),
    (
        behavior("network_settings: {vis_encode_type: resent}"),
        "a.yaml:4: behaviors.A.network_settings.vis_encode_type: found 'resent', expected one of fully_connected, "
        "match3, simple, nature_cnn, resnet; did you mean resnet?",
    ),
    (
        behavior("network_settings: {goal_conditioning_type: hype}"),
        "a.yaml:4: behaviors.A.network_settings.goal_conditioning_type: found 'hype', expected one of hyper, none; "
        "did you mean hyper?",
    ),
    (
        behavior("trainer_type: ppo\nhyperparameters: {beta_schedule: square}"),
        "a.yaml:5: behaviors.A.hyperparameters.beta_schedule: found 'square', expected one of constant, linear, "
        "cosine, adaptive",
    ),
    (behavior("max_steps: abc"), "a.yaml:4: behaviors.A.max_steps: found 'abc', expected a whole number"),
    (
        behavior(f"max_steps: {2**1024}"),
        "a.yaml:4: behaviors.A.max_steps: found 179769313486231590772930519078902473361797697894230657273..., "
        "expected a whole number of at most 64 bits",
    ),
    (
        behavior(f"max_steps: 0x{'f' * 5000}"),
        "a.yaml:4: behaviors.A.max_steps: found '0xffffffffffffffffffffffffffffffffffffffffffffffffffffff..., "
        "expected a whole number",
    ),
    (behavior("max_steps: .inf"), "a.yaml:4: behaviors.A.max_steps: found inf, expected a whole number"),
    (behavior("max_steps: true"), "a.yaml:4: behaviors.A.max_steps: found true, expected a whole number"),
    (behavior("max_steps: [1]"), "a.yaml:4: behaviors.A.max_steps: found [1], expected a whole number"),
    (
        behavior("trainer_type: ppo\nhyperparameters: {batch_size: 64.7}"),
        "a.yaml:5: behaviors.A.hyperparameters.batch_size: found 64.7, expected a whole number",
    ),
    (
        behavior("trainer_type: ppo\nhyperparameters: {batch_size: 0}"),
        "a.yaml:5: behaviors.A.hyperparameters.batch_size: found 0, expected a whole number of at least 1",
    ),
    (
        behavior("trainer_type: ppo\nhyperparameters: {buffer_size: -5}"),
        "a.yaml:5: behaviors.A.hyperparameters.buffer_size: found -5, expected a whole number of at least 1",
    ),
    (
        behavior("trainer_type: ppo\nhyperparameters: {learning_rate: -1e-3}"),
        "a.yaml:5: behaviors.A.hyperparameters.learning_rate: found -0.001, expected a number of at least 0",
    ),
    (
        behavior("trainer_type: ppo\nhyperparameters: {learning_rate: .nan}"),
        "a.yaml:5: behaviors.A.hyperparameters.learning_rate: found nan, expected a finite number",
    ),
    (
        behavior('network_settings: {normalize: "false"}'),
        "a.yaml:4: behaviors.A.network_settings.normalize: found 'false', expected true or false, without quotes",
    ),
    (
        behavior("network_settings: {normalize: 1}"),
        "a.yaml:4: behaviors.A.network_settings.normalize: found 1, expected true or false",
    ),
    (
        behavior("keep_checkpoints: 0\neven_checkpoints: true"),
        "a.yaml:4: behaviors.A.keep_checkpoints: found 0, expected at least 1 with even_checkpoints",
    ),
    (
        "env_settings:\n  num_envs: 2",
        "a.yaml:2: env_settings.num_envs: found 2, expected 1, as no env_path is given (the Editor is one environment)",
    ),
    (
        "env_settings: {num_areas: 0}",
        "a.yaml:1: env_settings.num_areas: found 0, expected a whole number of at least 1",
    ),
    (
        "env_settings: {env_path: x, num_envs: 10, base_port: 65530}",
        "a.yaml:1: env_settings.base_port: found 65530, expected at most 65526, as 10 environments need a port each",
    ),
    ("env_settings: {env_args: --level 1}", "a.yaml:1: env_settings.env_args: found '--level 1', expected a list"),
    (
        "checkpoint_settings: {run_id: null}",
        "a.yaml:1: checkpoint_settings.run_id: found nothing (null), expected text",
    ),
]

BROKEN = [
    ("", "a.yaml: is empty, expected a mapping with sections such as 'behaviors:'"),
    ("# nothing\n", "a.yaml: is empty, expected a mapping with sections such as 'behaviors:'"),
    ("---\n...\n", "a.yaml: is empty, expected a mapping with sections such as 'behaviors:'"),
    ("- A\n- B\n", "a.yaml:1: found a list at the top level, expected a mapping with sections such as 'behaviors:'"),
    ("behaviors\n", "a.yaml:1: found a value at the top level, expected a mapping with sections such as 'behaviors:'"),
    (
        "behaviors:\n\tA: {}\n",
        "a.yaml:2: there is a tab; YAML allows only spaces for indentation (while scanning for the next token, found "
        "character '\\t' that cannot start any token)",
    ),
    ("a: b: c\n", "a.yaml:1: is not YAML: mapping values are not allowed here"),
    (
        "a: [1, 2\nb: 3\n",
        "a.yaml:2: is not YAML: while parsing a flow sequence, expected ',' or ']', but got ':'",
    ),
    (
        "a: 1\n---\nb: 1\n",
        "a.yaml:2: is not YAML: expected a single document in the stream, but found another document",
    ),
    ("a: 1\nb: \x07\n", "a.yaml:2: the character '\\x07' is not allowed in YAML"),
    ("a: *nowhere\n", "a.yaml:1: is not YAML: found undefined alias 'nowhere'"),
]


@pytest.mark.parametrize(("text", "message"), UNKNOWN + WRONG + BROKEN)
def test_the_one_problem_is_named_with_its_line(text: str, message: str) -> None:
    assert problems_of(text) == [message]


def test_all_problems_are_reported_at_once_in_the_order_of_the_file() -> None:
    problems = problems_of(
        """\
        default_settings:
          threded: true
        behaviors:
          A:
            max_steps: no
            trainer_type: ppo
            hyperparameters:
              batch_size: 0
              lambda: 0.9
              lambd: 7
            self_play: {window: 0}
          A: {}
        engine_settings: {width: wide}
        """
    )

    assert problems == [
        "a.yaml:2: default_settings.threded: unknown option; did you mean threaded?",
        "a.yaml:5: behaviors.A.max_steps: found false, expected a whole number",
        "a.yaml:8: behaviors.A.hyperparameters.batch_size: found 0, expected a whole number of at least 1",
        "a.yaml:9: behaviors.A.hyperparameters.lambda: unknown option; did you mean lambd?",
        "a.yaml:10: behaviors.A.hyperparameters.lambd: found 7.0, expected a number from 0 to 1",
        "a.yaml:11: behaviors.A.self_play.window: found 0, expected a whole number of at least 1",
        "a.yaml:12: behaviors.A: this key is already on line 4; remove one of the two",
        "a.yaml:13: engine_settings.width: found 'wide', expected a whole number",
    ]


def test_the_message_lists_every_problem() -> None:
    with pytest.raises(SettingsError, match=r"2 problems in the configuration:\n  a\.yaml:1: a: .*\n  a\.yaml:2: b: "):
        load("a: 1\nb: 2\n", "a.yaml")


@pytest.mark.parametrize(
    "text", ["a: 1\nb: 2\na: 3\n", "b: 2\nx: {a: 1, a: 3}\n", "x: &x {a: 1}\ny: {<<: *x, a: 2, a: 3}\n"]
)
def test_a_key_that_is_there_twice(text: str) -> None:
    duplicates = [problem for problem in problems_of(text) if "this key is already on line" in problem]

    assert len(duplicates) == 1


@pytest.mark.parametrize("written", ["5e4", "5.0e4", "5.0e+4", "50000", "50_000", "50000.0", '"5e4"', '"50000"'])
def test_whole_numbers_in_every_notation(written: str) -> None:
    settings = load_behavior(
        f"summary_freq: {written}\nmax_steps: {written}\ntrainer_type: ppo\nhyperparameters: {{buffer_size: {written}}}"
    ).behaviors["A"]

    values = (settings.summary_freq, settings.max_steps, settings.buffer_size)
    assert values == (50000, 50000, 50000)
    assert {type(value) for value in values} == {int}


@pytest.mark.parametrize("written", ["3e-4", "3.0e-4", "0.0003", '"3e-4"', ".3e-3"])
def test_numbers_in_every_notation(written: str) -> None:
    text = f"trainer_type: ppo\nhyperparameters: {{learning_rate: {written}}}"

    assert load_behavior(text).behaviors["A"].hyperparameters.learning_rate == 3e-4


@pytest.mark.parametrize(
    ("written", "run_id"), [("007", "007"), ("1.0", "1.0"), ("on", "on"), ("2024-05-01", "2024-05-01"), ("1_0", "1_0")]
)
def test_text_is_taken_as_it_was_written(written: str, run_id: str) -> None:
    assert load(f"checkpoint_settings: {{run_id: {written}}}", "a.yaml").checkpoint_settings.run_id == run_id


def test_behaviors_may_have_names_that_yaml_takes_for_something_else() -> None:
    assert list(load("behaviors: {on: {}, 1: {}, 1.0: {}, null: {}}", "a.yaml").behaviors) == ["on", "1", "1.0", "null"]


def test_accepted_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    text = behavior("""
        framework: pytorch
        max_steps: 5
        reward_signals:
          extrinsic: {}
          curiosity: {encoding_size: 64}
          rnd: {encoding_size: 64, network_settings: {hidden_units: 32, memory: {memory_size: 8}}}
        self_play: {play_against_latest_model_ratio: 1.5, save_steps: 100}
    """)
    text += """
  B?team=0: {}
environment_parameters:
  g:
    curriculum:
      - {name: a, value: 1, completion_criteria: {behavior: C}}
      - {name: b, value: 1, completion_criteria: {behavior: A}}
"""
    with caplog.at_level(logging.WARNING):
        settings = load(text, "a.yaml")

    assert [record.getMessage() for record in caplog.records] == [
        "a.yaml:4: behaviors.A.framework: this option was removed and is ignored: PyTorch is always used",
        "a.yaml:8: behaviors.A.reward_signals.curiosity.encoding_size: this option is deprecated; use "
        "network_settings: hidden_units instead",
        "a.yaml:9: behaviors.A.reward_signals.rnd.encoding_size: this option is deprecated; use "
        "network_settings: hidden_units instead",
        "a.yaml:9: behaviors.A.reward_signals.rnd.network_settings.memory: this is ignored, because reward "
        "signals have no memory",
        "Behavior 'A': play_against_latest_model_ratio should be from 0 to 1.",
        "Behavior 'A': team_change is greater than max_steps, so only one team will learn.",
        "Behavior 'B?team=0' never matches: list behaviors without '?team='.",
        "Parameter 'g': the completion_criteria of the last lesson are never used.",
    ]
    networks = {
        signal: signal_settings.network_settings
        for signal, signal_settings in settings.behaviors["A"].reward_signals.items()
    }
    assert {name: network.hidden_units for name, network in networks.items()} == {
        "extrinsic": 128,
        "curiosity": 64,
        "rnd": 32,
    }
    assert networks["rnd"].memory is None


def test_a_file_that_is_not_there(tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("configs") / "none.yaml"

    with pytest.raises(SettingsError, match=r"^Config file could not be found at .*none\.yaml\.$"):
        read_file(path)
    with pytest.raises(SettingsError, match="cannot be read: Is a directory"):
        read_file(path.parent)


def test_a_mistyped_file_name_gets_a_suggestion(tmp_path: Path) -> None:
    (tmp_path / "3DBall.yaml").touch()
    (tmp_path / "3DBalls.txt").touch()
    with pytest.raises(SettingsError, match=r"3DBal\.yaml; did you mean 3DBall\.yaml\?$"):
        read_file(tmp_path / "3DBal.yaml")


def test_a_file_in_another_encoding(tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("configs") / "latin.yaml"
    path.write_bytes("# fine\n# für\nbehaviors: {}\n".encode("latin-1"))

    with pytest.raises(ConfigurationError, match=r"latin\.yaml:2: is not UTF-8 text \(byte 0xfc\)"):
        read_file(path)


def test_a_file_with_a_byte_order_mark(tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("configs") / "mark.yaml"
    path.write_text("behaviors: {Ä: {}}\n", encoding="utf-8-sig")

    assert list(run_settings(*read_file(path)).behaviors) == ["Ä"]


def test_a_file_too_large_for_a_configuration_is_not_parsed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("# a comment\n" * 200_000)
    monkeypatch.setattr("trajtrainer.settings.yaml.convert.read_document", lambda *_: pytest.fail("it was parsed"))
    with pytest.raises(SettingsError, match=r"a\.yaml: has more than 1,000,000 bytes; is it the right file"):
        read_file(path)


def test_more_behaviors_than_any_game_has() -> None:
    text = "behaviors:\n" + "".join(f"  b{number}: {{}}\n" for number in range(1001))
    with pytest.raises(SettingsError, match=r"a\.yaml:1: behaviors: found 1001 behaviors, expected at most 1000"):
        load(text, "a.yaml")
