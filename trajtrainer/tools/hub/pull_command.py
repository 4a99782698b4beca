"""``trajtrainer pull OWNER/NAME``: download a run from the Hugging Face hub into the results folder."""

import argparse

from trajtrainer.run.console import add_results_dir, console


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("repository", metavar="OWNER/NAME", help="a model on the hub, including models from ML-Agents")
    parser.add_argument("--run-id", metavar="ID", help="the run id to give it (default: NAME)")
    add_results_dir(parser, "the folder for the run (default: results)")
    parser.add_argument("--revision", metavar="REV", help="a branch, tag or commit (default: the newest commit)")
    parser.add_argument(
        "--max-size", metavar="MB", type=_size, default=2000, help="refuse a model larger than this (default: 2000)"
    )
    parser.add_argument(
        "--force", action="store_true", help="use a run id that already exists; the earlier run is kept as ID.old"
    )


def run(arguments: argparse.Namespace) -> int:
    """Download the run.

    Raises:
        HubError: the hub refuses or does not respond.
        RunFolderError: a run with this id exists already, or there is not enough disk space.
        SettingsError: the package for the hub is not installed, or an argument is wrong.
    """
    from trajtrainer.tools.hub.client import Hub  # imported here to keep --help fast
    from trajtrainer.tools.hub.pull import pull

    with console(debug=False):
        folder = pull(
            Hub(arguments.repository),
            arguments.results_dir,
            arguments.run_id or arguments.repository.rpartition("/")[2],
            revision=arguments.revision,
            most_bytes=arguments.max_size * 1_000_000,
            force=arguments.force,
        )
    print(f"The run is in {folder}. Its model card: {folder / 'README.md'}.")
    return 0


def _size(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a size in megabytes, expected at least 1")
    return int(text)
