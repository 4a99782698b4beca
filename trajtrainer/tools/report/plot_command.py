"""``trajtrainer plot RUN ... -o FILE``: plots curves of runs to an image file."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from trajtrainer.core.errors import SettingsError
from trajtrainer.core.spelling import closest
from trajtrainer.run.console import console
from trajtrainer.tools.report.command import add_run_arguments, unwritable


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_run_arguments(parser)
    parser.add_argument(
        "-o", "--output", metavar="FILE", type=Path, required=True, help="a .png, .svg or .pdf (needs the extra 'plot')"
    )
    parser.add_argument(
        "--tag",
        metavar="TAG",
        action="append",
        default=[],
        help="a TensorBoard tag, such as 'Losses/Policy Loss'; repeat the option for more charts (default: "
        "Environment/Cumulative Reward)",
    )
    parser.add_argument("--behavior", metavar="NAME", help="draw only this behavior (default: all)")


def run(arguments: argparse.Namespace) -> int:
    """Plot the curves and write the image.

    Raises:
        RunFolderError: a run does not exist or has nothing to show, or the image cannot be written.
        SettingsError: there is no such tag or behavior, or the image format is not supported.
    """
    from trajtrainer.tools.groups import group_runs, load_runs
    from trajtrainer.tools.pictures import check_picture, plot
    from trajtrainer.tools.report.html import REWARD, all_tags  # imported here because it imports numpy and protobuf

    check_picture(arguments.output, "--output")
    with console(debug=False):
        groups = group_runs(load_runs(arguments.runs, arguments.results_dir))
        charts = choose(all_tags(groups), arguments.tag or [REWARD], arguments.behavior)
        try:
            plot(groups, charts, arguments.output)
        except OSError as error:
            raise unwritable(arguments.output, error) from error
    print(f"Wrote {arguments.output}.")
    return 0


def choose(known: Sequence[tuple[str, str]], tags: Sequence[str], behavior: str | None) -> list[tuple[str, str]]:
    """Return the charts to plot, as (behavior, tag), in the order of the tags.

    Raises:
        SettingsError: there is no such tag or behavior. The message lists the existing ones.
    """
    behaviors = list(dict.fromkeys(name for name, _ in known))
    if behavior is not None and behavior not in behaviors:
        raise SettingsError(
            f"--behavior {behavior}: these runs have {', '.join(behaviors)}{closest(behavior, behaviors)}."
        )
    some = [(name, tag) for name, tag in known if behavior in (None, name)]
    there = sorted({tag for _, tag in some})
    for tag in tags:
        if tag not in there:
            raise SettingsError(
                f"--tag {tag!r}: these runs have no such tag{closest(tag, there)}. They have:\n  " + "\n  ".join(there)
            )
    return [(name, one) for tag in tags for name, one in some if one == tag]
