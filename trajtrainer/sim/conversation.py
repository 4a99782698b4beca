"""What a player says to its trainer, and does with the answers (docs/explanation/mlagents-behavior.md#wire)."""

from __future__ import annotations

import contextlib
import io
import logging
import time
from collections.abc import Callable, Generator, Sequence
from functools import partial

from trajtrainer.sim.channels import ReceivedChannels, picture_frame, statistic_frame
from trajtrainer.sim.options import PlayerOptions, parse_player_options
from trajtrainer.sim.orders import STATUS_OK, read_order
from trajtrainer.sim.simulation import EnvironmentParameters
from trajtrainer.sim.world import HEADER, World, output_message
from trajtrainer.unity.faults import PlayerDiedError, PlayerQuitError
from trajtrainer.unity.proto import communicator_pb2 as pb

logger = logging.getLogger(__name__)

PLAYER_NAME = "AcademySingleton"

Conversation = Generator[bytes, bytes, None]
"""Yields the player's messages and is sent the trainer's answer to each."""


def converse(options: PlayerOptions) -> Conversation:
    """Play from the handshake until the trainer tells the player to end.

    Raises:
        OrderError: the trainer sends what cannot be followed.
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
        logger.info("the trainer answered the handshake with status %d; the player ends", answer.header.status)
        return
    trainer = answer.unity_input.rl_initialization_input
    logger.info(
        "connected to a trainer of version %s, wire %s, seed %d, %d areas",
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
    answer = yield HEADER  # The trainer does not answer this message until it wants the first reset.
    while True:
        order = read_order(answer)
        if order.status != STATUS_OK or order.command == pb.QUIT:
            logger.info(
                "the trainer sent status %d and command %d after %d steps; the player ends",
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
        pictures = picture_frame(world.picture()) if options.render else b""
        answer = yield output_message(infos, statistics + pictures, announcement)
        announcement = b""


class InProcessPlayer:
    """A player and the connection to it: a ``Connection`` of ``PlayerSession``. It plays while it is waited for."""

    port = 0

    def __init__(self, options: PlayerOptions) -> None:
        self._conversation = converse(options)
        self._go_on: Callable[[], bytes] = partial(next, self._conversation)

    def receive(self, timeout_s: float | None = None) -> bytes:  # noqa: ARG002
        """Let the player play until its next message.

        Raises:
            PlayerQuitError: it has ended.
            PlayerDiedError: it failed.
        """
        try:
            return self._go_on()
        except StopIteration:
            raise PlayerQuitError("The player has ended.") from None
        except Exception as error:
            raise PlayerDiedError(f"The simulation failed: {type(error).__name__}: {error}") from error

    def answer(self, reply: bytes) -> None:
        self._go_on = partial(self._conversation.send, reply)

    def wake(self) -> None:
        """Do nothing: no one ever waits."""

    def say_goodbye(self) -> None:
        """Do nothing: the player ends when it is closed."""

    def close(self) -> None:
        self._conversation.close()


def in_process_player(arguments: Sequence[str]) -> InProcessPlayer | None:
    """Make the player of a command line.

    Returns:
        None if it has to be a program: one with hooks or a log, or one whose arguments are wrong, which it will report.
    """
    try:
        with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
            options = parse_player_options(list(arguments))
    except SystemExit:
        return None
    return None if options.hooks or options.log_file is not None else InProcessPlayer(options)
