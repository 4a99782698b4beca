"""A player's exchange of messages with its trainer (docs/explanation/mlagents-behavior.md#wire).

For Unity's side channels, see docs/explanation/mlagents-behavior.md#side-channels.
"""

from __future__ import annotations

import contextlib
import io
import logging
import struct
import time
import uuid
from collections.abc import Callable, Generator, Iterator, Sequence
from functools import partial

from trajtrainer.core.steps import Statistic
from trajtrainer.envs.sim.options import PlayerOptions, parse_player_options
from trajtrainer.envs.sim.simulation import (
    Constant,
    EnvironmentParameters,
    Gaussian,
    MultiRange,
    ParameterSource,
    Uniform,
    seeded_generator,
)
from trajtrainer.envs.sim.wire import STATUS_OK, read_order
from trajtrainer.envs.sim.world import HEADER, World, output_message
from trajtrainer.envs.unity.faults import PlayerDiedError, PlayerQuitError
from trajtrainer.envs.unity.proto import communicator_pb2 as pb

logger = logging.getLogger(__name__)

PLAYER_NAME = "AcademySingleton"

ENGINE_CONFIGURATION = uuid.UUID("e951342c-4f7e-11ea-b238-784f4387d1f7")
ENVIRONMENT_PARAMETERS = uuid.UUID("534c891e-810f-11ea-a9d0-822485860400")
STATISTICS = uuid.UUID("a1d8f7b7-cec8-50f9-b78b-d3e165a78520")
FLOAT_PROPERTIES = uuid.UUID("60ccf7d0-4f7e-11ea-b238-784f4387d1f7")
PICTURES = uuid.UUID("5a6f1d5e-6f0c-4c43-9a3e-2f6f0f7f6b1d")
TRAINING_ANALYTICS = uuid.UUID("b664a4a9-d86f-5a5f-95cb-e8353a7e8356")

_ENGINE_SETTINGS = ("resolution", "quality level", "time scale", "target frame rate", "capture frame rate")
_FLOAT_SETTINGS = (2,)

Conversation = Generator[bytes, bytes, None]
"""Generator that yields the player's messages and receives the trainer's answer to each."""


class Payload:
    """Reads the values in a side channel message. As in Unity, values past the end are zero or empty."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def _take(self, size: int) -> bytes:
        piece = self._data[self._at : self._at + size]
        self._at += size
        return piece if len(piece) == size else bytes(size)

    def integer(self) -> int:
        return int(struct.unpack("<i", self._take(4))[0])

    def number(self) -> float:
        return float(struct.unpack("<f", self._take(4))[0])

    def numbers(self) -> list[float]:
        """Read a list of float32, preceded by its length."""
        return [self.number() for _ in range(min(self.integer(), len(self._data) // 4))]

    def text(self) -> str:
        """Read ASCII text, preceded by its length."""
        size = max(0, min(self.integer(), len(self._data) - self._at))
        return self._take(size).decode("ascii", errors="replace")


def frames(blob: bytes) -> Iterator[tuple[uuid.UUID, bytes]]:
    """Yield the channel and the payload of each message in a blob.

    Raises:
        ValueError: the blob is truncated.
    """
    at = 0
    while at < len(blob):
        if at + 20 > len(blob):
            raise ValueError(f"a side channel message is truncated at byte {at}")
        channel = uuid.UUID(bytes_le=blob[at : at + 16])
        (size,) = struct.unpack_from("<i", blob, at + 16)
        at += 20 + size
        if size < 0 or at > len(blob):
            raise ValueError(f"a side channel message of {size} bytes is truncated at byte {len(blob)}")
        yield channel, blob[at - size : at]


def frame(channel: uuid.UUID, payload: bytes) -> bytes:
    """Encode one message for a blob."""
    return channel.bytes_le + struct.pack("<i", len(payload)) + payload


def statistic_frame(statistic: Statistic) -> bytes:
    """Encode a statistic as Unity's StatsRecorder does."""
    name = statistic.key.encode("ascii", errors="replace")
    payload = struct.pack("<i", len(name)) + name + struct.pack("<fi", statistic.value, int(statistic.aggregation))
    return frame(STATISTICS, payload)


class ReceivedChannels:
    """Receives the trainer's side channel messages. Sets ``parameters``, and logs every message."""

    def __init__(self, parameters: EnvironmentParameters) -> None:
        self._parameters = parameters
        self._receivers: dict[uuid.UUID, Callable[[Payload], None]] = {
            ENGINE_CONFIGURATION: self._engine,
            ENVIRONMENT_PARAMETERS: self._parameter,
            FLOAT_PROPERTIES: self._property,
            TRAINING_ANALYTICS: lambda _: logger.info("training analytics received"),
        }

    def receive(self, blob: bytes) -> None:
        """Handle all messages in a blob.

        Raises:
            ValueError: the blob is truncated.
        """
        for channel, data in frames(blob):
            receiver = self._receivers.get(channel)
            if receiver is None:
                logger.info("message of %d bytes on the unknown side channel %s", len(data), channel)
            else:
                receiver(Payload(data))

    def _engine(self, payload: Payload) -> None:
        kind = payload.integer()
        name = _ENGINE_SETTINGS[kind] if 0 <= kind < len(_ENGINE_SETTINGS) else f"setting {kind}"
        value: object = payload.number() if kind in _FLOAT_SETTINGS else payload.integer()
        if kind == 0:
            value = f"{value} x {payload.integer()}"
        logger.info("engine: %s = %s", name, value)

    def _parameter(self, payload: Payload) -> None:
        key = payload.text()
        kind = payload.integer()
        if kind == 0:
            value = payload.number()
            logger.info("environment parameter %s = %g", key, value)
            self._parameters.set(key, Constant(value))
            return
        source: ParameterSource | None = None
        seed, sampler = payload.integer(), payload.integer()
        generator = seeded_generator(seed, *key.encode())  # not the same random stream as a simulation's
        if sampler == 0:
            source = Uniform(generator, payload.number(), payload.number())
        elif sampler == 1:
            source = Gaussian(generator, payload.number(), payload.number())
        else:
            bounds = payload.numbers()
            if sampler == 2 and len(bounds) >= 2 and len(bounds) % 2 == 0:
                source = MultiRange(generator, bounds)
        if kind != 1 or source is None:
            logger.warning("environment parameter %s has an unknown type of value", key)
            return
        logger.info("environment parameter %s is drawn by %s", key, type(source).__name__)
        self._parameters.set(key, source)

    def _property(self, payload: Payload) -> None:
        key = payload.text()
        logger.info("property %s = %g", key, payload.number())


def converse(options: PlayerOptions) -> Conversation:
    """Play from the handshake until the trainer tells the player to quit.

    Raises:
        OrderError: the trainer sends an invalid answer.
    """
    style = options.style
    hello = pb.UnityMessageProto(header=pb.HeaderProto(status=STATUS_OK))
    initialization = hello.unity_output.rl_initialization_output
    initialization.name = PLAYER_NAME
    initialization.communication_version = style.api_version
    initialization.package_version = style.package_version
    initialization.capabilities.CopyFrom(style.capabilities())
    answer = pb.UnityMessageProto.FromString((yield hello.SerializeToString()))
    if answer.header.status != STATUS_OK:
        logger.info("the trainer answered the handshake with status %d; the player exits", answer.header.status)
        return
    trainer = answer.unity_input.rl_initialization_input
    logger.info(
        "connected to a trainer with version %s, wire version %s, seed %d, %d areas",
        trainer.package_version,
        trainer.communication_version,
        trainer.seed,
        trainer.num_areas,
    )
    yield from _play(options, trainer.seed if options.seed is None else options.seed)


def _play(options: PlayerOptions, seed: int) -> Conversation:
    parameters = EnvironmentParameters()
    channels = ReceivedChannels(parameters)
    world = World(options.simulations, options.teams, seed, options.style, parameters)
    statistics = b"".join(statistic_frame(statistic) for statistic in options.statistics)
    announcement = world.announcement()
    step = 0
    answer = yield HEADER  # The trainer answers this message with the first reset.
    while True:
        order = read_order(answer)
        if order.status != STATUS_OK or order.command == pb.QUIT:
            logger.info(
                "the trainer sent status %d and command %d after %d steps; the player exits",
                order.status,
                order.command,
                step,
            )
            return
        if order.side_channel:
            channels.receive(order.side_channel)
        infos = world.reset() if order.command == pb.RESET or step == 0 else world.step(order.actions)
        if options.step_seconds:
            time.sleep(options.step_seconds)
        step += 1
        pictures = frame(PICTURES, world.picture()) if options.render else b""
        answer = yield output_message(infos, statistics + pictures, announcement)
        announcement = b""


class InProcessPlayer:
    """A player in this process, which is also the ``Connection`` of its ``PlayerSession``. Runs inside ``receive``."""

    port = 0

    def __init__(self, options: PlayerOptions) -> None:
        self._conversation = converse(options)
        self._continue: Callable[[], bytes] = partial(next, self._conversation)

    def receive(self, timeout_s: float | None = None) -> bytes:  # noqa: ARG002
        """Run the player until it sends its next message.

        Raises:
            PlayerQuitError: the player has quit.
            PlayerDiedError: the player failed.
        """
        try:
            return self._continue()
        except StopIteration:
            raise PlayerQuitError("The player has quit.") from None
        except Exception as error:
            raise PlayerDiedError(f"The simulation failed: {type(error).__name__}: {error}") from error

    def answer(self, reply: bytes) -> None:
        self._continue = partial(self._conversation.send, reply)

    def wake(self) -> None:
        """Do nothing, because ``receive`` never waits."""

    def say_goodbye(self) -> None:
        """Do nothing, because ``close`` stops the player."""

    def close(self) -> None:
        self._conversation.close()


def in_process_player(arguments: Sequence[str]) -> InProcessPlayer | None:
    """Create a player from command line arguments.

    Returns:
        None if the player must run as a separate program, because it has hooks or a log file, or because its arguments
        are invalid and the program has to report the error.
    """
    try:
        with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
            options = parse_player_options(list(arguments))
    except SystemExit:
        return None
    return None if options.hooks or options.log_file is not None else InProcessPlayer(options)
