"""The ``trajtrainer`` command: finds the sub-command, and turns errors into messages and exit codes."""

from __future__ import annotations

import argparse
import errno
import importlib
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from attrs import frozen

from trajtrainer.core.errors import TrajtrainerError
from trajtrainer.core.printable import printable
from trajtrainer.core.version import __version__
from trajtrainer.settings.checks import closest

INTERRUPTED = 130
_ONE_LINE = 10_000
# What the loader of shared libraries says when there is no room for one.
_NO_MEMORY = ("failed to map segment", "Cannot allocate memory")
_WRONG_USAGE = 2  # as argparse has it
_ALIAS = "mlagents-learn"  # by ``trajtrainer alias``


@frozen
class Command:
    """A sub-command.

    Attributes:
        name: as it is typed.
        module: has ``add_arguments(parser)`` and ``run(arguments) -> exit code``. It is imported when the command is
            used, and imports nothing slow before ``run``, so that help is quick.
        help: one sentence.
    """

    name: str
    module: str
    help: str

    def parse(self, argv: Sequence[str]) -> Callable[[], int]:
        """Return the command ready to run with these arguments.

        Raises:
            SystemExit: wrong usage, or help.
        """
        module = importlib.import_module(self.module)
        parser = _Parser(f"trajtrainer {self.name}", description=self.help)
        module.add_arguments(parser)
        arguments = parser.parse_args(argv)
        run: Callable[[argparse.Namespace], int] = module.run
        return lambda: run(arguments)


class _Parser(argparse.ArgumentParser):
    """Keeps messages about wrong usage short, and names the option that a misspelled one is close to."""

    def error(self, message: str) -> NoReturn:
        arguments = argparse.HelpFormatter(prog="", width=_ONE_LINE)
        arguments.add_usage(None, self._get_positional_actions(), [], prefix="")
        usage = " ".join(["usage:", self.prog, "[OPTIONS]", *arguments.format_help().split()])
        self.exit(2, f"{usage}\n{self.prog}: error: {message}\n'{self.prog} --help' lists all options.\n")

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        parsed, unknown = self.parse_known_args(args, namespace)
        if unknown:
            words = list(sys.argv[1:] if args is None else args)
            if "auto" in words and words[words.index("auto") - 1] == "--resume":
                self.error("--resume is a switch; write --resume=auto, with the '='")
            options = [
                option
                for action in self._actions
                if action.help != argparse.SUPPRESS
                for option in action.option_strings
            ]
            hints = [closest(text.partition("=")[0], options) for text in unknown if text.startswith("-")]
            self.error(f"unrecognized arguments: {' '.join(unknown)}{''.join(hints)}")
        return parsed


COMMANDS: tuple[Command, ...] = (
    Command(
        "learn",
        "trajtrainer.cli.learn",
        "Train behaviors, as mlagents-learn does. Options given here go before those of the configuration.",
    ),
    Command(
        "config",
        "trajtrainer.cli.config",
        "Check a configuration and print it with all defaults filled in, starting nothing. Takes the options of learn.",
    ),
    Command(
        "init",
        "trajtrainer.cli.init",
        "Write a first configuration: look at an environment (--env) and explain what fits it, or copy a shipped one.",
    ),
    Command(
        "export",
        "trajtrainer.cli.export",
        "Write the .onnx that Unity loads of a checkpoint or of a whole run, also of ML-Agents, or source code of its "
        "policy (C, C#, JavaScript, GDScript).",
    ),
    Command(
        "import",
        "trajtrainer.cli.import_policy",
        "Make the .onnx that Unity loads, or a run, of a policy of Stable-Baselines3, CleanRL, rsl_rl or any .onnx.",
    ),
    Command(
        "inspect", "trajtrainer.cli.inspect", "Tell whether Unity will load exported .onnx files and what they expect."
    ),
    Command(
        "verify",
        "trajtrainer.cli.verify",
        "Tell whether a game acts as its policy does in training, by a recording of it (.demo) and, if not, why.",
    ),
    Command(
        "evaluate",
        "trajtrainer.cli.evaluate",
        "Tell how good trained models are: play episodes, and compare them. Nothing is trained, and nothing is written "
        "into their runs.",
    ),
    Command(
        "record",
        "trajtrainer.cli.record",
        "Record what a policy does in an environment (.demo). Nothing is trained.",
    ),
    Command(
        "demo",
        "trajtrainer.cli.demo",
        "Look into recordings (.demo), merge and split them, and convert them from and to other formats.",
    ),
    Command(
        "tournament",
        "trajtrainer.cli.tournament",
        "Let trained models play against each other, every pair on both sides, and rate them. Nothing is trained, and "
        "nothing is written into their runs.",
    ),
    Command(
        "report",
        "trajtrainer.cli.report",
        "Write one page of HTML about runs: curves over all seeds, settings, evaluations, where the time went.",
    ),
    Command(
        "search",
        "trajtrainer.cli.search",
        "Find settings that learn well: try some within the ranges of a configuration, several at once.",
    ),
    Command("push", "trajtrainer.cli.push", "Bring a run to the Hugging Face hub, with a model card."),
    Command("pull", "trajtrainer.cli.pull", "Fetch a run from the Hugging Face hub into the results folder."),
    Command(
        "alias",
        "trajtrainer.cli.alias",
        "Write a command mlagents-learn that does what 'trajtrainer learn' does, for scripts that call it.",
    ),
    Command("plot", "trajtrainer.cli.plot", "Draw curves of runs, over all seeds, as a picture."),
    Command(
        "completion",
        "trajtrainer.cli.completion",
        "Print a script with which bash, zsh or fish complete commands and options.",
    ),
    Command(
        "page", "trajtrainer.cli.page", "Show runs in the browser, live: curves, lessons, evaluations, logs, files."
    ),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code: 0 done, 1 an error that was explained, 2 wrong usage."""
    arguments = sys.argv[1:] if argv is None else argv
    if argv is None and Path(sys.argv[0]).stem == _ALIAS:
        arguments = ["learn", *arguments]
    try:
        return _run(arguments)
    finally:
        _give_up_closed_pipe()


def _run(arguments: Sequence[str]) -> int:
    try:
        return _choose(arguments[:1]).parse(arguments[1:])()
    except SystemExit as exit_:  # argparse: help, version or wrong usage
        return exit_.code if isinstance(exit_.code, int) else 1
    except TrajtrainerError as error:
        print(f"error: {printable(str(error))}", file=sys.stderr)
        return 1
    except (MemoryError, ImportError) as error:
        if isinstance(error, ImportError) and not any(text in str(error) for text in _NO_MEMORY):
            raise
        if "--debug" in arguments:
            traceback.print_exc()
        print(
            f"error: There is not enough memory for this command ({str(error) or 'MemoryError'}). End other programs, "
            "or raise the limit of this one (ulimit -v, the memory of its container).",
            file=sys.stderr,
        )
        return 1
    except KeyboardInterrupt:
        print("Interrupted.", file=sys.stderr)
        return INTERRUPTED


def _give_up_closed_pipe() -> None:
    """Keep the interpreter from failing at its end because what is left for stdout cannot be written."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError as error:
        if error.errno not in (errno.EPIPE, errno.EINVAL):  # the latter is Windows' word for a closed pipe
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _choose(first: Sequence[str]) -> Command:
    """Return the command that the first argument names; the rest is for the command's own parser."""
    width = max(len(command.name) for command in COMMANDS)
    parser = argparse.ArgumentParser(
        "trajtrainer",
        usage="%(prog)s [-h] [--version] COMMAND ...",
        description="Trains the agents of Unity ML-Agents, Gymnasium, and PettingZoo environments.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="commands ('trajtrainer COMMAND --help' tells more):\n"
        + "\n".join(f"  {command.name:<{width}}  {command.help}" for command in COMMANDS),
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    parser.add_argument("command", metavar="COMMAND", help="what to do")
    if not first:
        parser.print_help()
        parser.exit(_WRONG_USAGE)
    name = parser.parse_args(first).command
    by_name = {command.name: command for command in COMMANDS}
    if name not in by_name:
        hint = closest(name, by_name) or f"; to train with a configuration: trajtrainer learn {name}"
        parser.error(f"unknown command {name!r}, expected one of {', '.join(by_name)}{hint}")
    return by_name[name]
