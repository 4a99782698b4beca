"""``trajtrainer record``: records a policy's episodes in an environment (``.demo`` or ``.npz``)."""

import argparse
from pathlib import Path

from trajtrainer.core.printable import one_line
from trajtrainer.run.console import acting_settings, add_count, console
from trajtrainer.settings import flags
from trajtrainer.settings.flags import ACTING_FLAGS

_POLICY_HELP = (
    "a run id, the folder of a run or of one of its behaviors, a .pt file of trajtrainer or ML-Agents, an .onnx, "
    "'random', or 'heuristic', a scripted policy that some built-in simulations and classic tasks have"
)
_EPISODES = 10


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("--policy", required=True, metavar="WHAT", help=f"the policy that acts: {_POLICY_HELP}")
    parser.add_argument(
        "--expert",
        metavar="WHAT",
        help="the policy whose decisions are recorded in the states that --policy reaches (DAgger; default: --policy)",
    )
    add_count(parser, "--episodes", "episodes", "number of complete episodes per team", default=_EPISODES)
    add_count(parser, "--length", "steps", "write only this many steps of each episode, as if it had been interrupted")
    parser.add_argument("--behavior", metavar="NAME", help="the behavior to record, if the environment has several")
    parser.add_argument(
        "-o", "--output", required=True, type=Path, metavar="FILE", help="the file to write, .demo or .npz"
    )
    flags.add_options(parser, ACTING_FLAGS)


def run(arguments: argparse.Namespace) -> int:
    """Record, print a summary, and return the exit code.

    Raises:
        TrajtrainerError: a policy or the environment does not exist, they do not match, or the environment failed.
    """
    with console(debug=hasattr(arguments, "debug"), quiet=hasattr(arguments, "quiet"), to_stderr=True):
        from trajtrainer.policies.folder.saved_policies import SCRIPTED
        from trajtrainer.run import acting

        models = [word for word in (arguments.policy, arguments.expert) if word not in (None, *SCRIPTED)]
        settings = acting.for_inference(acting_settings(arguments, models), models)
        with acting.launching(settings, models, {"--output": arguments.output}) as players:
            from trajtrainer.tools.record.record import RecordOptions, record_to_file  # imports torch
            from trajtrainer.tools.recordings import format_summary

            fields = ("policy", "expert", "episodes", "length", "behavior", "output")
            options = RecordOptions(**{name: getattr(arguments, name) for name in fields})
            summary, exit_code = record_to_file(options, settings, players)
    print("\n".join(map(one_line, format_summary(summary))))
    return exit_code
