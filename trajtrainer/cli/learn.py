"""``trajtrainer learn``: what ``mlagents-learn`` does, with the same options."""

from __future__ import annotations

import argparse

from trajtrainer.cli.console import console
from trajtrainer.settings import flags


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    flags.add_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Train as the command line and its configuration say, and return the exit code.

    Raises:
        TrajtrainerError: whatever ends a run early for a reason that the user can do something about.
    """
    with console(debug=hasattr(arguments, "debug")):
        settings = flags.resolve(arguments)
    with console(debug=settings.debug) as handler:
        from trajtrainer.runtime import learn  # late: torch comes with it, and neither help nor a wrong option needs it

        return learn.run(settings, handler)
