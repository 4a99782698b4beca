"""Records written by hand are byte for byte those of protobuf, and those of recorded Unity sessions."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

from tests.envs.sim.messages import InfoList, built, recorded
from trajtrainer.core.spec import ActionSpec, BehaviorSpec
from trajtrainer.envs.sim.infos import PngInfoWriter, RowInfoWriter
from trajtrainer.envs.sim.simulation import (
    Observations,
    SimulationStep,
    entities_sensor,
    no_endings,
    picture_sensor,
    vector_sensor,
)
from trajtrainer.envs.sim.wire import WireStyle
from trajtrainer.envs.sim.world import HEADER, output_message
from trajtrainer.envs.unity.pictures import channel_mapping, encode
from trajtrainer.envs.unity.proto import communicator_pb2 as pb

SPECS = {
    "continuous": BehaviorSpec([vector_sensor(8)], ActionSpec(2, ())),
    "masked": BehaviorSpec([vector_sensor(3), vector_sensor(40, "Wide")], ActionSpec(1, (3, 2))),
    "visual": BehaviorSpec(
        [picture_sensor(3, 6, 5, "Camera"), vector_sensor(2, "Goal", goal=True)], ActionSpec(0, (4,))
    ),
    "entities": BehaviorSpec([entities_sensor(4, 3, "Food"), vector_sensor(2)], ActionSpec(2, ())),
    "nothing": BehaviorSpec([], ActionSpec(1, ())),
}
STYLES = [WireStyle(), WireStyle(package_version="2.3.0-exp.3"), WireStyle("1.0.0", "1.3.0-preview")]


def observations(spec: BehaviorSpec, count: int, random: np.random.Generator) -> Observations:
    return tuple(
        random.integers(0, 256, (count, *sensor.shape), dtype=np.uint8)
        if len(sensor.shape) == 3
        else random.standard_normal((count, *sensor.shape), dtype=np.float32)
        for sensor in spec.observation_specs
    )


def arbitrary_step(
    spec: BehaviorSpec, agents: int, random: np.random.Generator, *, masked: bool, grouped: bool = False
) -> SimulationStep:
    """Some agents ended, some rewards are zero, negative or NaN, some actions are forbidden.

    Where agents are grouped, some do not decide, and some groups are rewarded.
    """
    ended = np.flatnonzero(random.random(agents) < 0.3)
    deciding = np.flatnonzero(random.random(agents) < 0.7) if grouped and random.random() < 0.7 else None
    n = agents if deciding is None else len(deciding)
    rewards = np.array([0.0, 0.0, 1.0, -0.01, np.nan], dtype=np.float32)
    branches = sum(spec.action_spec.discrete_branches)
    return SimulationStep(
        observations(spec, n, random),
        random.choice(rewards, n),
        random.random((n, branches)) < 0.4 if masked else None,
        ended,
        observations(spec, len(ended), random),
        random.choice(rewards, len(ended)),
        random.random(len(ended)) < 0.5,
        deciding,
        random.choice(rewards, n) if grouped and random.random() < 0.8 else None,
        random.choice(rewards, len(ended)) if grouped and random.random() < 0.8 else None,
    )


@pytest.mark.parametrize("style", STYLES, ids=lambda style: style.package_version)
@pytest.mark.parametrize("name", SPECS)
@given(
    seed=st.integers(0, 2**32 - 1),
    agents=st.integers(1, 9),
    first=st.sampled_from([0, 1, 126, 16380]),
    masked=st.booleans(),
    grouped=st.booleans(),
)
def test_records_are_byte_for_byte_what_protobuf_writes(
    name: str, style: WireStyle, seed: int, agents: int, first: int, masked: bool, grouped: bool
) -> None:
    random = np.random.default_rng(seed)
    ids = np.arange(first, first + agents)
    groups = 1 + (first + np.arange(agents)) // 2 if grouped else None
    writer = RowInfoWriter(SPECS[name], style, ids, masked=masked, groups=groups)
    for _ in range(4):
        step = arbitrary_step(SPECS[name], agents, random, masked=masked, grouped=grouped)
        expected = built(SPECS[name], style, ids, step, groups)
        assert b"".join(writer.write(step)) == expected.SerializeToString()


def from_records(infos: InfoList, spec: BehaviorSpec, agents: int) -> SimulationStep | None:
    """A recorded list as a step, or None where not every agent decides or a mask stands in a final record."""
    decisions = [info for info in infos.value if not info.done]
    ended = [info for info in infos.value if info.done]
    if len(decisions) != agents or any(True in info.action_mask for info in ended):
        return None

    def columns(chosen: list[pb.AgentInfoProto]) -> Observations:
        return tuple(
            np.array([info.observations[i].float_data.data for info in chosen], np.float32).reshape(-1, *sensor.shape)
            for i, sensor in enumerate(spec.observation_specs)
        )

    return SimulationStep(
        columns(decisions),
        np.array([info.reward for info in decisions], dtype=np.float32),
        np.array([info.action_mask for info in decisions], dtype=np.bool_) if decisions[0].action_mask else None,
        np.array([info.id for info in ended], dtype=np.int64),
        columns(ended),
        np.array([info.reward for info in ended], dtype=np.float32),
        np.array([info.max_step_reached for info in ended], dtype=np.bool_),
    )


RECORDINGS = {
    "pkg2.3_3dball": (
        BehaviorSpec([vector_sensor(8)], ActionSpec(2, ())),
        12,
        WireStyle(package_version="2.3.0-exp.3"),
    ),
    "pkg1.3_3dball": (BehaviorSpec([vector_sensor(8)], ActionSpec(2, ())), 12, WireStyle("1.0.0", "1.3.0-preview")),
    "pkg2.3_basic": (BehaviorSpec([vector_sensor(20)], ActionSpec(0, (3,))), 1, WireStyle()),
    "pkg2.3_hybrid": (
        BehaviorSpec([entities_sensor(6, 3, "Food"), vector_sensor(5, stack=2)], ActionSpec(2, (3, 2))),
        4,
        WireStyle(),
    ),
}


@pytest.mark.parametrize("name", RECORDINGS)
def test_records_are_byte_for_byte_what_unity_wrote(name: str, shared_data: Path) -> None:
    spec, agents, style = RECORDINGS[name]
    writer = RowInfoWriter(spec, style, np.arange(agents), masked=name == "pkg2.3_hybrid")
    compared = 0
    for direction, message in recorded(shared_data / "wire" / f"{name}.wire"):
        if direction != b"<":
            continue
        for infos in pb.UnityMessageProto.FromString(message).unity_output.rl_output.agentInfos.values():
            step = from_records(infos, spec, agents)
            if step is not None:
                assert b"".join(writer.write(step)) == infos.SerializeToString()
                compared += 1
    assert compared > 20


def test_a_whole_message_with_statistics_and_announcement() -> None:
    spec, random = SPECS["masked"], np.random.default_rng(1)
    step = arbitrary_step(spec, 3, random, masked=True)
    infos = built(spec, WireStyle(), np.arange(3), step)
    entry = pb.UnityRLOutputProto()
    entry.agentInfos["A?team=0"].CopyFrom(infos)
    announced = pb.UnityRLInitializationOutputProto(brain_parameters=[pb.BrainParametersProto(brain_name="A?team=0")])
    expected = pb.UnityMessageProto(header=pb.HeaderProto(status=200))
    expected.unity_output.rl_output.CopyFrom(entry)
    assert output_message([entry.SerializeToString()], b"") == expected.SerializeToString()
    expected.unity_output.rl_output.side_channel = b"statistics"
    expected.unity_output.rl_initialization_output.CopyFrom(announced)
    message = output_message([entry.SerializeToString()], b"statistics", announced.SerializeToString())
    assert message == expected.SerializeToString()
    assert pb.UnityMessageProto(header=pb.HeaderProto(status=200)).SerializeToString() == HEADER


def decode(files: bytes) -> NDArray[np.uint8]:
    """All PNGs of some bytes, as channels [C, H, W]."""
    signature = b"\x89PNG\r\n\x1a\n"
    parts = [signature + part for part in files.split(signature)[1:]]
    pictures = [np.asarray(Image.open(io.BytesIO(part))) for part in parts]
    return np.concatenate([picture.transpose(2, 0, 1) for picture in pictures])


@pytest.mark.parametrize("channels", [1, 2, 3, 4, 6])
def test_a_compressed_picture_decodes_to_itself_through_its_mapping(channels: int) -> None:
    picture = np.random.default_rng(channels).integers(0, 256, (channels, 7, 5), dtype=np.uint8)
    decoded = decode(encode(picture, 1))
    mapping = channel_mapping(channels) or [0, 1, 2]
    assert len(mapping) == len(decoded)
    for source, target in enumerate(mapping):
        np.testing.assert_array_equal(decoded[source], picture[target] if target >= 0 else np.zeros((7, 5)))


@pytest.mark.parametrize("style", [WireStyle(png=True), WireStyle(package_version="2.3.0", png=True)])
def test_records_with_png_are_those_without_but_for_the_picture(style: WireStyle) -> None:
    spec, random = SPECS["visual"], np.random.default_rng(4)
    ids, groups = np.arange(5, 9), np.array([1, 1, 2, 2])
    step = arbitrary_step(spec, 4, random, masked=True, grouped=True)
    assert step.deciding is not None
    expected = built(spec, style, ids, step, groups)
    found = InfoList.FromString(b"".join(PngInfoWriter(spec, style, ids, masked=True, groups=groups).write(step)))
    pictures = np.concatenate((step.ended_observations[0], step.observations[0]))
    for info, wanted, picture in zip(found.value, expected.value, pictures, strict=True):
        observation = info.observations[0]
        assert observation.compression_type == pb.PNG
        np.testing.assert_array_equal(decode(observation.compressed_data), picture)
        observation.ClearField("compressed_data")
        observation.ClearField("compression_type")
        wanted.observations[0].ClearField("float_data")
        assert str(info) == str(wanted)


def test_old_packages_send_pictures_height_first_and_no_names() -> None:
    style, spec = WireStyle("1.2.0", "1.3.0"), SPECS["visual"]
    step = SimulationStep(
        observations(spec, 1, np.random.default_rng(0)), np.zeros(1, np.float32), None, *no_endings(spec)
    )
    info = InfoList.FromString(b"".join(RowInfoWriter(spec, style, np.arange(1), masked=False).write(step))).value[0]
    observation = info.observations[0]
    assert list(observation.shape) == [6, 5, 3]
    assert (list(observation.dimension_properties), observation.name) == ([], "")
    sent = np.array(observation.float_data.data, dtype=np.float32).reshape(6, 5, 3)
    np.testing.assert_array_equal(sent, step.observations[0][0].transpose(1, 2, 0) / np.float32(255.0))


CAPABILITIES: list[tuple[str, Callable[[pb.UnityRLCapabilitiesProto], list[bool]], list[bool]]] = [
    ("1.0.0", lambda c: [c.baseRLCapabilities, c.concatenatedPngObservations], [True, False]),
    ("1.2.0", lambda c: [c.compressedChannelMapping, c.hybridActions], [True, False]),
    ("1.4.0", lambda c: [c.hybridActions, c.trainingAnalytics, c.variableLengthObservation], [True, True, False]),
    ("1.5.0", lambda c: [c.variableLengthObservation, c.multiAgentGroups], [True, True]),
]


@pytest.mark.parametrize(("version", "look", "expected"), CAPABILITIES)
def test_capabilities_grow_with_the_version(
    version: str, look: Callable[[pb.UnityRLCapabilitiesProto], list[bool]], expected: list[bool]
) -> None:
    assert look(WireStyle(version).capabilities()) == expected
