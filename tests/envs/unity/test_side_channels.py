"""Bytes of the side channels, as ML-Agents writes them."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import logging
import struct
import uuid
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.any_pb2 import Any as AnyMessage
from hypothesis import given
from hypothesis import strategies as st
from mlagents_envs.exception import UnityEnvironmentException

from trajtrainer.core.errors import InvalidDataError, SettingsError
from trajtrainer.core.steps import Aggregation, Statistic
from trajtrainer.envs.unity.proto.communicator_pb2 import TrainingBehaviorInitialized, TrainingEnvironmentInitialized
from trajtrainer.envs.unity.side_channels import (
    ANALYTICS_ID,
    EngineConfigurationChannel,
    EnvironmentParametersChannel,
    SideChannels,
    StatisticsChannel,
    TrainingAnalyticsChannel,
    queue_engine,
    queue_parameter,
)
from trajtrainer.settings.environment import (
    ConstantSettings,
    EngineSettings,
    GaussianSettings,
    MultiRangeUniformSettings,
    Sampler,
    UniformSettings,
)

from mlagents_envs.side_channel.float_properties_channel import FloatPropertiesChannel  # isort: skip
from mlagents_envs.side_channel.raw_bytes_channel import RawBytesChannel  # isort: skip

STATISTICS_ID = uuid.uuid5(uuid.NAMESPACE_URL, "com.unity.ml-agents/StatsSideChannel")
SAMPLERS: dict[str, type[Sampler]] = {
    "uniform": UniformSettings,
    "gaussian": GaussianSettings,
    "multirangeuniform": MultiRangeUniformSettings,
}


@pytest.fixture
def golden(shared_data: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((shared_data / "golden/schedules/side_channels.json").read_text())
    return found


def sampler(case: dict[str, Any]) -> Sampler:
    seed = case["seed_used"]
    if not isinstance(case["yaml"], dict):
        return ConstantSettings(seed=seed, value=case["yaml"])
    values = {**case["yaml"]["sampler_parameters"], "seed": seed}
    if "intervals" in values:
        values["intervals"] = [(low, high) for low, high in values["intervals"]]
    return SAMPLERS[case["yaml"]["sampler_type"]](**values)


def test_environment_parameters_are_those_of_mlagents(golden: dict[str, Any]) -> None:
    channel = EnvironmentParametersChannel()
    channels = SideChannels([channel])
    for case in golden["environment_parameters"]:
        queue_parameter(channel, case["key"], sampler(case))
        assert channels.take_outgoing().hex() == case["hex"], case["key"]


def test_engine_settings_are_those_of_mlagents(golden: dict[str, Any]) -> None:
    channel = EngineConfigurationChannel()
    channels = SideChannels([channel])
    for case in golden["engine_configuration"]:
        if isinstance(case["parameters"], dict):
            channel.set_configuration_parameters(**case["parameters"])
        else:
            assert case["values"] == [84, 84, 5, 20, -1, 60]
            queue_engine(channel, EngineSettings())
        assert len(channel.message_queue) == case["messages"]
        assert channels.take_outgoing().hex() == case["hex"]


def test_several_channels_are_those_of_mlagents(golden: dict[str, Any]) -> None:
    parameters, engine, properties = (
        EnvironmentParametersChannel(),
        EngineConfigurationChannel(),
        FloatPropertiesChannel(),
    )
    channels = SideChannels([engine, parameters, properties])
    queue_parameter(parameters, "a", ConstantSettings(value=1.0))
    engine.set_configuration_parameters(time_scale=3.0)
    queue_parameter(parameters, "b", ConstantSettings(value=2.0))
    properties.set_property("key", 1.5)
    assert channels.take_outgoing().hex() == golden["several_channels"]["hex"]
    assert channels.take_outgoing() == b""


def frame(channel_id: uuid.UUID, payload: bytes) -> bytes:
    return channel_id.bytes_le + struct.pack("<i", len(payload)) + payload


def statistic(key: str, value: float, aggregation: int) -> bytes:
    return struct.pack("<i", len(key)) + key.encode() + struct.pack("<fi", value, aggregation)


def test_statistics_arrive_in_their_order() -> None:
    channel = StatisticsChannel()
    assert channel.channel_id == STATISTICS_ID
    sent = [Statistic("Score", 1.5, Aggregation.SUM), Statistic("A/B", -2.0, Aggregation.AVERAGE)]
    sent += [Statistic("Score", 0.0, Aggregation.HISTOGRAM), Statistic("Level", 3.0, Aggregation.MOST_RECENT)]
    SideChannels([channel]).receive(b"".join(frame(STATISTICS_ID, statistic(*each)) for each in sent))
    assert channel.take() == sent
    assert channel.take() == []


def test_channels_of_the_users_own() -> None:
    mine, properties = RawBytesChannel(uuid.uuid4()), FloatPropertiesChannel()
    channels = SideChannels([mine, properties])
    properties_payload = struct.pack("<i", 5) + b"speed" + struct.pack("<f", 0.5)
    channels.receive(frame(mine.channel_id, b"hello") + frame(properties.channel_id, properties_payload))
    assert mine.get_and_clear_received_messages() == [b"hello"]
    assert properties.get_property("speed") == 0.5
    mine.send_raw_data(bytearray(b"answer"))
    assert channels.take_outgoing() == frame(mine.channel_id, b"answer")


def test_unknown_channels_are_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    unknown = uuid.uuid4()
    channels = SideChannels([])
    for _ in range(3):
        channels.receive(frame(unknown, b"?"))
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert str(unknown) in caplog.text


def test_ever_new_channels_are_not_reported_for_ever(caplog: pytest.LogCaptureFixture) -> None:
    SideChannels([]).receive(b"".join(frame(uuid.UUID(int=number), b"?") for number in range(100)))
    assert len(caplog.records) == 16


def test_more_frames_than_any_game_sends_are_refused() -> None:
    empty = frame(uuid.uuid4(), b"")
    channels = SideChannels([])
    channels.receive(empty * 100_000)
    with pytest.raises(InvalidDataError, match="more than 100000 side channel messages"):
        channels.receive(empty * 100_001)


def test_one_id_twice() -> None:
    with pytest.raises(UnityEnvironmentException, match="StatisticsChannel and StatisticsChannel"):
        SideChannels([StatisticsChannel(), StatisticsChannel()])


@pytest.mark.parametrize(
    "damaged",
    [
        b"\x00",
        STATISTICS_ID.bytes_le,
        STATISTICS_ID.bytes_le + b"\x01\x00\x00",
        STATISTICS_ID.bytes_le + struct.pack("<i", 5) + b"four",
        STATISTICS_ID.bytes_le + struct.pack("<i", -20),
        frame(STATISTICS_ID, statistic("Score", 1.0, 1)) + b"rest",
    ],
)
def test_damaged_frames(damaged: bytes) -> None:
    with pytest.raises(InvalidDataError, match="damaged at byte"):
        SideChannels([StatisticsChannel()]).receive(damaged)


@pytest.mark.parametrize("payload", [statistic("Score", 1.0, 9), struct.pack("<i", 3) + b"\xff\xfe\xfd"])
def test_content_that_a_channel_cannot_read(payload: bytes) -> None:
    with pytest.raises(InvalidDataError, match="StatisticsChannel cannot read"):
        SideChannels([StatisticsChannel()]).receive(frame(STATISTICS_ID, payload))


@pytest.mark.parametrize(
    "channel", [EngineConfigurationChannel(), EnvironmentParametersChannel(), TrainingAnalyticsChannel()]
)
def test_channels_that_only_send(channel: EngineConfigurationChannel) -> None:
    with pytest.raises(InvalidDataError, match=type(channel).__name__):
        SideChannels([channel]).receive(frame(channel.channel_id, b""))


@given(st.binary(max_size=80), st.binary(max_size=40))
def test_rubbish_is_refused(rubbish: bytes, payload: bytes) -> None:
    channels = SideChannels([StatisticsChannel(), EngineConfigurationChannel()])
    for sent in (rubbish, frame(STATISTICS_ID, payload)):
        with contextlib.suppress(InvalidDataError):
            channels.receive(sent)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("größe", ConstantSettings(value=1.0)),
        ("size", ConstantSettings(value=1e300)),
        ("size", UniformSettings(max_value=1e300)),
        ("size", MultiRangeUniformSettings(intervals=[(0.0, 1e40)])),
    ],
)
def test_parameters_that_cannot_be_sent(key: str, value: Sampler) -> None:
    with pytest.raises(SettingsError, match=rf"environment_parameters\.{key}"):
        queue_parameter(EnvironmentParametersChannel(), key, value)


def unpacked(data: bytes) -> AnyMessage:
    length = struct.unpack_from("<i", data, 16)[0]
    assert data[:16] == ANALYTICS_ID.bytes_le
    assert len(data) == 20 + length
    return AnyMessage.FromString(data[20:])


def test_analytics_of_the_environment() -> None:
    channel = TrainingAnalyticsChannel()
    channels = SideChannels([channel])
    channel.environment_initialized()
    packed = unpacked(channels.take_outgoing())
    assert packed.type_url == "type.googleapis.com/communicator_objects.TrainingEnvironmentInitialized"
    message = TrainingEnvironmentInitialized.FromString(packed.value)
    assert (message.mlagents_version, message.torch_version) == ("Custom", "Unknown")


def test_analytics_hide_the_behaviors_name() -> None:
    channel = TrainingAnalyticsChannel()
    channels = SideChannels([channel])
    channel.behavior_initialized(TrainingBehaviorInitialized(behavior_name="Secret", num_network_layers=3))
    message = TrainingBehaviorInitialized.FromString(unpacked(channels.take_outgoing()).value)
    assert message.behavior_name == hmac.new(b"unity.ml-agents", b"Secret", hashlib.sha256).hexdigest()
    assert message.num_network_layers == 3


def test_a_muted_channel_sends_nothing() -> None:
    channel, engine = TrainingAnalyticsChannel(), EngineConfigurationChannel()
    channels = SideChannels([channel, engine])
    channel.environment_initialized()
    channels.mute(ANALYTICS_ID)
    channel.environment_initialized()
    engine.set_configuration_parameters(time_scale=1.0)
    assert channels.take_outgoing().startswith(engine.channel_id.bytes_le)
    assert channels.take_outgoing() == b""


def test_two_channels_of_one_id_are_refused() -> None:
    id_ = uuid.UUID(int=7)
    with pytest.raises(UnityEnvironmentException, match=rf"have the id {id_}: FloatPropertiesChannel and RawBytesChan"):
        SideChannels([RawBytesChannel(id_), FloatPropertiesChannel(id_)])
