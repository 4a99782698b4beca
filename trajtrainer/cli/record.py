"""``trajtrainer record``: what a policy does in an environment becomes a recording (``.demo``)."""

from __future__ import annotations

import argparse
from pathlib import Path

from trajtrainer.cli.console import acting_settings, console, count_of
from trajtrainer.core.printable import one_line
from trajtrainer.settings import flags
from trajtrainer.settings.flags import ACTING_FLAGS

_POLICY_HELP = (
    "a run id, the folder of a run or of one of its behaviors, a .pt file of ours or of ML-Agents, an .onnx, 'random', "
    "or 'heuristic', a written policy that some built-in simulations and classic tasks have"
)
_EPISODES = 10


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("--policy", required=True, metavar="WHAT", help=f"who acts: {_POLICY_HELP}")
    parser.add_argument(
        "--expert",
        metavar="WHAT",
        help="whose decisions are recorded where the policy got to (DAgger); by default the policy's own",
    )
    parser.add_argument(
        "--episodes",
        metavar="N",
        type=count_of("episodes"),
        default=_EPISODES,
        help=f"whole episodes of the behavior and each team (default: {_EPISODES})",
    )
    parser.add_argument(
        "--length",
        metavar="N",
        type=count_of("steps"),
        help="write only so many steps of each episode, as if it was interrupted",
    )
    parser.add_argument("--behavior", metavar="NAME", help="which to record, where the environment has several")
    parser.add_argument(
        "-o", "--output", required=True, type=Path, metavar="FILE", help="the file to write, .demo or .npz"
    )
    flags.add_options(parser, ACTING_FLAGS)


def run(arguments: argparse.Namespace) -> int:
    """Record, say what, and return the exit code.

    Raises:
        TrajtrainerError: a policy or environment that does not exist or does not fit, or the environment failed.
    """
    with console(debug=hasattr(arguments, "debug"), quiet=hasattr(arguments, "quiet"), to_stderr=True):
        from trajtrainer.cli.demo import format_summary  # late: these import what help does not need
        from trajtrainer.commands.record import Wishes, record_to_file
        from trajtrainer.play.models import SCRIPTED

        wishes = Wishes(
            arguments.policy,
            arguments.expert,
            arguments.episodes,
            arguments.length,
            arguments.behavior,
            arguments.output,
        )
        models = [word for word in (arguments.policy, arguments.expert) if word not in (None, *SCRIPTED)]
        recorded = record_to_file(wishes, acting_settings(arguments, models))
    print("\n".join(map(one_line, format_summary(recorded.summary))))
    return recorded.exit_code
