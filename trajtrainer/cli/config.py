"""``trajtrainer config``: the configuration that a run would have, checked, without starting anything."""

from __future__ import annotations

import argparse

from trajtrainer.cli.console import console
from trajtrainer.cli.learn import resolve
from trajtrainer.settings import flags


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments: those of ``learn``, and ``--presets``."""
    flags.add_arguments(parser)
    help_ = "print the settings that presets stand for (preset: NAME in a behavior), and end"
    parser.add_argument("--presets", action="store_true", default=argparse.SUPPRESS, help=help_)


def run(arguments: argparse.Namespace) -> int:
    """Print the resolved configuration as YAML; warnings go to stderr, so that the output can be a file.

    Raises:
        SettingsError: anything in it is wrong, or a recording is missing.
        DemonstrationError: a data set is missing or cannot be read.
        RunFolderError: the run's name fits no folder.
    """
    if hasattr(arguments, "presets"):
        from trajtrainer.settings.presets import described

        print(described(), end="")
        return 0
    with console(debug=hasattr(arguments, "debug"), to_stderr=True):
        settings = resolve(arguments, converts=True)
        _check_search(arguments)
    # Late: both would slow down every --help.
    from trajtrainer.run.preflight import Preflight, check_recordings
    from trajtrainer.run.tracking import check_tracking
    from trajtrainer.rundir.folder import RunFolder
    from trajtrainer.settings.yaml.commented import complete

    with Preflight() as check:
        settings = check_recordings(check, settings)
        check(check_tracking, settings)
        check(RunFolder, settings.checkpoint_settings)  # touches no file, and refuses names that no folder may have
    print(complete(settings), end="")
    return 0


def _check_search(arguments: argparse.Namespace) -> None:
    """Check what the section ``search`` of the configuration asks for, if it has one."""
    from trajtrainer.settings.presets import config_path
    from trajtrainer.settings.run import SEARCH_SECTION
    from trajtrainer.settings.search import make_plan
    from trajtrainer.settings.yaml.convert import read_file

    path = arguments.trainer_config_path
    if path is not None:
        root, problems = read_file(config_path(path))
        if SEARCH_SECTION in root.mapping:
            make_plan(root, flags.given(arguments), problems)
