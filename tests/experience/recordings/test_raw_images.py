"""Recordings with raw images of packages 3.0 and newer, whose order only the images show."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest

from tests.envs.unity import recordings
from tests.envs.unity.test_raw_images import BEHAVIOR, Change, changed, channels_first, noise, recorded_images
from tests.experience.recordings.making import write_plainly
from trajtrainer.envs.unity.proto.communicator_pb2 import (
    AgentActionProto,
    AgentInfoActionPairProto,
    BrainParametersProto,
    UnityMessageProto,
)
from trajtrainer.experience.recordings.demonstrations import load_demonstrations


def write(path: Path, shared_data: Path, change: Change) -> recordings.Recording:
    """Record the first agent of a session, its raw images changed."""
    recording = recordings.load(shared_data, "pkg3.0_vis_raw")
    parameters = BrainParametersProto()
    pairs = []
    for data in recording.from_player:
        output = UnityMessageProto.FromString(changed(data, change)).unity_output
        for found in output.rl_initialization_output.brain_parameters:
            parameters = found
        agents = [each for each in output.rl_output.agentInfos[BEHAVIOR].value if not each.done]
        if agents:
            action = AgentActionProto(discrete_actions=[0])
            pairs.append(AgentInfoActionPairProto(agent_info=agents[0], action_info=action).SerializeToString())
    write_plainly(path, parameters.SerializeToString(), pairs, by_unity=True)
    return recording


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if "raw images" in record.message]


@pytest.mark.parametrize(("change", "num_told"), [(np.asarray, 0), (channels_first, 1)], ids=["hwc", "chw"])
def test_images_show_their_order(
    tmp_path: Path, shared_data: Path, change: Change, num_told: int, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "raw.demo"
    recording = write(path, shared_data, change)
    with caplog.at_level(logging.INFO, "trajtrainer"):
        demonstrations = load_demonstrations([path])
    assert demonstrations.spec.observation_specs[0].shape == (3, 20, 20)
    images = demonstrations.packed.obs[0]
    assert len(images) > 30
    assert np.array_equal(images[:5], [each[0] for each in recorded_images(recording)[:5]])
    assert len(told(caplog)) == num_told


def test_noise_keeps_the_rule_unless_the_order_is_given(
    tmp_path: Path, shared_data: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "noise.demo"
    write(path, shared_data, noise)
    with caplog.at_level(logging.INFO, "trajtrainer"):
        kept = load_demonstrations([path]).packed.obs[0]
        assert len(told(caplog)) == 1
        assert "do not show whether they are hwc" in told(caplog)[0]
        caplog.clear()
        given = load_demonstrations([path], raw_image_order="chw").packed.obs[0]
        assert not told(caplog)
    np.testing.assert_array_equal(np.moveaxis(kept, 1, -1).reshape(len(kept), -1), given.reshape(len(kept), -1))
