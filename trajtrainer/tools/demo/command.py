"""``trajtrainer demo info|merge|split|convert``: shows what is in recordings, and creates new recordings from them."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from trajtrainer.core.errors import DemonstrationError
from trajtrainer.core.image_order import RawImageOrder
from trajtrainer.core.printable import counted, one_line
from trajtrainer.run.console import add_raw_image_order, console

if TYPE_CHECKING:
    from trajtrainer.experience.recordings.source import DemonstrationSource

_FILES_HELP = (
    "a .demo file, a folder of them, an .npz file (docs/train/demonstrations.md), a run's last_replay_buffer.npz, "
    "a .json file that Godot's plugin recorded, or minari:ID or minari:FOLDER for a Minari data set (needs the extra "
    "'minari')"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    commands = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    info = commands.add_parser("info", help="show what is in recordings: episodes, returns, observations, actions")
    info.add_argument("--json", action="store_true", help="print a JSON list with one entry per file")
    merge = commands.add_parser("merge", help="merge the episodes of several recordings")
    split = commands.add_parser("split", help="write the first episodes to one recording and the rest to another")
    convert = commands.add_parser(
        "convert", help="convert a recording to another format, chosen by the suffix of the output file"
    )
    for each in (info, merge):
        each.add_argument("files", nargs="+", metavar="FILE", help=_FILES_HELP)
    for each in (split, convert):
        each.add_argument("files", nargs=1, metavar="FILE", help=_FILES_HELP)
    for each in (merge, split, convert):
        each.add_argument(
            "-o", "--output", required=True, type=Path, metavar="FILE", help="the file to write, .demo or .npz"
        )
    split.add_argument("--rest", required=True, type=Path, metavar="FILE", help="the file for the remaining episodes")
    how_many = split.add_mutually_exclusive_group(required=True)
    how_many.add_argument("--episodes", type=int, metavar="N", help="the number of episodes in the first file")
    how_many.add_argument(
        "--fraction", type=float, metavar="F", help="the fraction of all episodes in the first file, such as 0.9"
    )
    for each in (info, merge, split, convert):
        add_raw_image_order(each)
        each.add_argument(
            "--actions",
            metavar="KINDS",
            help="for a .json file of Godot's plugin: the kinds of the numbers in its actions, such as "
            "continuous:2,discrete:3",
        )
        each.add_argument("--debug", action="store_true", help="print debug lines and tracebacks")


def run(arguments: argparse.Namespace) -> int:
    """Run the action and return the exit code.

    Raises:
        TrajtrainerError: a recording cannot be read or written, or does not match the others.
    """
    with console(debug=arguments.debug, to_stderr=True):
        return {"info": _info, "merge": _merge, "split": _split, "convert": _merge}[arguments.action](arguments)


def _info(arguments: argparse.Namespace) -> int:
    from trajtrainer.experience.recordings.source import summarize  # imported here to keep --help fast
    from trajtrainer.tools.recordings import format_summary

    summaries = [summarize(source) for source in _sources(arguments)]
    if arguments.json:
        print(json.dumps([summary.to_plain() for summary in summaries], indent=2))
    else:
        print("\n".join("\n".join(map(one_line, format_summary(summary))) for summary in summaries))
    return 0


def _sources(arguments: argparse.Namespace) -> list[DemonstrationSource]:
    from trajtrainer.tools.recordings import find_sources

    return find_sources(arguments.files, RawImageOrder(arguments.raw_image_order), actions=arguments.actions)


def _merge(arguments: argparse.Namespace) -> int:
    from trajtrainer.experience.recordings.source import joined
    from trajtrainer.tools.recordings import check_target

    check_target(arguments.output)
    return _write(arguments.output, joined(_sources(arguments)))


def _split(arguments: argparse.Namespace) -> int:
    from trajtrainer.experience.recordings.source import joined, part
    from trajtrainer.tools.recordings import check_target

    if arguments.output.absolute() == arguments.rest.absolute():
        raise DemonstrationError(f"--output and --rest are the same file, {arguments.rest}.")
    check_target(arguments.output)
    check_target(arguments.rest)
    source = joined(_sources(arguments))
    total = sum(1 for _ in source.trajectories())
    count = arguments.episodes if arguments.fraction is None else round(arguments.fraction * total)
    if not 0 < count < total:
        raise DemonstrationError(
            f"{source.path} has {total} episodes, and the first file would get {count} of them; each file needs at "
            "least one."
        )
    return _write(arguments.output, part(source, 0, count)) or _write(arguments.rest, part(source, count, None))


def _write(path: Path, source: DemonstrationSource) -> int:
    from trajtrainer.experience.recordings.source import summarize
    from trajtrainer.tools.recordings import episodes_in_words, find_sources, write

    write(path, source)
    (written,) = find_sources([str(path)])
    summary = summarize(written)
    print(one_line(f"{path}: {episodes_in_words(summary)}, {counted(summary.steps, 'step')}."))
    return 0
