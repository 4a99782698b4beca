"""The console of a command: log lines, and tracebacks for those who ask for them."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from trajtrainer.errors import TrajtrainerError

if TYPE_CHECKING:
    from trajtrainer.run.logs import ConsoleHandler

logger = logging.getLogger(__name__)


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
