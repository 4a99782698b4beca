"""``trajtrainer config``: checks and prints the configuration that a run would use, without starting anything."""

import argparse

from trajtrainer.cli.learn import resolve
from trajtrainer.run.console import console
from trajtrainer.settings import flags
from trajtrainer.settings.unmeasured import warn_of_unmeasured


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments: those of ``learn``, and ``--presets``."""
    flags.add_arguments(parser)
    help_ = "print the settings of each preset (preset: NAME in a behavior), and exit"
    parser.add_argument("--presets", action="store_true", default=argparse.SUPPRESS, help=help_)


def run(arguments: argparse.Namespace) -> int:
    """Print the resolved configuration as YAML. Warnings go to stderr, so that stdout can be redirected to a file.

    Raises:
        SettingsError: the configuration is invalid, or a recording is missing.
        DemonstrationError: a data set is missing or cannot be read.
        RunFolderError: the run id cannot be used as the name of a folder.
    """
    if hasattr(arguments, "presets"):
        from trajtrainer.settings.presets import described

        print(described(), end="")
        return 0
    with console(debug=hasattr(arguments, "debug"), to_stderr=True):
        settings = resolve(arguments, converts=True)
        # Also check the section ``search`` if the file has one.
        path = arguments.trainer_config_path
        if path is not None:
            from trajtrainer.settings.presets import config_path
            from trajtrainer.settings.run import SEARCH_SECTION
            from trajtrainer.settings.search import make_plan
            from trajtrainer.settings.yaml.convert import read_file

            root, problems = read_file(config_path(path))
            if SEARCH_SECTION in root.mapping:
                make_plan(root, flags.given(arguments), problems)
    # Imported late, because these would slow down --help.
    from trajtrainer.policies.folder.run_folder import RunFolder
    from trajtrainer.run.followers import checks
    from trajtrainer.run.preflight import Preflight, check_recordings
    from trajtrainer.settings.yaml.commented import complete

    with Preflight() as check:
        settings = check_recordings(check, settings)
        for each in checks(settings):
            check(each, settings)
        check(RunFolder, settings.checkpoint_settings)  # rejects run ids that cannot be names of folders
    with console(debug=hasattr(arguments, "debug"), to_stderr=True):
        warn_of_unmeasured(settings)
    print(complete(settings), end="")
    return 0
