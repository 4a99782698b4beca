"""``trajtrainer report RUN ...``: writes an HTML file about runs, with curves, settings and where the time went."""

import argparse
from datetime import datetime
from pathlib import Path

from trajtrainer.core.errors import RunFolderError
from trajtrainer.run.console import add_results_dir, console


def add_run_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments that choose runs."""
    parser.add_argument(
        "runs",
        nargs="+",
        metavar="RUN",
        help="run ids, or folders of runs or of one of their behaviors, including those of ML-Agents. Runs that differ "
        "only in their seed form a group",
    )
    add_results_dir(parser, "the folder that contains the runs")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_run_arguments(parser)
    parser.add_argument(
        "-o", "--output", metavar="FILE", type=Path, default=Path("report.html"), help="default: report.html"
    )


def run(arguments: argparse.Namespace) -> int:
    """Write the report.

    Raises:
        RunFolderError: a run does not exist or has nothing to show, or the report cannot be written.
    """
    from trajtrainer.core import atomic
    from trajtrainer.tools.groups import group_runs, load_runs
    from trajtrainer.tools.report.html import report  # imported here because it imports numpy and protobuf

    with console(debug=False):
        groups = group_runs(load_runs(arguments.runs, arguments.results_dir))
        try:
            atomic.write_text(arguments.output, report(groups, datetime.now().astimezone().strftime("%Y-%m-%d %H:%M")))
        except OSError as error:
            raise unwritable(arguments.output, error) from error
    print(f"Wrote {arguments.output}.")
    return 0


def unwritable(path: Path, error: OSError) -> RunFolderError:
    """Return the error for an output file that cannot be written."""
    return RunFolderError(f"--output {path}: the file cannot be written: {error.strerror or error}.")
