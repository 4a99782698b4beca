"""The defaults of every option, spelled as in the YAML files (reference 2.1 to 2.6)."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from trajtrainer.settings.run import RunSettings
from trajtrainer.settings.yaml.convert import load, to_mapping, trainer_mapping, trainer_settings

NETWORK = """
normalize: false
hidden_units: 128
num_layers: 2
vis_encode_type: simple
memory: null
goal_conditioning_type: hyper
deterministic: false
"""

RUN = """
default_settings: null
behaviors: {}
env_settings: {env_path: null, env_args: null, base_port: 5005, num_envs: 1, num_areas: 1, timeout_wait: 60, seed: -1,
  max_lifetime_restarts: 10, restarts_rate_limit_n: 1, restarts_rate_limit_period_s: 60}
engine_settings: {width: 84, height: 84, quality_level: 5, time_scale: 20, target_frame_rate: -1,
  capture_frame_rate: 60, no_graphics: false, no_graphics_monitor: false}
environment_parameters: null
checkpoint_settings: {run_id: ppo, initialize_from: null, load_model: false, resume: false, force: false,
  train_model: false, inference: false, results_dir: results}
torch_settings: {device: null}
debug: false
"""

BEHAVIOR = """
checkpoint_interval: 500000
init_path: null
keep_checkpoints: 5
even_checkpoints: false
max_steps: 500000
time_horizon: 64
summary_freq: 50000
threaded: false
self_play: null
behavioral_cloning: null
"""

HYPERPARAMETERS = {
    "ppo": """{batch_size: 1024, buffer_size: 10240, learning_rate: 3.0e-4, beta: 5.0e-3, epsilon: 0.2, lambd: 0.95,
        num_epoch: 3, shared_critic: false, learning_rate_schedule: linear, beta_schedule: linear,
        epsilon_schedule: linear}""",
    "poca": """{batch_size: 1024, buffer_size: 10240, learning_rate: 3.0e-4, beta: 5.0e-3, epsilon: 0.2, lambd: 0.95,
        num_epoch: 3, learning_rate_schedule: linear, beta_schedule: linear, epsilon_schedule: linear}""",
    "sac": """{learning_rate: 3.0e-4, learning_rate_schedule: constant, batch_size: 128, buffer_size: 50000,
        buffer_init_steps: 0, tau: 0.005, steps_per_update: 1.0, save_replay_buffer: false, init_entcoef: 1.0,
        reward_signal_steps_per_update: 1.0}""",
}

SIGNALS = {
    "extrinsic": "{}",
    "curiosity": "{learning_rate: 3.0e-4, encoding_size: null}",
    "gail": """{learning_rate: 3.0e-4, encoding_size: null, use_actions: false, use_vail: false, demo_path: d}""",
    "rnd": "{learning_rate: 1.0e-4, encoding_size: null}",
}


def parsed(text: str) -> dict[str, Any]:
    mapping: dict[str, Any] = yaml.safe_load(text)
    return mapping


def test_a_run() -> None:
    assert to_mapping(RunSettings()) == parsed(RUN)
    assert list(to_mapping(RunSettings())) == list(parsed(RUN))


@pytest.mark.parametrize("trainer_type", HYPERPARAMETERS)
def test_a_behavior_of_each_trainer(trainer_type: str) -> None:
    mapping = trainer_mapping(trainer_settings({"trainer_type": trainer_type}))

    hyperparameters = mapping.pop("hyperparameters")
    assert hyperparameters == parsed(HYPERPARAMETERS[trainer_type])
    assert list(hyperparameters) == list(parsed(HYPERPARAMETERS[trainer_type]))
    assert mapping.pop("trainer_type") == trainer_type
    assert mapping.pop("network_settings") == parsed(NETWORK)
    assert mapping.pop("reward_signals") == {
        "extrinsic": {"gamma": 0.99, "strength": 1.0, "network_settings": parsed(NETWORK)}
    }
    assert mapping == parsed(BEHAVIOR)


@pytest.mark.parametrize("signal", SIGNALS)
def test_a_reward_signal(signal: str) -> None:
    given = {"demo_path": "d"} if signal == "gail" else {}

    mapping = trainer_mapping(trainer_settings({"reward_signals": {signal: given}}))["reward_signals"]

    common = {"gamma": 0.99, "strength": 1.0, "network_settings": parsed(NETWORK)}
    assert mapping == {signal: common | parsed(SIGNALS[signal])}
    assert list(mapping[signal]) == list(common | parsed(SIGNALS[signal]))


def test_sections_that_are_absent_unless_given() -> None:
    given = {"behavioral_cloning": {"demo_path": "d"}, "self_play": {}, "network_settings": {"memory": {}}}

    mapping = trainer_mapping(trainer_settings(given))

    assert mapping["behavioral_cloning"] == parsed(
        "{demo_path: d, steps: 0, strength: 1.0, samples_per_update: 0, num_epoch: null, batch_size: null}"
    )
    assert mapping["self_play"] == parsed(
        """{save_steps: 20000, team_change: 100000, swap_steps: 2000, window: 10,
        play_against_latest_model_ratio: 0.5, initial_elo: 1200.0}"""
    )
    assert mapping["network_settings"]["memory"] == {"sequence_length": 64, "memory_size": 128}


def test_samplers_and_lessons() -> None:
    text = """
environment_parameters:
  number: 9.81
  constant: {sampler_type: constant, sampler_parameters: {}}
  uniform: {sampler_type: uniform, sampler_parameters: {}}
  gaussian: {sampler_type: gaussian, sampler_parameters: {}}
  ranges: {sampler_type: multirangeuniform, sampler_parameters: {}}
  lessons:
    curriculum:
      - {name: first, value: 1, completion_criteria: {behavior: A}}
      - {name: last, value: {sampler_type: uniform, sampler_parameters: {max_value: 5}}}
behaviors: {A: {}}
"""
    mapping = to_mapping(load(text, "a.yaml"))["environment_parameters"]

    def one_lesson(name: str, kind: str, **parameters: Any) -> dict[str, Any]:
        value = {"sampler_type": kind, "sampler_parameters": {"seed": -1, **parameters}}
        return {"curriculum": [{"value": value, "name": name, "completion_criteria": None}]}

    lessons = mapping.pop("lessons")["curriculum"]
    assert mapping == {
        "number": one_lesson("number", "constant", value=9.81),
        "constant": one_lesson("constant", "constant", value=0.0),
        "uniform": one_lesson("uniform", "uniform", min_value=0.0, max_value=1.0),
        "gaussian": one_lesson("gaussian", "gaussian", mean=1.0, st_dev=1.0),
        "ranges": one_lesson("ranges", "multirangeuniform", intervals=[[0.0, 1.0]]),
    }
    assert [lesson["name"] for lesson in lessons] == ["first", "last"]
    assert lessons[0]["completion_criteria"] == parsed(
        """{behavior: A, measure: reward, min_lesson_length: 0, signal_smoothing: true, threshold: 0.0,
        require_reset: false}"""
    )
    assert lessons[1]["value"]["sampler_parameters"] == {"seed": -1, "min_value": 0.0, "max_value": 5.0}


def test_defaults_that_follow_another_option() -> None:
    ppo = trainer_mapping(
        trainer_settings({"trainer_type": "ppo", "hyperparameters": {"learning_rate_schedule": "constant"}})
    )["hyperparameters"]
    mixed = trainer_mapping(
        trainer_settings(
            {
                "trainer_type": "poca",
                "hyperparameters": {"learning_rate_schedule": "constant", "beta_schedule": "linear"},
            }
        )
    )["hyperparameters"]
    sac = trainer_mapping(trainer_settings({"trainer_type": "sac", "hyperparameters": {"steps_per_update": 20}}))
    self_play = trainer_mapping(trainer_settings({"self_play": {"save_steps": 300}}))["self_play"]
    even = trainer_settings(
        {"even_checkpoints": True, "max_steps": 1000, "keep_checkpoints": 3, "checkpoint_interval": 7}
    )

    assert (ppo["beta_schedule"], ppo["epsilon_schedule"]) == ("constant", "constant")
    assert (mixed["beta_schedule"], mixed["epsilon_schedule"]) == ("linear", "constant")
    assert sac["hyperparameters"]["reward_signal_steps_per_update"] == 20
    assert self_play["team_change"] == 1500
    assert even.checkpoint_interval == 333
