"""Helpers for commands: log lines, tables and tracebacks on the console, and settings for commands that only act."""

from __future__ import annotations

import argparse
import contextlib
import logging
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from trajtrainer.core.errors import TrajtrainerError
from trajtrainer.core.image_order import RawImageOrder
from trajtrainer.settings import flags
from trajtrainer.settings.flags import ACTING_FLAGS
from trajtrainer.settings.run import CheckpointSettings, RunSettings

if TYPE_CHECKING:
    from rich.console import RenderableType

    from trajtrainer.run.logs import ConsoleHandler

logger = logging.getLogger(__name__)

_UNLIMITED = 10_000  # width of tables in files and pipes

_ENVIRONMENT = "env_settings"


@contextlib.contextmanager
def console(
    *, debug: bool, quiet: bool = False, to_stderr: bool = False, as_json: bool = False
) -> Iterator[ConsoleHandler]:
    """Show log lines on the console inside the ``with`` block.

    Args:
        debug: also show debug lines, and the traceback if an error ends the command.
        quiet: show warnings and errors only.
        to_stderr: write log lines to stderr, to keep stdout for the result of the command.
        as_json: write JSON objects, including one for an error that ends the command.
    """
    from trajtrainer.run.logs import console_logging

    with console_logging(debug=debug, quiet=quiet, as_json=as_json) as handler:
        if to_stderr:
            handler.sink = lambda line: print(line, file=sys.stderr)
        try:
            yield handler
        except TrajtrainerError as error:
            if as_json:  # stderr already shows it as text
                logger.error("%s", error)
            logger.debug("Traceback of the error:", exc_info=True)
            raise


def print_table(*tables: RenderableType) -> None:
    """Print tables to stdout. Lines are not wrapped if stdout is not a terminal."""
    from rich.console import Console

    page = Console(width=None if sys.stdout.isatty() else _UNLIMITED, highlight=False)
    for table in tables:
        page.print(table)


def add_count(
    parser: argparse.ArgumentParser, option: str, things: str, help_: str, default: int | None = None
) -> None:
    """Add an option for an integer of at least 1. The default, if any, is appended to the help text."""

    def count(text: str) -> int:
        if not text.isdecimal() or not int(text):
            raise argparse.ArgumentTypeError(f"{text!r} is not a number of {things}; expected 1 or more")
        return int(text)

    help_ += "" if default is None else f" (default: {default})"
    parser.add_argument(option, metavar="N", type=count, default=default, help=help_)


def add_results_dir(parser: argparse.ArgumentParser, help_: str = "folder of the runs (default: results)") -> None:
    """Add the option ``--results-dir``."""
    parser.add_argument("--results-dir", metavar="FOLDER", type=Path, default=Path("results"), help=help_)


def add_raw_image_order(parser: argparse.ArgumentParser) -> None:
    """Add the option ``--raw-image-order``, for commands that read ``.demo`` files."""
    parser.add_argument(
        "--raw-image-order",
        choices=[order.value for order in RawImageOrder],
        default=RawImageOrder.AUTO.value,
        help="dimension order of raw images in .demo files from Unity packages 3.0 and newer (default: auto, which "
        "detects it from the images)",
    )


def acting_settings(
    arguments: argparse.Namespace, models: Iterable[str], sections: Mapping[str, object] | None = None
) -> RunSettings:
    """Return the settings of a command that acts with trained models.

    Args:
        arguments: the parsed arguments.
        models: the models, as for ``find_models``. Environment settings that are not given as options come from the
            runs of these models, with precedence for earlier models.
        sections: configuration sections that contain the command's own options.

    Raises:
        TrajtrainerError: an option is invalid.
    """
    from trajtrainer.run.acting import as_trained  # lazy import: not needed for --help

    given = flags.given(arguments)
    results = Path(str(given.get("results_dir", CheckpointSettings().results_dir)))
    options = {flag.path: given[flag.name] for flag in ACTING_FLAGS if flag.name in given}
    options = {path.removeprefix(f"{_ENVIRONMENT}."): value for path, value in options.items()}
    taken: dict[str, object] = {}
    for model in models:
        taken |= as_trained(model, results, options | taken)
    return flags.resolve_options(arguments, {**(sections or {}), _ENVIRONMENT: taken})
