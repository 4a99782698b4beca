"""``trajtrainer verify MODEL --demo FILE``: checks whether a game acts like the policy in training, or why not."""

import argparse
import sys

from trajtrainer.core.errors import TrajtrainerError
from trajtrainer.core.image_order import RawImageOrder
from trajtrainer.core.printable import one_line, printable
from trajtrainer.run.console import add_count, add_raw_image_order, add_results_dir, console

_BAD_INPUT = 2
_EITHER = "either"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "model",
        metavar="MODEL",
        help="the policy that the game should use: an .onnx, a .pt file, the folder of a run or of one of its "
        "behaviors, or a run id (the newest checkpoint; append @best for the best)",
    )
    parser.add_argument(
        "--demo",
        metavar="FILE.demo",
        nargs="+",
        required=True,
        help="recordings that the game made while the policy acted (Demonstration Recorder), or folders of them",
    )
    parser.add_argument(
        "--run", metavar="RUN", help="also compare with the sensors and the other checkpoints of this run"
    )
    parser.add_argument("--behavior", metavar="NAME", help="the behavior of a run (default: that of the recording)")
    parser.add_argument(
        "--actions",
        choices=(_EITHER, "sampled", "deterministic"),
        default=_EITHER,
        help="how the game should choose actions: sampled, or deterministic (Deterministic Inference in Unity). By "
        "default both are accepted, and the command reports which one it found",
    )
    add_count(
        parser, "--decisions", "decisions", "use at most this many decisions (default: 2000, fewer with large images)"
    )
    add_raw_image_order(parser)
    add_results_dir(parser)
    parser.add_argument("--debug", action="store_true", help="print debug lines and tracebacks")


def run(arguments: argparse.Namespace) -> int:
    """Compare, print the findings, and return 0 if everything agrees, 1 if something differs, 2 for bad input."""
    try:
        with console(debug=arguments.debug, to_stderr=True):
            # Imported here to keep --help fast.
            from trajtrainer.tools.verify.likelihood import Mode
            from trajtrainer.tools.verify.report import format_verification
            from trajtrainer.tools.verify.verify import verify

            found = verify(
                arguments.model,
                arguments.demo,
                run=arguments.run,
                behavior=arguments.behavior,
                expected=None if arguments.actions == _EITHER else Mode(arguments.actions),
                decisions=arguments.decisions,
                results=arguments.results_dir,
                raw_image_order=RawImageOrder(arguments.raw_image_order),
            )
    except TrajtrainerError as error:
        print(f"error: {printable(str(error))}", file=sys.stderr)
        return _BAD_INPUT
    print("\n".join(map(one_line, format_verification(found, arguments.model))))
    return 0 if found.agrees else 1
