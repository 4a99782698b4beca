"""The player program: a gRPC client that speaks the wire as Unity does (docs/mlagents-behavior.md#wire)."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

import grpc

from trajtrainer.sim.channels import SideChannels, picture_frame, statistic_frame
from trajtrainer.sim.faults import Faults
from trajtrainer.sim.options import PlayerOptions
from trajtrainer.sim.orders import STATUS_OK, OrderError, read_order
from trajtrainer.sim.parameters import EnvironmentParameters
from trajtrainer.sim.world import HEADER, World, output_message
from trajtrainer.unity.proto import communicator_pb2 as pb

logger = logging.getLogger(__name__)

METHOD = "/communicator_objects.UnityToExternalProto/Exchange"
PLAYER_NAME = "AcademySingleton"
STATUS_QUIT = 400
CHANNEL_OPTIONS = (
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.enable_http_proxy", 0),
)
Exchange = Callable[[bytes], bytes]


class PlayerError(Exception):
    """The player cannot go on."""


class _EndError(Exception):
    """The trainer told the player to end."""


def run_player(options: PlayerOptions) -> None:
    """Connect, and play until the trainer tells it to end.

    Raises:
        PlayerError: no trainer came, the connection is lost, or the trainer sends what cannot be followed.
    """
    faults = Faults(list(options.faults), options.fault_once)
    faults.before_connecting()
    with grpc.insecure_channel(f"localhost:{options.port}", options=CHANNEL_OPTIONS) as channel:
        call = channel.unary_unary(METHOD)
        try:
            seed = _shake_hands(call, options, faults)
            _play(call, options, faults, seed)
        except _EndError as end:
            logger.info("%s; the player ends", end)
        except grpc.RpcError as error:
            raise PlayerError(
                f"the connection to the trainer is lost: {error.code().name} {error.details()}"
            ) from error
        except OrderError as error:
            raise PlayerError(str(error)) from error
    faults.when_told_to_end()


def _shake_hands(call: grpc.UnaryUnaryMultiCallable, options: PlayerOptions, faults: Faults) -> int:
    """Make the first exchange. Returns the seed."""
    style = options.style
    hello = pb.UnityMessageProto(header=pb.HeaderProto(status=STATUS_OK))
    initialization = hello.unity_output.rl_initialization_output
    initialization.name = PLAYER_NAME
    initialization.communication_version = faults.api_version(style.api_version)
    initialization.package_version = style.package_version
    initialization.capabilities.CopyFrom(style.capabilities())
    request = faults.outgoing(0, hello.SerializeToString())
    # The trainer may still be busy starting: wait for it here, and nowhere else.
    answer = pb.UnityMessageProto.FromString(call(request, timeout=options.connect_seconds, wait_for_ready=True))
    if answer.header.status != STATUS_OK:
        raise _EndError(f"the trainer answered the handshake with status {answer.header.status}")
    trainer = answer.unity_input.rl_initialization_input
    logger.info(
        "connected to a trainer of version %s, wire %s, seed %d, %d areas",
        trainer.package_version,
        trainer.communication_version,
        trainer.seed,
        trainer.num_areas,
    )
    return trainer.seed if options.seed is None else options.seed


def _play(exchange: Exchange, options: PlayerOptions, faults: Faults, seed: int) -> None:
    parameters = EnvironmentParameters()
    channels = SideChannels(parameters)
    world = World(options.simulations, options.teams, seed, options.style, parameters)
    statistics = b"".join(statistic_frame(statistic) for statistic in options.statistics)
    announcement = world.announcement()
    step = resets = 0
    answer = exchange(HEADER)  # held by the trainer until it wants the first reset
    while True:
        order = read_order(answer)
        if order.status != STATUS_OK or order.command == pb.QUIT:
            raise _EndError(f"the trainer sent status {order.status} and command {order.command} after {step} steps")
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
            exchange(pb.UnityMessageProto(header=pb.HeaderProto(status=STATUS_QUIT)).SerializeToString())
            raise _EndError(f"told to quit at step {step}")
        pictures = picture_frame(world.picture()) if options.render else b""
        answer = exchange(faults.outgoing(step, output_message(infos, statistics + pictures, announcement)))
        announcement = b""
