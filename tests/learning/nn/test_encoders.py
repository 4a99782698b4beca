"""Encoders of pictures: sizes, what is too small, bytes."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.learning.nn.specs import behavior, camera, entities, network, vector
from trajtrainer.core.errors import UnsupportedError
from trajtrainer.core.spec import DimensionProperty, ObservationSpec, ObservationType
from trajtrainer.learning.nn.actor import Actor
from trajtrainer.learning.nn.body import NetworkBody
from trajtrainer.learning.nn.encoders import visual_encoder
from trajtrainer.settings.network import ENCODERS


def dense_inputs(encoder: nn.Module) -> int:
    dense = encoder.dense
    assert isinstance(dense, nn.Linear)
    return dense.in_features


@pytest.mark.parametrize(
    ("kind", "shape", "features"),
    [
        ("simple", (3, 84, 84), 2592),
        ("nature_cnn", (3, 84, 84), 3136),
        ("resnet", (3, 84, 84), 2592),
        ("match3", (6, 8, 8), 2304),
        ("resnet", (3, 36, 36), 288),
        ("fully_connected", (3, 4, 5), 60),
    ],
)
def test_worked_sizes(kind: str, shape: tuple[int, int, int], features: int) -> None:
    assert dense_inputs(visual_encoder("camera", shape, kind, 16)) == features


@pytest.mark.parametrize("kind", ENCODERS.builtin)
@pytest.mark.parametrize("wide", [False, True])
def test_the_smallest_picture_is_encoded(kind: str, wide: bool) -> None:
    side = ENCODERS[kind].smallest_side
    shape = (2, side, side + 7) if wide else (2, side, side)
    encoder = visual_encoder("camera", shape, kind, 16)
    assert encoder(torch.rand(4, *shape)).shape == (4, 16)


@pytest.mark.parametrize("kind", [kind for kind in ENCODERS.builtin if kind != "fully_connected"])
@pytest.mark.parametrize("axis", [1, 2])
def test_a_pixel_less_is_refused(kind: str, axis: int) -> None:
    shape = [3, 40, 40]
    shape[axis] = ENCODERS[kind].smallest_side - 1
    with pytest.raises(UnsupportedError) as caught:
        Actor(behavior([vector(2), camera(shape[0], shape[1], shape[2], "left eye")]), network(encoder=kind))
    message = str(caught.value)
    for words in (
        "'left eye'",
        str(tuple(shape)),
        f"{kind!r}",
        f"at least {ENCODERS[kind].smallest_side}",
        "fully_connected",
    ):
        assert words in message
    fitting = message.split("fit: ")[1]
    for other, row in ENCODERS.builtin.items():
        assert (other in fitting) == (shape[axis] >= row.smallest_side)


def test_channels_last_are_suspected() -> None:
    with pytest.raises(UnsupportedError, match="Are the channels last"):
        visual_encoder("camera", (84, 84, 3), "simple", 16)


@pytest.mark.parametrize("shape", [(0, 20, 20), (3, 0, 20), (3, 20, 0)])
def test_no_pixels(shape: tuple[int, int, int]) -> None:
    with pytest.raises(UnsupportedError, match="no pixels"):
        visual_encoder("camera", shape, "fully_connected", 16)


@pytest.mark.parametrize("kind", ENCODERS.builtin)
def test_bytes_are_divided_and_left_alone(kind: str) -> None:
    encoder = visual_encoder("camera", (3, 36, 36), kind, 16)
    picture = torch.randint(0, 256, (2, 3, 36, 36), dtype=torch.uint8)
    before = picture.clone()
    torch.testing.assert_close(encoder(picture), encoder(picture / 255.0))
    assert torch.equal(picture, before)
    floats = torch.rand(2, 3, 36, 36)
    before = floats.clone()
    encoder(floats)
    assert torch.equal(floats, before)


def test_every_camera_has_its_own_encoder() -> None:
    spec = [camera(1, 20, 24, "left"), vector(3), camera(3, 24, 20, "right")]
    body = NetworkBody(spec, network())
    encoding, parts = body.encoder([torch.rand(2, 1, 20, 24), torch.full((2, 3), 7.0), torch.rand(2, 3, 24, 20)])
    assert encoding.shape == (2, 16 + 3 + 16)
    assert torch.equal(encoding[:, 16:19], torch.full((2, 3), 7.0))
    assert torch.equal(encoding[:, :16], parts[0])
    assert torch.equal(encoding[:, 19:], parts[2])
    shared = {id(p) for p in body.encoder.sensors[0].parameters()} & {
        id(p) for p in body.encoder.sensors[2].parameters()
    }
    assert not shared


def test_unsupported_sensors() -> None:
    odd = ObservationSpec(
        name="odd",
        shape=(3, 4),
        dimension_property=(DimensionProperty.NONE, DimensionProperty.NONE),
        observation_type=ObservationType.DEFAULT,
    )
    with pytest.raises(UnsupportedError, match="'odd'"):
        Actor(behavior([odd]), network())
    with pytest.raises(UnsupportedError, match="no observations"):
        Actor(behavior([]), network())
    with pytest.raises(UnsupportedError, match="'goals' is a goal signal of variable length"):
        Actor(behavior([vector(3, goal=True), entities(4, 2, "goals", goal=True)]), network())
