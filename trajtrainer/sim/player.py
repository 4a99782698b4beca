"""The player program: a gRPC client that speaks the wire as Unity does (docs/mlagents-behavior.md#wire)."""

from __future__ import annotations

import grpc

from trajtrainer.sim.conversation import converse
from trajtrainer.sim.faults import Faults
from trajtrainer.sim.options import PlayerOptions
from trajtrainer.sim.orders import OrderError

METHOD = "/communicator_objects.UnityToExternalProto/Exchange"
CHANNEL_OPTIONS = (
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.enable_http_proxy", 0),
)


class PlayerError(Exception):
    """The player cannot go on."""


def run_player(options: PlayerOptions) -> None:
    """Connect, and play until the trainer tells it to end.

    Raises:
        PlayerError: no trainer came, the connection is lost, or the trainer sends what cannot be followed.
    """
    faults = Faults(list(options.faults), options.fault_once)
    faults.before_connecting()
    with grpc.insecure_channel(f"localhost:{options.port}", options=CHANNEL_OPTIONS) as channel:
        call = channel.unary_unary(METHOD)
        conversation = converse(options, faults)
        try:
            # The trainer may still be busy starting: wait for it here, and nowhere else.
            answer = call(next(conversation), timeout=options.connect_seconds, wait_for_ready=True)
            while True:
                answer = call(conversation.send(answer))
        except StopIteration:
            pass
        except grpc.RpcError as error:
            raise PlayerError(
                f"the connection to the trainer is lost: {error.code().name} {error.details()}"
            ) from error
        except OrderError as error:
            raise PlayerError(str(error)) from error
    faults.when_told_to_end()
