"""The player's side channels: bytes as recorded from real sessions, and what they do."""

from __future__ import annotations

import logging
import struct
import uuid

import pytest

from trajtrainer.core.steps import Aggregation, Statistic
from trajtrainer.envs.sim.conversation import (
    ENGINE_CONFIGURATION,
    ENVIRONMENT_PARAMETERS,
    FLOAT_PROPERTIES,
    STATISTICS,
    ReceivedChannels,
    frame,
    frames,
    statistic_frame,
)
from trajtrainer.envs.sim.simulation import EnvironmentParameters


def text(value: str) -> bytes:
    return struct.pack("<i", len(value)) + value.encode()


def received(*messages: bytes) -> EnvironmentParameters:
    parameters = EnvironmentParameters()
    ReceivedChannels(parameters).receive(b"".join(messages))
    return parameters


def test_the_frame_of_a_parameter_is_that_of_a_recorded_session() -> None:
    recorded = bytes.fromhex("1e894c530f81ea11a9d082248586040010000000040000006d617373000000000000c03f")
    payload = text("mass") + struct.pack("<if", 0, 1.5)
    assert frame(ENVIRONMENT_PARAMETERS, payload) == recorded
    assert list(frames(recorded)) == [(ENVIRONMENT_PARAMETERS, payload)]
    assert received(recorded).draw("mass", 0.0, 2).tolist() == [1.5, 1.5]


def test_samplers_draw_inside_the_player() -> None:
    head = struct.pack("<ii", 1, 3)  # sampler, seed
    parameters = received(
        frame(ENVIRONMENT_PARAMETERS, text("uniform") + head + struct.pack("<iff", 0, 2.0, 3.0)),
        frame(ENVIRONMENT_PARAMETERS, text("gaussian") + head + struct.pack("<iff", 1, 50.0, 0.1)),
        frame(ENVIRONMENT_PARAMETERS, text("ranges") + head + struct.pack("<iiffff", 2, 4, 7.0, 8.0, 9.0, 9.5)),
    )
    assert 2.0 <= parameters.draw("uniform", 0.0, 9).min() <= parameters.draw("uniform", 0.0, 9).max() < 3.0
    assert parameters.draw("gaussian", 0.0, 9).mean() == pytest.approx(50.0, abs=1.0)
    ranges = parameters.draw("ranges", 0.0, 50)
    assert (((ranges >= 7.0) & (ranges < 8.0)) | ((ranges >= 9.0) & (ranges < 9.5))).all()


def test_what_comes_is_logged_and_the_unknown_passed_over(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        received(
            frame(ENGINE_CONFIGURATION, struct.pack("<iii", 0, 84, 60)),
            frame(ENGINE_CONFIGURATION, struct.pack("<if", 2, 20.0)),
            frame(ENGINE_CONFIGURATION, struct.pack("<ii", 9, 1)),
            frame(FLOAT_PROPERTIES, text("wind") + struct.pack("<f", 0.5)),
            frame(uuid.UUID(int=5), b"raw"),
            frame(ENVIRONMENT_PARAMETERS, text("odd") + struct.pack("<iiii", 1, 0, 7, 0)),
        )
    said = [record.message for record in caplog.records]
    assert said[:4] == [
        "engine: resolution = 84 x 60",
        "engine: time scale = 20.0",
        "engine: setting 9 = 1",
        "property wind = 0.5",
    ]
    assert "3 bytes on the unknown side channel" in said[4]
    assert "odd has an unknown type of value" in said[5]


def test_values_past_the_end_of_a_message_are_zero_as_in_unity() -> None:
    assert received(frame(ENVIRONMENT_PARAMETERS, text("mass"))).draw("mass", 4.0, 1).tolist() == [0.0]
    assert received(frame(ENVIRONMENT_PARAMETERS, struct.pack("<i", 99) + b"ab")).draw("ab", 4.0, 1).tolist() == [0.0]


@pytest.mark.parametrize("cut", [3, 19, 21])
def test_a_cut_off_blob_is_an_error(cut: int) -> None:
    with pytest.raises(ValueError, match="truncated"):
        received(frame(ENVIRONMENT_PARAMETERS, text("mass") + bytes(8))[:cut])


def test_a_statistic_has_the_form_of_unitys_recorder() -> None:
    made = statistic_frame(Statistic("Food/Eaten", 1.5, Aggregation.SUM))
    assert made == STATISTICS.bytes_le + struct.pack("<i", 22) + text("Food/Eaten") + struct.pack("<fi", 1.5, 2)
