"""What the Editor is told about a run and its behaviors."""

from __future__ import annotations

import hashlib
import hmac

from google.protobuf.any_pb2 import Any as AnyMessage

from trajtrainer.envs.unity.proto.communicator_pb2 import TrainingBehaviorInitialized, TrainingEnvironmentInitialized
from trajtrainer.envs.unity.side_channels import RunAnalytics
from trajtrainer.settings.run import RunSettings
from trajtrainer.settings.yaml.convert import load

SETTINGS = """
default_settings:
  trainer_type: ppo
behaviors:
  Striker:
    trainer_type: sac
    threaded: true
    network_settings: {hidden_units: 77, num_layers: 3, vis_encode_type: resnet}
    reward_signals: {rnd: {strength: 0.5}}
  Goalie:
    trainer_type: ppo
    network_settings: {memory: {memory_size: 16, sequence_length: 8}}
environment_parameters:
  size: 3.0
  speed:
    curriculum:
      - name: slow
        completion_criteria: {measure: progress, behavior: Goalie, threshold: 0.5}
        value: 1.0
      - name: fast
        value: 2.0
env_settings:
  env_path: sim:Basic
  num_envs: 4
torch_settings:
  device: cuda:1
"""


def told(analytics: RunAnalytics) -> list[AnyMessage]:
    """What waits to be sent; it is taken."""
    messages = [AnyMessage.FromString(bytes(each)) for each in analytics.message_queue]
    analytics.message_queue = []
    return messages


def hashed(name: str) -> str:
    return hmac.new(b"unity.ml-agents", name.encode(), hashlib.sha256).hexdigest()


def behaviors(analytics: RunAnalytics) -> dict[str, TrainingBehaviorInitialized]:
    found = [TrainingBehaviorInitialized.FromString(each.value) for each in told(analytics)]
    return {each.behavior_name: each for each in found}


def test_the_run() -> None:
    analytics = RunAnalytics(load(SETTINGS, "test"))
    assert not told(analytics), "the device may not be known yet"
    analytics.announce_run()
    analytics.announce_run()
    (message,) = told(analytics)
    assert message.type_url == "type.googleapis.com/communicator_objects.TrainingEnvironmentInitialized"
    run = TrainingEnvironmentInitialized.FromString(message.value)
    assert run.mlagents_version.startswith("trajtrainer ")
    assert (run.num_envs, run.num_environment_parameters, run.torch_device_type) == (4, 2, "cuda")
    assert "Unknown" not in (run.torch_version, run.mlagents_envs_version)
    assert run.run_options == "", "settings hold names and paths"


def test_each_behavior_once_whatever_its_teams() -> None:
    analytics = RunAnalytics(load(SETTINGS, "test"))
    told(analytics)
    analytics.announce(["Striker?team=0", "Striker?team=1"])
    assert len(told(analytics)) == 1
    analytics.announce(["Striker?team=0", "Goalie?team=0"])
    assert len(told(analytics)) == 1


def test_what_is_told_of_a_behavior() -> None:
    analytics = RunAnalytics(load(SETTINGS, "test"))
    told(analytics)
    analytics.announce(["Striker?team=0", "Goalie?team=0", "Other"])
    found = behaviors(analytics)
    assert found.keys() == {hashed("Striker"), hashed("Goalie"), hashed("Other")}
    striker, goalie, other = found.values()
    assert (striker.trainer_type, striker.trainer_threaded, striker.visual_encoder) == ("sac", True, "resnet")
    assert (striker.num_network_layers, striker.num_network_hidden_units) == (3, 77)
    assert (striker.rnd_reward_enabled, striker.extrinsic_reward_enabled) == (True, False)
    assert (striker.recurrent_enabled, striker.curriculum_enabled) == (False, False)
    assert goalie.recurrent_enabled
    assert goalie.curriculum_enabled
    assert goalie.extrinsic_reward_enabled
    assert (other.trainer_type, other.num_network_hidden_units, other.curriculum_enabled) == ("ppo", 128, False)


def test_behaviors_without_settings() -> None:
    """Without a configuration file they are trained with the defaults; with one, the run ends over them."""
    for required in (False, True):
        analytics = RunAnalytics(RunSettings(behaviors_required=required))
        told(analytics)
        analytics.announce(["Anything"])
        assert len(told(analytics)) == (not required)
