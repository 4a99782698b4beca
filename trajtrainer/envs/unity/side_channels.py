"""Side channels: data that a trainer and a game exchange in addition to observations and actions.

See docs/explanation/mlagents-behavior.md#side-channels.

The channels are classes of ``mlagents_envs``, so users can add their own.
"""

from __future__ import annotations

import hashlib
import hmac
import io
import logging
import struct
import sys
import uuid
from collections.abc import Callable, Iterable, Iterator
from importlib.metadata import PackageNotFoundError, version

import mlagents_envs
import numpy as np
from google.protobuf.any_pb2 import Any
from google.protobuf.message import Message
from numpy.typing import NDArray

from trajtrainer.core.errors import InvalidDataError, SettingsError
from trajtrainer.core.spec import BehaviorId
from trajtrainer.core.steps import Aggregation, Statistic
from trajtrainer.core.version import __version__
from trajtrainer.envs.unity import registration  # noqa: F401  (mlagents_envs.side_channel fails to import without it)
from trajtrainer.envs.unity.faults import SideChannelError
from trajtrainer.envs.unity.proto.communicator_pb2 import TrainingBehaviorInitialized, TrainingEnvironmentInitialized
from trajtrainer.settings import environment
from trajtrainer.settings.run import RunSettings
from trajtrainer.settings.trainer import TrainerSettings

from mlagents_envs.exception import UnityCommunicationException  # isort: skip
from mlagents_envs.side_channel.engine_configuration_channel import EngineConfigurationChannel  # isort: skip
from mlagents_envs.side_channel.environment_parameters_channel import EnvironmentParametersChannel  # isort: skip
from mlagents_envs.side_channel.incoming_message import IncomingMessage  # isort: skip
from mlagents_envs.side_channel.outgoing_message import OutgoingMessage  # isort: skip
from mlagents_envs.side_channel.side_channel import SideChannel  # isort: skip
from mlagents_envs.side_channel.stats_side_channel import StatsSideChannel  # isort: skip

__all__ = [
    "ANALYTICS_ID",
    "EngineConfigurationChannel",
    "EnvironmentParametersChannel",
    "PicturesChannel",
    "SideChannel",
    "SideChannels",
    "StatisticsChannel",
    "TrainingAnalyticsChannel",
    "queue_engine",
    "queue_parameter",
]

_LOGGER = logging.getLogger(__name__)
_ID_SIZE = 16
_MOST_UNKNOWN = 16
# enough for a thousand agents that report a hundred statistics each
_MOST_FRAMES = 100_000
_LENGTH = struct.Struct("<i")
ANALYTICS_ID = uuid.UUID("b664a4a9-d86f-5a5f-95cb-e8353a7e8356")
_ANALYTICS_KEY = b"unity.ml-agents"
# ML-Agents has no such channel. docs/measure/evaluation.md#video explains how a game uses it.
PICTURES_ID = uuid.UUID("5a6f1d5e-6f0c-4c43-9a3e-2f6f0f7f6b1d")
_LARGEST_SIDE = 4096
# Many games use these channels but few programs read them, so ignoring their messages is not worth a warning.
_UNREAD = {
    StatsSideChannel().channel_id.bytes_le: "The game reports statistics (StatsRecorder), which are ignored. To read "
    "them, pass a StatsSideChannel of trajtrainer.side_channels in side_channels.",
    PICTURES_ID.bytes_le: "The game sends pictures of itself, which are ignored. Videos use them (--video).",
}


class SideChannels:
    """The side channels of one player.

    Raises:
        SideChannelError: two channels have the same id.
    """

    def __init__(self, channels: Iterable[SideChannel]) -> None:
        self._channels: dict[bytes, SideChannel] = {}
        self._muted: set[bytes] = set()
        self._unknown: set[bytes] = set()
        for channel in channels:
            if channel.channel_id.bytes_le in self._channels:
                raise SideChannelError(
                    f"Two side channels have the id {channel.channel_id}: {type(channel).__name__} and "
                    f"{type(self._channels[channel.channel_id.bytes_le]).__name__}. Each needs a unique id."
                )
            self._channels[channel.channel_id.bytes_le] = channel

    def __contains__(self, channel_id: uuid.UUID) -> bool:
        return channel_id.bytes_le in self._channels

    def mute(self, channel_id: uuid.UUID) -> None:
        """Discard what the channel sends, now and later, because the player does not expect it."""
        self._muted.add(channel_id.bytes_le)

    def take_outgoing(self) -> bytes:
        """Remove everything that is queued for sending, and return it as the frames of one message."""
        frames = bytearray()
        for channel_id, channel in self._channels.items():
            if channel.message_queue:
                if channel_id not in self._muted:
                    for message in channel.message_queue:
                        frames += channel_id + _LENGTH.pack(len(message)) + message
                channel.message_queue = []
        return bytes(frames)

    def receive(self, data: bytes) -> None:
        """Pass the frames of a player's message to their channels.

        Raises:
            InvalidDataError: a frame is truncated, or a channel cannot read its content.
        """
        for channel_id, payload in _frames(data):
            channel = self._channels.get(channel_id)
            if channel is not None:
                try:
                    channel.on_message_received(IncomingMessage(payload))
                except (ValueError, IndexError, struct.error, UnityCommunicationException) as error:
                    raise InvalidDataError(
                        f"The player sent {len(payload)} bytes that the side channel {type(channel).__name__} cannot "
                        f"read: {error}"
                    ) from error
            elif channel_id not in self._unknown and len(self._unknown) < _MOST_UNKNOWN:
                self._unknown.add(channel_id)
                if unread := _UNREAD.get(channel_id):
                    _LOGGER.info(unread)
                else:
                    _LOGGER.warning(
                        "The player sends messages on the side channel %s, but no channel with this id was passed in "
                        "side_channels. The messages are ignored.",
                        uuid.UUID(bytes_le=channel_id),
                    )


def _frames(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    position = count = 0
    while position < len(data):
        count += 1
        if count > _MOST_FRAMES:
            raise InvalidDataError(
                f"The player sent more than {_MOST_FRAMES} side channel messages at once. Report statistics less often "
                "(StatsRecorder.Add)."
            )
        begin = position + _ID_SIZE + _LENGTH.size
        length = _LENGTH.unpack_from(data, position + _ID_SIZE)[0] if begin <= len(data) else -1
        if length < 0 or begin + length > len(data):
            raise InvalidDataError(
                f"The player's side channel data is damaged at byte {position} of {len(data)}. Expected a complete "
                "frame of channel id, length and content."
            )
        yield data[position : position + _ID_SIZE], data[begin : begin + length]
        position = begin + length


class StatisticsChannel(StatsSideChannel):
    """Receives the statistics that a game reports through ``StatsRecorder``, in order."""

    def __init__(self) -> None:
        super().__init__()
        self._statistics: list[Statistic] = []

    def on_message_received(self, msg: IncomingMessage) -> None:
        self._statistics.append(Statistic(msg.read_string(), msg.read_float32(), Aggregation(msg.read_int32())))

    def take(self) -> list[Statistic]:
        """Return the statistics received since the last call."""
        statistics, self._statistics = self._statistics, []
        return statistics


class TrainingAnalyticsChannel(SideChannel):
    """Tells the Editor about the training. Used only for players with this capability, and only by worker 0."""

    def __init__(self) -> None:
        super().__init__(ANALYTICS_ID)

    def on_message_received(self, msg: IncomingMessage) -> None:  # noqa: ARG002
        """Reject a message: only the trainer sends on this channel."""
        raise UnityCommunicationException("training analytics are only sent to the player, never received")

    def environment_initialized(self, message: TrainingEnvironmentInitialized | None = None) -> None:
        """Send ``message``. The default is the message for users of the low-level API."""
        version = sys.version_info
        self._queue(
            message
            or TrainingEnvironmentInitialized(
                mlagents_version="Custom",
                mlagents_envs_version=mlagents_envs.__version__,
                python_version=f"{version.major}.{version.minor}.{version.micro}",
                torch_version="Unknown",
                torch_device_type="Unknown",
            )
        )

    def behavior_initialized(self, message: TrainingBehaviorInitialized) -> None:
        """Send ``message`` with the behavior's name hashed as the Editor hashes it."""
        hashed = TrainingBehaviorInitialized()
        hashed.CopyFrom(message)
        hashed.behavior_name = hmac.new(_ANALYTICS_KEY, message.behavior_name.encode(), hashlib.sha256).hexdigest()
        self._queue(hashed)

    def _queue(self, message: Message) -> None:
        packed = Any()
        packed.Pack(message)
        outgoing = OutgoingMessage()  # type: ignore[no-untyped-call]
        outgoing.set_raw_bytes(bytearray(packed.SerializeToString()))
        self.queue_message_to_send(outgoing)


class PicturesChannel(SideChannel):
    """Receives pictures that a player sends for people to watch: PNG or JPEG files, one per message.

    Args:
        take: called with each picture, u8 [height, width, 3].
    """

    def __init__(self, take: Callable[[NDArray[np.uint8]], None]) -> None:
        super().__init__(PICTURES_ID)
        self._take = take

    def on_message_received(self, msg: IncomingMessage) -> None:
        """Decode a picture.

        Raises:
            ValueError: the content is not a picture, or the picture is larger than any screen.
        """
        from PIL import Image  # here, because players are launched before slow imports

        try:
            with Image.open(io.BytesIO(msg.get_raw_bytes()), formats=["PNG", "JPEG"]) as image:
                if max(image.size) > _LARGEST_SIDE:
                    raise ValueError(
                        f"a picture of {image.width} x {image.height} pixels; expected at most {_LARGEST_SIDE} per side"
                    )
                frame = np.asarray(image.convert("RGB"))
        except ValueError:
            raise
        except Exception as error:  # Pillow's parsers raise all kinds of errors for a damaged file
            raise ValueError(f"a picture that cannot be decoded ({error})") from error
        self._take(frame)


def queue_engine(channel: EngineConfigurationChannel, settings: environment.EngineSettings) -> None:
    """Queue the messages that set the engine settings."""
    channel.set_configuration_parameters(
        width=settings.width,
        height=settings.height,
        quality_level=settings.quality_level,
        time_scale=settings.time_scale,
        target_frame_rate=settings.target_frame_rate,
        capture_frame_rate=settings.capture_frame_rate,
    )


def queue_parameter(channel: EnvironmentParametersChannel, key: str, sampler: environment.Sampler) -> None:
    """Queue an environment parameter: a number, or a sampler that the player draws from.

    Raises:
        SettingsError: the name is not ASCII, or a number does not fit into float32 or int32.
    """
    try:
        match sampler:
            case environment.ConstantSettings(value=value):
                channel.set_float_parameter(key, value)
            case environment.UniformSettings(seed=seed, min_value=low, max_value=high):
                channel.set_uniform_sampler_parameters(key, low, high, seed)
            case environment.GaussianSettings(seed=seed, mean=mean, st_dev=deviation):
                channel.set_gaussian_sampler_parameters(key, mean, deviation, seed)
            case environment.MultiRangeUniformSettings(seed=seed, intervals=intervals):
                channel.set_multirangeuniform_sampler_parameters(key, intervals, seed)
    except (UnicodeEncodeError, struct.error, OverflowError) as error:
        raise SettingsError(
            f"environment_parameters.{key}: {sampler} cannot be sent to Unity ({error}). Names must be ASCII, seeds "
            "must fit in 32 bits and numbers in float32."
        ) from error


class RunAnalytics(TrainingAnalyticsChannel):
    """Reports a run, and each behavior once, when it is announced and its trainer starts.

    Args:
        run: settings of the run.

    Attributes:
        device: the torch device that is reported, as in ``torch_settings.device``.
    """

    def __init__(self, run: RunSettings) -> None:
        super().__init__()
        self.device = run.torch_settings.device or "Unknown"
        self._run = run
        self._has_announced_run = False
        self._reported: set[str] = set()

    def announce_run(self) -> None:
        """Report the run, the first time that this is called."""
        if self._has_announced_run:
            return
        self._has_announced_run = True
        run = self._run
        self.environment_initialized(
            TrainingEnvironmentInitialized(
                mlagents_version=f"trajtrainer {__version__}",
                mlagents_envs_version=_version("mlagents-envs"),
                python_version=".".join(map(str, sys.version_info[:3])),
                torch_version=_version("torch"),
                torch_device_type=self.device.partition(":")[0],
                num_envs=run.env_settings.num_envs,
                num_environment_parameters=len(run.environment_parameters or {}),
            )
        )

    def announce(self, behavior_ids: Iterable[str]) -> None:
        """Report the behaviors that have not been reported before. All teams count as one behavior."""
        run = self._run
        for behavior_id in behavior_ids:
            name = BehaviorId.parse(behavior_id).name
            if name in self._reported:
                continue
            self._reported.add(name)
            # Unlike RunSettings.for_behavior, this does not complain about a missing behavior, because the run does so.
            settings = run.behaviors.get(name, run.default_settings)
            if settings is not None or not run.behaviors_required:
                self.behavior_initialized(_behavior(name, settings or TrainerSettings(), run))


def _version(package: str) -> str:
    """Return a package's version without importing it, because worker processes do not need torch."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "Unknown"


def _behavior(name: str, settings: TrainerSettings, run: RunSettings) -> TrainingBehaviorInitialized:
    network, signals = settings.network_settings, settings.reward_signals
    decides_lessons = any(
        lesson.completion_criteria is not None and lesson.completion_criteria.behavior == name
        for parameter in (run.environment_parameters or {}).values()
        for lesson in parameter.curriculum
    )
    return TrainingBehaviorInitialized(
        behavior_name=name,
        trainer_type=settings.trainer_type,
        extrinsic_reward_enabled="extrinsic" in signals,
        gail_reward_enabled="gail" in signals,
        curiosity_reward_enabled="curiosity" in signals,
        rnd_reward_enabled="rnd" in signals,
        behavioral_cloning_enabled=settings.behavioral_cloning is not None,
        recurrent_enabled=network.memory is not None,
        visual_encoder=network.vis_encode_type,
        num_network_layers=network.num_layers,
        num_network_hidden_units=network.hidden_units,
        trainer_threaded=settings.threaded,
        self_play_enabled=settings.self_play is not None,
        curriculum_enabled=decides_lessons,
    )
