"""``trajtrainer push RUN OWNER/NAME``: upload a run to the Hugging Face hub, with a model card."""

import argparse
import json
from pathlib import Path
from typing import Any

from trajtrainer.core.errors import RunFolderError, SettingsError
from trajtrainer.run.console import add_results_dir, console


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("run", metavar="RUN", help="a run id, or the folder of a run")
    parser.add_argument(
        "repository", metavar="OWNER/NAME", help="the model on the hub; it is created if it does not exist"
    )
    add_results_dir(parser, "the folder that contains the runs")
    parser.add_argument("--private", action="store_true", help="if the model is new, make it private")
    parser.add_argument(
        "--message", metavar="TEXT", default="Push to Hub", help="the commit message (default: Push to Hub)"
    )
    parser.add_argument(
        "--evaluation", metavar="FILE", type=Path, help="output of 'trajtrainer evaluate --json', for the model card"
    )


def run(arguments: argparse.Namespace) -> int:
    """Push the run.

    Raises:
        HubError: the hub refuses or does not respond.
        RunFolderError: there is no such run, or it has no model yet.
        SettingsError: the package for the hub is not installed, or an argument is wrong.
    """
    from trajtrainer.policies.folder.lookup import look_up, tried
    from trajtrainer.tools.hub.client import Hub  # imported here to keep --help fast
    from trajtrainer.tools.hub.push import push

    evaluation = None if arguments.evaluation is None else _read(arguments.evaluation)
    folder = look_up(arguments.run, arguments.results_dir)
    with console(debug=False):
        hub = Hub(arguments.repository)
        if not folder.is_dir():
            raise RunFolderError(f"There is no run {arguments.run!r}. {tried(arguments.run, arguments.results_dir)}")
        url = push(hub, folder, private=arguments.private, message=arguments.message, evaluation=evaluation)
    print(f"The run is at {url}.")
    return 0


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise SettingsError(f"--evaluation {path}: the file cannot be read: {error}.") from error
    results = content.get("results") if isinstance(content, dict) else None
    if not isinstance(results, list) or not all(isinstance(each, dict) for each in results):
        raise SettingsError(f"--evaluation {path}: this is not the output of 'trajtrainer evaluate --json'.")
    return dict(content)
