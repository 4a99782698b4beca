"""``python -m trajtrainer.sim NAME --mlagents-port PORT``: a built-in simulation as a player.

Exit codes: 0 the trainer told it to end; 1 no trainer, connection lost or an answer that cannot be followed;
2 wrong use; 130 interrupted.
"""

from __future__ import annotations

import logging
import os
import signal
import sys

from trajtrainer.sim.options import PlayerOptions, parse_player_options
from trajtrainer.sim.player import PlayerError, run_player

logger = logging.getLogger(__name__)


def main(arguments: list[str]) -> int:
    """Run the player and return its exit code."""
    options = parse_player_options(arguments)
    _start_log(options)
    try:
        run_player(options)
    except PlayerError as error:
        logger.error("%s", error)
        return 1
    except Exception:
        logger.exception("the player failed")
        return 1
    return 0


def _start_log(options: PlayerOptions) -> None:
    form = "%(asctime)s %(levelname)s %(message)s"
    if options.log_file is None:
        logging.basicConfig(level=logging.WARNING, format=form, stream=sys.stderr)
        return
    options.log_file.parent.mkdir(parents=True, exist_ok=True)
    logging.basicConfig(level=logging.INFO, format=form, filename=options.log_file, filemode="w")


if __name__ == "__main__":
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        # No KeyboardInterrupt: gRPC swallows what is raised within its callbacks.
        signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    sys.exit(main(sys.argv[1:]))
