"""What a player says to its trainer, and does with the answers (docs/mlagents-behavior.md#wire)."""

from __future__ import annotations

import logging
import time
from collections.abc import Generator

from trajtrainer.sim.channels import SideChannels, picture_frame, statistic_frame
from trajtrainer.sim.faults import Faults
from trajtrainer.sim.options import PlayerOptions
from trajtrainer.sim.orders import STATUS_OK, read_order
from trajtrainer.sim.parameters import EnvironmentParameters
from trajtrainer.sim.world import HEADER, World, output_message
from trajtrainer.unity.proto import communicator_pb2 as pb

logger = logging.getLogger(__name__)

PLAYER_NAME = "AcademySingleton"
STATUS_QUIT = 400

Conversation = Generator[bytes, bytes, None]
"""Yields the player's messages and is sent the trainer's answer to each."""


def converse(options: PlayerOptions, faults: Faults) -> Conversation:
    """Play from the handshake until the trainer tells the player to end.

    Raises:
        OrderError: the trainer sends what cannot be followed.
    """
    answer = pb.UnityMessageProto.FromString((yield faults.outgoing(0, _handshake(options, faults))))
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
    yield from _play(options, faults, trainer.seed if options.seed is None else options.seed)


def _handshake(options: PlayerOptions, faults: Faults) -> bytes:
    style = options.style
    hello = pb.UnityMessageProto(header=pb.HeaderProto(status=STATUS_OK))
    initialization = hello.unity_output.rl_initialization_output
    initialization.name = PLAYER_NAME
    initialization.communication_version = faults.api_version(style.api_version)
    initialization.package_version = style.package_version
    initialization.capabilities.CopyFrom(style.capabilities())
    return hello.SerializeToString()


def _play(options: PlayerOptions, faults: Faults, seed: int) -> Conversation:
    parameters = EnvironmentParameters()
    channels = SideChannels(parameters)
    world = World(options.simulations, options.teams, seed, options.style, parameters)
    statistics = b"".join(statistic_frame(statistic) for statistic in options.statistics)
    announcement = world.announcement()
    step = resets = 0
    answer = yield HEADER  # held by the trainer until it wants the first reset
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
        if order.command == pb.RESET or step == 0:
            resets += 1
            faults.before_reset(resets)
            infos = world.reset()
        else:
            infos = world.step(order.actions)
        if options.step_seconds:
            time.sleep(options.step_seconds)
        step += 1
        if faults.quits(step):
            yield pb.UnityMessageProto(header=pb.HeaderProto(status=STATUS_QUIT)).SerializeToString()
            logger.info("told to quit at step %d; the player ends", step)
            return
        pictures = picture_frame(world.picture()) if options.render else b""
        answer = yield faults.outgoing(step, output_message(infos, statistics + pictures, announcement))
        announcement = b""
