"""Real sessions of Unity against what an independent decoder made of them, bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.envs.unity import recordings
from trajtrainer.core.spec import ActionSpec, BehaviorSpec, DimensionProperty
from trajtrainer.envs.unity import encode
from trajtrainer.envs.unity.behaviors import PictureOrder
from trajtrainer.envs.unity.decode import MessageDecoder
from trajtrainer.envs.unity.proto.communicator_pb2 import RESET, UnityMessageProto
from trajtrainer.envs.unity.records import RecordReader, parse_records


@pytest.mark.parametrize("name", recordings.NAMES)
def test_recording_decodes_to_its_arrays_bit_for_bit(shared_data: Path, name: str) -> None:
    recording = recordings.load(shared_data, name)
    decoder = MessageDecoder(0, recording.order)
    found: dict[str, Any] = {}
    specs: dict[str, BehaviorSpec] = {}
    for step, data in enumerate(recording.steps):
        message = decoder.decode(data)
        specs |= message.new_specs
        for behavior, batch in message.steps.items():
            found |= recording.as_recorded(step, behavior, batch)
    assert found.keys() == recording.arrays.keys()
    for key, expected in recording.arrays.items():
        assert found[key].dtype == expected.dtype, key
        assert found[key].shape == expected.shape, key
        assert found[key].tobytes() == expected.tobytes(), key
    _check_specs(specs, recording.description["behaviors"], recording.order)


def _check_specs(specs: dict[str, BehaviorSpec], expected: dict[str, Any], pictures: PictureOrder) -> None:
    """The description holds shapes as announced: pictures of older packages with their channels last."""
    assert specs.keys() == expected.keys()
    for name, spec in specs.items():
        description = expected[name]
        assert spec.action_spec == ActionSpec(description["continuous_size"], tuple(description["discrete_branches"]))
        for observation, sent in zip(spec.observation_specs, description["observations"], strict=True):
            turned = len(sent["shape"]) == 3 and pictures is PictureOrder.CHANNELS_LAST
            order = (2, 0, 1) if turned else range(len(sent["shape"]))
            assert observation.shape == tuple(sent["shape"][axis] for axis in order)
            properties = tuple(DimensionProperty(sent["dimension_property"][axis]) for axis in order)
            assert observation.dimension_property == properties
            assert observation.observation_type.value == sent["observation_type"]
            assert observation.name == sent["name"]


@pytest.mark.parametrize("name", recordings.NAMES)
def test_the_general_way_reads_the_same(shared_data: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    recording = recordings.load(shared_data, name)
    fast = MessageDecoder(3, recording.order)
    fast_messages = [fast.decode(data) for data in recording.steps]
    monkeypatch.setattr(RecordReader, "read", lambda self, data: parse_records(data, self._behavior))
    general = MessageDecoder(3, recording.order)
    for data, message in zip(recording.steps, fast_messages, strict=True):
        other = general.decode(data)
        assert list(other.steps) == list(message.steps)
        for behavior, batch in message.steps.items():
            assert recording.as_recorded(0, behavior, batch).keys() == (
                recording.as_recorded(0, behavior, other.steps[behavior]).keys()
            )
            np.testing.assert_equal(
                recording.as_recorded(0, behavior, other.steps[behavior]),
                recording.as_recorded(0, behavior, batch),
            )


@pytest.mark.parametrize("name", recordings.NAMES)
def test_pictures_that_need_no_averaging_stay_bytes(shared_data: Path, name: str) -> None:
    recording = recordings.load(shared_data, name)
    decoder = MessageDecoder(0, recording.order)
    types = {
        (behavior, column.ndim, column.dtype.name)
        for data in recording.steps
        for behavior, batch in decoder.decode(data).steps.items()
        for column in batch.obs
    }
    pictures = {dtype for _, dimensions, dtype in types if dimensions == 4}
    expected = {"grid": {"uint8", "float32"}, "vis_png": {"uint8"}, "vis_raw": {"float32"}}  # the grid has both
    assert pictures == expected.get(name.partition("_")[2], set())


def test_one_scene_looks_the_same_raw_and_as_png(shared_data: Path) -> None:
    """Packages since 3.0 announce (channels, height, width) and write the floats as (height, width, channels)."""
    found = []
    for name in ("pkg3.0_vis_raw", "pkg3.0_vis_png"):
        recording = recordings.load(shared_data, name)
        decoder = MessageDecoder(0, recording.order)
        batches = [decoder.decode(data).steps for data in recording.steps]
        found.append([recording.as_recorded(0, "Vis", steps["Vis?team=0"])["0/Vis/d/obs0"] for steps in batches])
    raw, png = found
    assert len(raw) == len(png) > 10
    for ours, theirs in zip(raw, png, strict=True):
        assert ours.dtype == theirs.dtype == np.float32
        assert ours.tobytes() == theirs.tobytes()


@pytest.mark.parametrize("name", recordings.NAMES)
def test_recorded_answers_are_encoded_as_mlagents_did(shared_data: Path, name: str) -> None:
    recording = recordings.load(shared_data, name)
    encoders = {
        behavior: encode.ActionEncoder(
            behavior, ActionSpec(description["continuous_size"], tuple(description["discrete_branches"]))
        )
        for behavior, description in recording.description["behaviors"].items()
    }
    initialization, *answers, goodbye = recording.to_player
    theirs = UnityMessageProto.FromString(initialization)
    theirs.unity_input.rl_initialization_input.package_version = "0.28.0"  # some were made with a newer ML-Agents
    assert encode.initialization(seed=7, num_areas=1) == theirs.SerializeToString()
    assert encode.goodbye() == goodbye
    for expected in answers:
        message = UnityMessageProto.FromString(expected)
        rl_input = message.unity_input.rl_input
        if rl_input.command == RESET:
            assert encode.reset(rl_input.side_channel) == expected
            continue
        parts = [
            encoders[behavior].encode(
                np.array([[*action.continuous_actions] for action in actions.value], np.float32),
                np.array([[*action.discrete_actions] for action in actions.value], np.int32),
            )
            for behavior, actions in rl_input.agent_actions.items()
        ]
        encoded = encode.step(parts, rl_input.side_channel)
        if len(parts) == 1:
            assert encoded == expected
        assert UnityMessageProto.FromString(encoded) == message  # the order of a map's entries is free
