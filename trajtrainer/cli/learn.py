"""``trajtrainer learn``: what ``mlagents-learn`` does, with the same options."""

from __future__ import annotations

import argparse
import atexit
import gc

from trajtrainer.cli.console import console
from trajtrainer.settings import flags
from trajtrainer.timers import Timers


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    flags.add_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Train as the command line and its configuration say, and return the exit code.

    Raises:
        TrajtrainerError: whatever ends a run early for a reason that the user can do something about.
    """
    timers = Timers()
    with timers("run_training.settings"), console(debug=hasattr(arguments, "debug")):
        settings = flags.resolve(arguments)
        from trajtrainer.envs.select import check  # late: it imports numpy, which help does not need

        check(settings.env_settings.env_path)
    with console(debug=settings.debug) as handler:
        with timers("run_training.import"):  # late: torch comes with it, and neither help nor a wrong option needs it
            from trajtrainer.runtime import learn
        # The interpreter's last collection would otherwise go through all of torch's objects (measured: 0.2 s).
        atexit.register(gc.freeze)
        return learn.run(settings, handler, timers)
