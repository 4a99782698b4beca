"""``python -m trajtrainer.envs.sim NAME --mlagents-port PORT``: run a built-in simulation as a player.

The player is a gRPC client that uses the same wire protocol as Unity (docs/explanation/mlagents-behavior.md#wire).

Exit codes: 0 if the trainer told the player to quit; 1 if there is no trainer, the connection is lost or an answer is
invalid; 2 for a usage error; 130 if interrupted.
"""

from __future__ import annotations

import logging
import os
import signal
import sys

import grpc

from trajtrainer.envs.sim.conversation import converse
from trajtrainer.envs.sim.options import PlayerOptions, hooked, parse_player_options
from trajtrainer.envs.sim.wire import OrderError

logger = logging.getLogger(__name__)

METHOD = "/communicator_objects.UnityToExternalProto/Exchange"
CHANNEL_OPTIONS = (
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.enable_http_proxy", 0),
)


class PlayerError(Exception):
    """The player cannot continue."""


def main(arguments: list[str]) -> int:
    """Run the player and return its exit code."""
    options = parse_player_options(arguments)
    form = "%(asctime)s %(levelname)s %(message)s"
    if options.log_file is None:
        logging.basicConfig(level=logging.WARNING, format=form, stream=sys.stderr)
    else:
        options.log_file.parent.mkdir(parents=True, exist_ok=True)
        logging.basicConfig(level=logging.INFO, format=form, filename=options.log_file, filemode="w")
    try:
        run_player(options)
    except PlayerError as error:
        logger.error("%s", error)
        return 1
    except Exception:
        logger.exception("the player failed")
        return 1
    return 0


def run_player(options: PlayerOptions) -> None:
    """Connect to the trainer, and play until it tells the player to quit.

    Raises:
        PlayerError: there is no trainer, the connection is lost, or the trainer sends an invalid answer.
    """
    conversation = hooked("converse", converse(options), options.port, options.hooks)
    first = next(conversation)
    with grpc.insecure_channel(f"localhost:{options.port}", options=CHANNEL_OPTIONS) as channel:
        call = channel.unary_unary(METHOD)
        try:
            # Only the first call waits for a connection, because the trainer may still be starting.
            answer = call(first, timeout=options.connect_seconds, wait_for_ready=True)
            while True:
                answer = call(conversation.send(answer))
        except StopIteration:
            pass
        except grpc.RpcError as error:
            raise PlayerError(
                f"the connection to the trainer was lost: {error.code().name} {error.details()}"
            ) from error
        except OrderError as error:
            raise PlayerError(str(error)) from error


if __name__ == "__main__":
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        # Exit directly instead of raising KeyboardInterrupt: gRPC swallows exceptions raised in its callbacks.
        signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    sys.exit(main(sys.argv[1:]))
