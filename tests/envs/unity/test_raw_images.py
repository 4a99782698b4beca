"""Raw images of packages 3.0 and newer, whose order only the images show."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.envs.unity import recordings
from tests.envs.unity.client import LIMIT_S, connected, in_background
from tests.ports import free_port
from trajtrainer.core.image_order import RawImageOrder
from trajtrainer.core.steps import EnvironmentEvent
from trajtrainer.envs.unity.environment import UnityEnvironment
from trajtrainer.envs.unity.faults import LaunchError
from trajtrainer.envs.unity.pictures import OrderEvidence
from trajtrainer.envs.unity.proto.communicator_pb2 import RESET, STEP, UnityMessageProto
from trajtrainer.envs.unity.session import PlayerSession

BEHAVIOR = "Vis?team=0"
SHAPE = (3, 20, 20)
Change = Callable[[NDArray[np.float32]], NDArray[np.float32]]
"""Makes other floats of those of an image, which are (height, width, channels) f32 [20, 20, 3]."""


def channels_first(image: NDArray[np.float32]) -> NDArray[np.float32]:
    return image.transpose(2, 0, 1)


def noise(image: NDArray[np.float32]) -> NDArray[np.float32]:
    seed = int(np.abs(image).sum() * 1000)
    return np.random.default_rng(seed).random(image.shape, np.float32)


def changed(data: bytes, change: Change, forbidden: int = 0) -> bytes:
    """A message whose raw images are others, and whose agents may not take the first of five actions."""
    message = UnityMessageProto.FromString(data)
    for agents in message.unity_output.rl_output.agentInfos.values():
        for agent in agents.value:
            if forbidden:
                agent.action_mask.extend(number < forbidden for number in range(5))
            for observation in agent.observations:
                if len(observation.shape) == 3 and not observation.compressed_data:
                    image = np.array(observation.float_data.data, np.float32).reshape(20, 20, 3)
                    del observation.float_data.data[:]
                    observation.float_data.data.extend(change(image).ravel().tolist())
    return message.SerializeToString()


@dataclass
class Player:
    """Says what was recorded, from the start again after each reset; its raw images are changed.

    Attributes:
        change: message number since the connection, image -> image.
        forbidden: how many of the first actions are masked.
        commands: that it was given.
        actions: the discrete actions of each command.
    """

    recording: recordings.Recording
    change: Callable[[int, NDArray[np.float32]], NDArray[np.float32]]
    forbidden: int = 0
    commands: list[int] = field(default_factory=list)
    actions: list[list[int]] = field(default_factory=list)

    def play(self, port: int) -> None:
        with connected(port) as exchange:
            exchange(self.recording.from_player[0])
            answer, step = UnityMessageProto.FromString(exchange(self.recording.from_player[1])), 0
            while answer.header.status == 200:
                given = answer.unity_input.rl_input
                self.commands.append(given.command)
                self.actions.append(
                    [each.discrete_actions[0] for part in given.agent_actions.values() for each in part.value]
                )
                step = 0 if given.command == RESET else step + 1
                number = len(self.commands) - 1
                data = changed(self.recording.steps[step], partial(self.change, number), self.forbidden)
                answer = UnityMessageProto.FromString(exchange(data))


def always(change: Change) -> Callable[[int, NDArray[np.float32]], NDArray[np.float32]]:
    return lambda _, image: change(image)


def events(player: Player, count: int = 5, **options: object) -> list[EnvironmentEvent]:
    """The first events of a session with this player."""
    port = free_port()
    played = in_background(player.play, port)
    session = PlayerSession(base_port=port, timeout_wait=LIMIT_S, **options)  # type: ignore[arg-type]
    try:
        session.start_reset()
        found = [session.receive()]
        while len(found) < count:
            session.send_actions({})
            found.append(session.receive())
    finally:
        session.close()
    played.result(LIMIT_S)
    return found


@pytest.fixture
def recording(shared_data: Path) -> recordings.Recording:
    return recordings.load(shared_data, "pkg3.0_vis_raw")


def recorded_images(recording: recordings.Recording) -> list[NDArray[np.float32]]:
    """Per message, the images of terminal rows before those of the others."""
    found = []
    for index in range(len(recording.steps)):
        parts = [recording.arrays.get(f"{index}/{BEHAVIOR}/{part}/obs0") for part in "td"]
        found.append(np.concatenate([part for part in parts if part is not None]))
    return found


def check_images(found: Sequence[EnvironmentEvent], recording: recordings.Recording) -> None:
    """The events show the images as they are, not scrambled, from the first on."""
    for event, expected in zip(found, recorded_images(recording), strict=False):
        np.testing.assert_array_equal(event.steps[BEHAVIOR].obs[0], expected)


@pytest.mark.parametrize(
    ("change", "order"), [(np.asarray, RawImageOrder.HWC), (channels_first, RawImageOrder.CHW)], ids=["hwc", "chw"]
)
def test_first_message_shows_the_order(
    recording: recordings.Recording, change: Change, order: RawImageOrder, caplog: pytest.LogCaptureFixture
) -> None:
    player = Player(recording, always(change))
    with caplog.at_level(logging.INFO, "trajtrainer"):
        found = events(player, len(recording.steps))
    check_images(found, recording)
    assert [event.raw_images for event in found[:2]] == [{BEHAVIOR: order}, {}]
    assert [list(event.new_specs) for event in found[:2]] == [[BEHAVIOR], []]
    assert found[0].new_specs[BEHAVIOR].observation_specs[0].shape == SHAPE
    assert player.commands == [RESET] + [STEP] * (len(recording.steps) - 1)
    told = [record.message for record in caplog.records if "raw images" in record.message]
    assert told == [f"The player's raw images are read as {order.value}, based on the first 4."]


def test_images_that_show_nothing_yet_are_held_back(recording: recordings.Recording) -> None:
    """Three black frames, then images: nothing of it is seen, and the game begins again with images."""
    player = Player(recording, lambda number, image: image * 0 if number < 3 else channels_first(image))
    found = events(player, 6)
    check_images(found, recording)
    assert player.commands == [RESET, STEP, STEP, STEP, RESET] + [STEP] * 5
    assert [event.raw_images for event in found[:2]] == [{BEHAVIOR: RawImageOrder.CHW}, {}]
    assert [event.is_reset for event in found] == [True] + [False] * 5
    assert list(found[0].new_specs) == [BEHAVIOR]


def test_actions_of_held_back_messages_are_allowed(recording: recordings.Recording) -> None:
    player = Player(recording, lambda number, image: image * 0 if number < 3 else image, forbidden=2)
    events(player, 2)
    assert player.commands == [RESET, STEP, STEP, STEP, RESET, STEP]
    assert player.actions[1:4] == [[2] * 4] * 3


@pytest.mark.parametrize("change", [noise, np.zeros_like], ids=["noise", "black"])
@pytest.mark.parametrize("presumed", [RawImageOrder.AUTO, RawImageOrder.CHW])
def test_images_that_never_show_it_keep_the_rule(
    recording: recordings.Recording, change: Change, presumed: RawImageOrder, caplog: pytest.LogCaptureFixture
) -> None:
    player = Player(recording, always(change))
    with caplog.at_level(logging.INFO, "trajtrainer"):
        found = events(player, 4, presumed_raw_image_order=presumed)
    assert player.commands == [RESET] + [STEP] * 19 + [RESET] + [STEP] * 3
    expected = RawImageOrder.HWC if presumed is RawImageOrder.AUTO else presumed
    assert found[0].raw_images == {BEHAVIOR: expected}
    assert found[0].is_reset
    sent = change(np.moveaxis(recorded_images(recording)[0][0], 0, -1)).ravel()
    read = sent.reshape(20, 20, 3).transpose(2, 0, 1) if expected is RawImageOrder.HWC else sent.reshape(3, 20, 20)
    np.testing.assert_array_equal(found[0].steps[BEHAVIOR].obs[0][0], read)
    told = [record.message for record in caplog.records if "raw images" in record.message]
    assert len(told) == 1
    assert "do not show whether they come as hwc (height, width, channels) or chw" in told[0]
    assert f"They are read as {expected.value}, " in told[0]


def test_the_images_go_before_what_was_presumed(
    recording: recordings.Recording, caplog: pytest.LogCaptureFixture
) -> None:
    player = Player(recording, always(channels_first))
    found = events(player, presumed_raw_image_order=RawImageOrder.HWC)
    check_images(found, recording)
    (told,) = [record for record in caplog.records if "raw images" in record.message]
    assert told.levelno == logging.WARNING
    assert "are read as chw, based on the first 4, although they were hwc when the model was trained" in told.message


@pytest.mark.parametrize("order", ["hwc", "chw"])
@pytest.mark.parametrize("change", [np.asarray, noise, np.zeros_like])
def test_setting_overrides_the_images(
    recording: recordings.Recording, order: str, change: Change, caplog: pytest.LogCaptureFixture
) -> None:
    player = Player(recording, always(change))
    with caplog.at_level(logging.INFO, "trajtrainer"):
        found = events(player, 3, raw_image_order=order)
    assert found[0].raw_images == {BEHAVIOR: RawImageOrder(order)}
    sent = change(np.moveaxis(recorded_images(recording)[0][0], 0, -1)).ravel()
    read = sent.reshape(20, 20, 3).transpose(2, 0, 1) if order == "hwc" else sent.reshape(3, 20, 20)
    np.testing.assert_array_equal(found[0].steps[BEHAVIOR].obs[0][0], read)
    assert player.commands == [RESET, STEP, STEP]
    assert not [record for record in caplog.records if "raw images" in record.message]


def test_an_order_that_there_is_not() -> None:
    with pytest.raises(LaunchError, match=r"raw_image_order is 'rgb'\. Expected one of auto, hwc, chw"):
        PlayerSession("sim:3DBall", base_port=0, raw_image_order="rgb")


@pytest.mark.parametrize("name", ["pkg3.0_vis_png", "pkg2.3_grid", "pkg3.0_two_behaviors"])
def test_others_are_not_concerned(shared_data: Path, name: str, caplog: pytest.LogCaptureFixture) -> None:
    """PNGs, packages before 3.0 and behaviors without images, even with the setting."""
    recording = recordings.load(shared_data, name)
    player = Player(recording, lambda _, image: image)
    with caplog.at_level(logging.INFO, "trajtrainer"):
        found = events(player, 5)
    assert [event.raw_images for event in found] == [{}] * 5
    assert player.commands == [RESET] + [STEP] * 4
    assert not [record for record in caplog.records if "raw images" in record.message]
    if name != "pkg3.0_two_behaviors":
        again = events(Player(recording, lambda _, image: image), 5, raw_image_order="chw")
        for event, other in zip(found, again, strict=True):
            for behavior, batch in event.steps.items():
                np.testing.assert_equal(batch.obs, other.steps[behavior].obs)


def test_unity_environment_reads_them_alike(recording: recordings.Recording) -> None:
    """The environment for those who write their own training loop."""
    port = free_port()
    player = Player(recording, always(channels_first))
    played = in_background(player.play, port)
    with UnityEnvironment(base_port=port, timeout_wait=LIMIT_S) as env:
        env.reset()
        for expected in recorded_images(recording)[:4]:
            np.testing.assert_array_equal(env.get_steps(BEHAVIOR)[0].obs[0], expected)
            env.step()
        assert env.raw_image_order is RawImageOrder.CHW
    played.result(LIMIT_S)


def test_gray_stripes_are_no_evidence_for_chw() -> None:
    """A gray image of horizontal stripes is smooth in both readings; released packages send it as hwc."""
    stripes = np.repeat(np.random.default_rng(0).random((1, 1, 30, 1), np.float32), 40, axis=3)
    evidence = OrderEvidence()
    evidence.add(0, np.repeat(stripes, 3, axis=1))
    assert evidence.order is RawImageOrder.AUTO


@pytest.mark.parametrize("shape", [(2, 3, 3), (3, 8, 8), (6, 9, 8), (3, 40, 20)])
def test_noise_is_no_evidence_for_chw(shape: tuple[int, ...]) -> None:
    random = np.random.default_rng(1)
    for _ in range(200):
        evidence = OrderEvidence()
        evidence.add(0, random.random((4, *shape), np.float32))
        assert evidence.order is not RawImageOrder.CHW


def test_damaged_numbers_do_not_matter_to_evidence() -> None:
    """Large values stay finite in the sums."""
    evidence = OrderEvidence()
    evidence.add(0, np.full((1, 3, 4, 4), np.finfo(np.float32).max))
    assert evidence.order is RawImageOrder.AUTO


def test_one_sensor_that_shows_the_order_is_enough() -> None:
    """There may be larger images beside it that show nothing; sensors that disagree show nothing."""
    random = np.random.default_rng(0)
    smooth = np.add.outer(np.sin(np.arange(40) / 5), np.cos(np.arange(30) / 4)).astype(np.float32)
    image = np.stack([smooth, smooth[::-1], smooth[:, ::-1]])
    sent_as_chw = image.reshape(1, 40, 30, 3).transpose(0, 3, 1, 2)
    evidence = OrderEvidence()
    evidence.add("grid", random.random((4, 3, 80, 80), np.float32))
    evidence.add("camera", sent_as_chw)
    assert evidence.order is RawImageOrder.CHW
    assert evidence.num_images == 5
    evidence.add("other camera", image[np.newaxis])
    assert evidence.order.value == "auto"
