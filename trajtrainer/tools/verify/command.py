"""``trajtrainer verify MODEL --demo FILE``: checks whether a game acts like the policy in training, or why not."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from trajtrainer.core.errors import TrajtrainerError
from trajtrainer.core.image_order import RawImageOrder
from trajtrainer.core.printable import counted, one_line, printable
from trajtrainer.run.console import add_count, add_raw_image_order, add_results_dir, console

if TYPE_CHECKING:
    from trajtrainer.tools.verify.explain import Verdict
    from trajtrainer.tools.verify.verify import Verification

_BAD_INPUT = 2
_EITHER = "either"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "model",
        metavar="MODEL",
        help="the policy that the game should have: an .onnx, a .pt file, the folder of a run or of one of its "
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
        choices=("either", "sampled", "deterministic"),
        default=_EITHER,
        help="how the game should choose actions: sampled, or deterministic (Deterministic Inference in Unity). By "
        "default both are accepted, and the command reports which it is",
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
            from trajtrainer.tools.verify.likelihood import Mode  # late: --help does not need these
            from trajtrainer.tools.verify.verify import VerifyRequest, verify

            found = verify(
                VerifyRequest(
                    model=arguments.model,
                    demos=tuple(arguments.demo),
                    run=arguments.run,
                    behavior=arguments.behavior,
                    expected=None if arguments.actions == _EITHER else Mode(arguments.actions),
                    decisions=arguments.decisions,
                    results=arguments.results_dir,
                    raw_image_order=RawImageOrder(arguments.raw_image_order),
                )
            )
    except TrajtrainerError as error:
        print(f"error: {printable(str(error))}", file=sys.stderr)
        return _BAD_INPUT
    print("\n".join(map(one_line, format_verification(found, arguments.model))))
    return 0 if found.agrees else 1


def format_verification(found: Verification, model: str) -> Iterator[str]:
    """Yield the lines that describe the findings."""
    recording = found.recording
    first = "" if recording.is_whole else "the first "
    episodes = counted(int(recording.question.starts.sum()), "episode")
    yield f"{', '.join(map(str, recording.paths))}: {first}{counted(len(recording.actions), 'decision')} of {episodes}"
    yield from _verdict(found.verdict, model)
    for cause, text in found.training:
        yield f"DIFFERENT from training: {cause.value}"
        yield f"  {text}"
    for note in found.notes:
        yield f"note: {note}"


def _verdict(verdict: Verdict, model: str) -> Iterator[str]:
    plain, best = verdict.plain, verdict.best
    if verdict.cause is None:
        assert plain is not None
        yield f"AGREE: the game and the model {model}; actions are {plain.mode.value}"
        yield f"  {plain.figures.in_words(plain.mode)}"
        return
    yield f"DIFFERENT: the game and the model {model}"
    yield f"  likely cause: {verdict.cause.value}"
    if best is None:
        yield from _unexplained(verdict)
    elif best.change is not None:
        yield f"  {best.change.text}"
        before = (
            "the model does not accept the recorded observations"
            if plain is None
            else plain.figures.in_words(best.mode)
        )
        yield f"  before: {before}"
        yield f"  after:  {best.figures.in_words(best.mode)}"
    else:
        yield (
            "  The actions are sampled, and are not the most likely ones."
            if best.mode.value == "sampled"
            else "  The actions are the most likely ones (Deterministic Inference), and are not sampled."
        )
        for fit in filter(None, (plain, best)):
            yield f"  as {fit.mode.value} actions: {fit.figures.in_words(fit.mode)}"
    if verdict.as_good:
        others = [fit.change.text for fit in verdict.as_good[:3] if fit.change is not None]
        yield f"  Equally good explanation: {' '.join(others)}"
    if best is not None and best.change is not None:
        yield f"  {best.change.advice}"


def _unexplained(verdict: Verdict) -> Iterator[str]:
    assert verdict.plain is not None
    yield f"  as it is: {verdict.plain.figures.in_words(verdict.plain.mode)}"
    yield f"  None of {verdict.num_tried} changes explains the recorded actions. Either the game has another model, or"
    yield "  something else acted, such as a player or a heuristic, or several things are wrong at once."
    yield "  Check the Model field of Behavior Parameters. --run RUN compares with all checkpoints of a run."
