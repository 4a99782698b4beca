"""``trajtrainer tournament A B ...``: let trained models play against each other, with every pair on both sides."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from trajtrainer.core.printable import one_line
from trajtrainer.run.console import acting_settings, add_count, console
from trajtrainer.settings import flags
from trajtrainer.settings.evaluation import MAX_DECISIONS
from trajtrainer.settings.flags import ACTING_FLAGS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from trajtrainer.tools.tournament.tournament import Standing

_GAMES = 100


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "models",
        nargs="+",
        metavar="MODEL",
        help="two or more of these: a run id, the folder of a run or of one of its behaviors (the newest checkpoint of "
        "each), a .pt file of trajtrainer or ML-Agents, an .onnx, 'random' or 'heuristic'; 'RUN/*', in quotes, stands "
        "for all checkpoints of a run",
    )
    add_count(parser, "--games", "games", "games per pair, half of them on each side", default=_GAMES)
    add_count(
        parser,
        "--max-decisions",
        "decisions",
        "truncate a game after this many decisions of an agent; the model in the lead wins",
        default=MAX_DECISIONS,
    )
    parser.add_argument(
        "--json", metavar="FILE", type=Path, help="also write the results, including those of every pair, to this file"
    )
    parser.add_argument(
        "--plot", metavar="FILE.png", type=Path, help="plot ratings over steps to this file (needs the extra 'plot')"
    )
    flags.add_options(parser, ACTING_FLAGS)


def run(arguments: argparse.Namespace) -> int:
    """Play the games, print the table, and return the exit code.

    Raises:
        TrajtrainerError: a model or the environment does not exist or does not fit, or the environment failed.
    """
    with console(debug=hasattr(arguments, "debug"), quiet=hasattr(arguments, "quiet"), to_stderr=True):
        from trajtrainer.policies.folder.saved_policies import SCRIPTED

        settings = acting_settings(arguments, [word for word in arguments.models if word not in SCRIPTED][:1])
        from trajtrainer.run import acting

        settings = acting.for_inference(settings, arguments.models)
        outputs = {"--json": arguments.json, "--plot": arguments.plot}
        with acting.launching(settings, arguments.models, outputs) as players:
            from trajtrainer.tools.tournament.tournament import hold  # imports torch

            table, exit_code = hold(
                arguments.models,
                settings,
                players,
                games=arguments.games,
                max_decisions=arguments.max_decisions,
                json_file=arguments.json,
                picture=arguments.plot,
            )
    print("\n".join(format_table(table)))
    return exit_code


def format_table(table: Sequence[Standing]) -> Iterable[str]:
    """Yield the lines of the table, with text aligned to the left and numbers to the right."""
    truncated = any(row.score.truncated for row in table)
    columns = ["games", "wins", "draws", "losses", *["truncated"] * truncated]
    rows = [["model", "steps", *columns, "rating", ""]]
    for row in table:
        steps, score = "" if row.entrant.steps is None else f"{row.entrant.steps}", row.score._asdict()
        numbers = [steps, *(str(score[column]) for column in columns)]
        rows.append([one_line(row.entrant.name), *numbers, f"{row.rating:.1f}", f"± {row.uncertainty:.1f}"])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for name, *numbers in rows:
        cells = [f"{text:>{width}}" for text, width in zip(numbers, widths[1:], strict=True)]
        yield "  ".join([f"{name:<{widths[0]}}", *cells]).rstrip()
