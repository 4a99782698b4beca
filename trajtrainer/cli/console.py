"""The console of a command: numbers that it takes, log lines and tables, tracebacks for those who ask for them."""

from __future__ import annotations

import argparse
import contextlib
import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from trajtrainer.core.errors import TrajtrainerError
from trajtrainer.settings import flags
from trajtrainer.settings.flags import ACTING_FLAGS
from trajtrainer.settings.run import CheckpointSettings, RunSettings

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


_ENVIRONMENT = "env_settings"


def acting_settings(
    arguments: argparse.Namespace, models: Iterable[str], sections: Mapping[str, object] | None = None
) -> RunSettings:
    """Return the settings of parsed options; what they leave open of the environment is that of the models' runs.

    Args:
        arguments: that were parsed.
        models: as ``find_models`` takes them; of the earlier ones' runs before those of the later ones.
        sections: of a configuration, which options of the command's own fill.

    Raises:
        TrajtrainerError: anything in the options is wrong.
    """
    from trajtrainer.commands.acting import as_trained  # late: it imports what help does not need

    given = flags.given(arguments)
    results = Path(str(given.get("results_dir", CheckpointSettings().results_dir)))
    told = {flag.path: given[flag.name] for flag in ACTING_FLAGS if flag.name in given}
    told = {path.removeprefix(f"{_ENVIRONMENT}."): value for path, value in told.items()}
    taken: dict[str, object] = {}
    for model in models:
        taken |= as_trained(model, results, told | taken)
    return flags.resolve_options(arguments, {**(sections or {}), _ENVIRONMENT: taken})
