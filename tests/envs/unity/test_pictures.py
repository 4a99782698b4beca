"""PNG observations: several files, channel mappings, averages, damage."""

from __future__ import annotations

import contextlib
import io

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

from tests.envs.unity.messages import BEHAVIOR, Space, message_of
from trajtrainer.core.errors import InvalidDataError
from trajtrainer.envs.unity import pictures
from trajtrainer.envs.unity.behaviors import PictureOrder
from trajtrainer.envs.unity.decode import MessageDecoder
from trajtrainer.envs.unity.proto.communicator_pb2 import PNG, AgentInfoProto, ObservationProto

HEIGHT, WIDTH = 5, 7


def pixels(seed: int, channels: int = 3) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, (HEIGHT, WIDTH, channels), dtype=np.uint8)


def png(image: NDArray[np.uint8]) -> bytes:
    file = io.BytesIO()
    Image.fromarray(image if image.shape[2] > 1 else image[:, :, 0]).save(file, "PNG")
    return file.getvalue()


FIRST, SECOND = pixels(1), pixels(2)
TWO = png(FIRST) + png(SECOND)
ALL = np.concatenate([FIRST, SECOND], axis=2).transpose(2, 0, 1)


def mean(*channels: int) -> NDArray[np.float32]:
    found: NDArray[np.float32] = (ALL[list(channels)] / np.float32(255.0)).mean(axis=0, dtype=np.float32)
    return found


@pytest.mark.parametrize(
    ("data", "mapping", "channels", "expected"),
    [
        (png(FIRST), [], 3, ALL[:3]),
        (TWO, [], 6, ALL),
        (TWO, [], 4, ALL[:4]),  # the last file is filled up to three channels
        (png(FIRST), [0, 1, 2], 3, ALL[:3]),
        (png(FIRST), [2, 0, 1], 3, ALL[[1, 2, 0]]),
        (TWO, [0, 1, 2, 3, -1, -1], 4, ALL[:4]),
        (TWO, [-1, 0, -1, -1, 1, -1], 2, ALL[[1, 4]]),
        (png(FIRST), [], 1, mean(0, 1, 2)[np.newaxis]),
        (png(FIRST), [0, 0, 0], 1, mean(0, 1, 2)[np.newaxis]),
        (TWO, [0, 0, 0, 1, 1, 1], 2, np.stack([mean(0, 1, 2), mean(3, 4, 5)])),
        (TWO, [0, 1, 2, 3, 3, 3], 4, np.stack([mean(0), mean(1), mean(2), mean(3, 4, 5)])),
        (png(pixels(3, 1)), [], 1, (pixels(3, 1) / np.float32(255.0)).transpose(2, 0, 1)),
        (png(pixels(3, 4)), [], 4, pixels(3, 4).transpose(2, 0, 1)),
    ],
)
def test_channels(data: bytes, mapping: list[int], channels: int, expected: NDArray[np.float32]) -> None:
    found = pictures.decode(data, mapping, (channels, HEIGHT, WIDTH))
    assert found.dtype == expected.dtype
    assert found.flags.c_contiguous
    assert np.array_equal(found, expected)


@pytest.mark.parametrize(
    ("data", "mapping", "shape", "text"),
    [
        (b"", [], (3, HEIGHT, WIDTH), "no PNG file at byte 0 of 0"),
        (b"GIF89a", [], (3, HEIGHT, WIDTH), "no PNG file at byte 0"),
        (png(FIRST)[:-1], [], (3, HEIGHT, WIDTH), "truncated"),
        (png(FIRST)[:10], [], (3, HEIGHT, WIDTH), "truncated"),
        (png(FIRST) + b"\x00", [], (3, HEIGHT, WIDTH), "no PNG file at byte"),
        (png(FIRST), [], (3, WIDTH, HEIGHT), "5 rows by 7 columns, expected 7 by 5"),
        (png(FIRST), [], (4, HEIGHT, WIDTH), "3 channels, expected at least 4"),
        (png(FIRST), [0, 1], (2, HEIGHT, WIDTH), "3 channels, but their mapping .* has 2"),
        (png(FIRST), [0, 1, 3], (3, HEIGHT, WIDTH), "channel mapping"),
        (png(FIRST), [0, 1, 2], (2, HEIGHT, WIDTH), "channel mapping"),
        (png(FIRST), [-1, -1, -1], (1, HEIGHT, WIDTH), "channel mapping"),
        (png(FIRST), [], (HEIGHT, WIDTH), "only pictures of 3 dimensions"),
    ],
)
def test_what_does_not_fit(data: bytes, mapping: list[int], shape: tuple[int, ...], text: str) -> None:
    with pytest.raises(pictures.PictureError, match=text):
        pictures.decode(data, mapping, shape)


@given(st.data())
@settings(deadline=None, max_examples=200)
def test_damaged_files_are_refused_or_decoded(data: st.DataObject) -> None:
    damaged = bytearray(TWO)
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(pictures.PictureError):
        assert pictures.decode(bytes(damaged), [], (6, HEIGHT, WIDTH)).shape == (6, HEIGHT, WIDTH)


def agent(data: bytes, mapping: list[int], agent_id: int = 0) -> AgentInfoProto:
    observation = ObservationProto(
        shape=[HEIGHT, WIDTH, 3],
        compression_type=PNG,
        compressed_data=data,
        compressed_channel_mapping=mapping,
        name="Eye",
    )
    return AgentInfoProto(id=agent_id, observations=[observation])


def raw_agent(image: NDArray[np.uint8], agent_id: int = 0) -> AgentInfoProto:
    observation = ObservationProto(shape=[HEIGHT, WIDTH, 3], name="Eye")
    observation.float_data.data.extend((image / np.float32(255.0)).ravel().tolist())
    return AgentInfoProto(id=agent_id, observations=[observation])


def decoded(*messages: list[AgentInfoProto]) -> NDArray[np.float32] | NDArray[np.uint8]:
    decoder = MessageDecoder(0, PictureOrder.CHANNELS_LAST)
    for index, agents in enumerate(messages):
        last = decoder.decode(message_of({BEHAVIOR: agents}, [] if index else [Space()]))
    return last.steps[BEHAVIOR].obs[0]


def test_pictures_of_several_agents() -> None:
    found = decoded([agent(png(FIRST), [0, 1, 2], 0), agent(png(SECOND), [0, 1, 2], 1)])
    assert found.dtype == np.uint8
    assert np.array_equal(found, np.stack([ALL[:3], ALL[3:]]))


def test_a_sensor_that_came_raw_takes_png_later() -> None:
    found = decoded([raw_agent(FIRST)], [agent(png(SECOND), [])])
    assert found.dtype == np.float32
    assert np.array_equal(found[0], ALL[3:] / np.float32(255.0))


def test_a_sensor_that_came_as_png_does_not_become_raw() -> None:
    with pytest.raises(InvalidDataError, match=r"agent 4: sensor 'Eye' .*was sent as PNG before"):
        decoded([agent(png(FIRST), [])], [raw_agent(FIRST, agent_id=4)])


def test_damage_is_reported_with_its_place() -> None:
    with pytest.raises(
        InvalidDataError, match=r"'Walker\?team=0', agent 8: sensor 'Eye' \(observation 0\): .*truncated"
    ):
        decoded([agent(png(FIRST), [])], [agent(png(FIRST)[:-3], [], agent_id=8)])
