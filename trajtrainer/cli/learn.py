"""``trajtrainer learn``: trains behaviors like ``mlagents-learn``, with the same options."""

import argparse
import sys
from pathlib import Path

from attrs import evolve

from trajtrainer.core.timers import Timers
from trajtrainer.run.console import console
from trajtrainer.settings import flags
from trajtrainer.settings.run import RunSettings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    flags.add_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Train according to the command line and the configuration, and return the exit code.

    Raises:
        TrajtrainerError: the run ended early because of a problem that the user can fix.
    """
    timers = Timers()
    as_json = getattr(arguments, "log_format", "text") == "json"
    with console(debug=hasattr(arguments, "debug"), quiet=hasattr(arguments, "quiet"), as_json=as_json) as handler:
        with timers("run_training.settings"):
            settings = resolve(arguments)
            handler.show(debug=settings.debug)
            from trajtrainer.run.logs import banner, shell_line  # imported late, because --help does not need it

            handler.say(banner())  # shown before torch is imported, which may take many seconds
            from trajtrainer.run import session  # imported late, because --help does not need it
        by_name = Path(sys.argv[0]).stem == "trajtrainer"
        program = ["trajtrainer", "learn"] if by_name else [sys.executable, "-m", "trajtrainer", "learn"]
        return session.run(settings, handler, timers, shell_line([*program, *flags.to_resume(arguments)]))


def resolve(arguments: argparse.Namespace, *, converts: bool = False) -> RunSettings:
    """Return the settings of a run, with ``--resume=auto`` resolved. See ``flags.resolve`` for arguments and errors."""
    settings = flags.resolve(arguments, converts=converts)
    if not hasattr(arguments, flags.RESUME_AUTO):
        return settings
    from trajtrainer.policies.folder.run_folder import resume_if_begun

    return evolve(settings, checkpoint_settings=resume_if_begun(settings.checkpoint_settings))
