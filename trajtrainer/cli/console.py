"""The console of a command: numbers that it takes, log lines and tables, tracebacks for those who ask for them."""

from __future__ import annotations

import argparse
import contextlib
import logging
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from trajtrainer.core.errors import TrajtrainerError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from trajtrainer.run.logs import ConsoleHandler

logger = logging.getLogger(__name__)

_UNLIMITED = 10_000  # of a file or a pipe, which has no width


@contextlib.contextmanager
def console(*, debug: bool, quiet: bool = False, to_stderr: bool = False) -> Iterator[ConsoleHandler]:
    """Log lines go to the console for as long as this lasts.

    Args:
        debug: debug lines too, and the traceback of an error that ends the command.
        quiet: warnings and errors only.
        to_stderr: leave stdout to the command's result.
    """
    from trajtrainer.run.logs import console_logging

    with console_logging(debug=debug, quiet=quiet) as handler:
        if to_stderr:
            handler.sink = _print_to_stderr
        try:
            yield handler
        except TrajtrainerError:
            logger.debug("Where the error comes from:", exc_info=True)
            raise


def _print_to_stderr(line: str) -> None:
    print(line, file=sys.stderr)


def print_table(*tables: RenderableType) -> None:
    """Print tables to stdout, in lines as long as they are where that is no terminal."""
    from rich.console import Console

    page = Console(width=None if sys.stdout.isatty() else _UNLIMITED, highlight=False)
    for table in tables:
        page.print(table)


def count_of(things: str) -> Callable[[str], int]:
    """Return the ``type`` of an argument that is a number of things, 1 or more."""

    def count(text: str) -> int:
        if not text.isdecimal() or not int(text):
            raise argparse.ArgumentTypeError(f"{text!r} is no number of {things}, expected 1 or more")
        return int(text)

    return count
