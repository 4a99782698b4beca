"""A built-in simulation in the trainer's own process: its messages are handed over rather than sent.

What goes to and fro are the same bytes, so that the same comes out. The connection is half of what a step costs.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Sequence
from functools import partial

from trajtrainer.sim.conversation import converse
from trajtrainer.sim.faults import Faults
from trajtrainer.sim.options import PlayerOptions, parse_player_options
from trajtrainer.unity.faults import PlayerDiedError, PlayerQuitError


class InProcessPlayer:
    """A player and the connection to it: a ``Connection`` of ``PlayerSession``. It is at work while it is waited for.

    Args:
        options: without faults, which would be those of this process.
    """

    port = 0

    def __init__(self, options: PlayerOptions) -> None:
        self._conversation = converse(options, Faults([], None))
        self._go_on: Callable[[], bytes] = partial(next, self._conversation)

    def receive(self, timeout_s: float | None = None) -> bytes:  # noqa: ARG002
        """Return the player's next message.

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
        """Answer the message that was received last."""
        self._go_on = partial(self._conversation.send, reply)

    def wake(self) -> None:
        """Nobody ever waits."""

    def say_goodbye(self) -> None:
        """Nothing: it ends when it is closed."""

    def close(self) -> None:
        """End the player."""
        self._conversation.close()


def in_process_player(arguments: Sequence[str]) -> InProcessPlayer | None:
    """Return the player of a command line.

    Returns:
        None if it has to be a program: one that shall misbehave or write a log, and one whose arguments are wrong,
        which says so itself.
    """
    try:
        with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
            options = parse_player_options(list(arguments))
    except SystemExit:
        return None
    return None if options.faults or options.log_file is not None else InProcessPlayer(options)
