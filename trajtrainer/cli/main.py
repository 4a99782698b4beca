"""The ``trajtrainer`` command: finds the subcommand, and turns errors into messages and exit codes."""

import argparse
import errno
import importlib
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from io import TextIOWrapper
from pathlib import Path
from typing import Any, NoReturn

from attrs import frozen

from trajtrainer.core.errors import TrajtrainerError
from trajtrainer.core.printable import printable
from trajtrainer.core.version import __version__
from trajtrainer.settings.checks import closest

INTERRUPTED = 130
_ONE_LINE = 10_000
# What the loader of shared libraries says if there is not enough memory.
_NO_MEMORY = ("failed to map segment", "Cannot allocate memory")
_WRONG_USAGE = 2  # as argparse has it
_ALIAS = "mlagents-learn"  # created by ``trajtrainer alias``


@frozen
class Command:
    """A subcommand.

    Attributes:
        name: as it is typed.
        help: one sentence.
        module: where it is.
    """

    name: str
    help: str
    module: str

    def load(self) -> Any:
        """The command's module, with ``add_arguments(parser)`` and ``run(arguments) -> exit code``.

        It is imported only if the command is used, and imports nothing slow before ``run``, so that help is quick.
        """
        return importlib.import_module(self.module)

    def parser(self) -> argparse.ArgumentParser:
        """A parser of the command's arguments."""
        parser = _Parser(f"trajtrainer {self.name}", description=self.help)
        self.load().add_arguments(parser)
        return parser

    def parse(self, argv: Sequence[str]) -> Callable[[], int]:
        """Parse the arguments, and return the command ready to run.

        Raises:
            SystemExit: wrong usage, or help.
        """
        arguments = self.parser().parse_args(argv)
        run: Callable[[argparse.Namespace], int] = self.load().run
        return lambda: run(arguments)


class _Parser(argparse.ArgumentParser):
    """Keeps messages about wrong usage short, and suggests the option that was probably meant."""

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
                self.error("'--resume auto' needs an '=': write --resume=auto")
            shown = [action for action in self._actions if action.help != argparse.SUPPRESS]
            options = [option for action in shown for option in action.option_strings]
            hints = [closest(text.partition("=")[0], options) for text in unknown if text.startswith("-")]
            self.error(f"unrecognized arguments: {' '.join(unknown)}{''.join(hints)}")
        return parsed


COMMANDS: tuple[Command, ...] = (
    Command(
        "learn", "Train behaviors, as mlagents-learn does. Options override the configuration.", "trajtrainer.cli.learn"
    ),
    Command(
        "config",
        "Check a configuration and print it with all defaults filled in, without starting anything. Takes the options "
        "of learn.",
        "trajtrainer.cli.config",
    ),
    Command(
        "init",
        "Write a first configuration: one that fits an environment (--env), with explanations, or a copy of a shipped "
        "one.",
        "trajtrainer.tools.init.command",
    ),
    Command(
        "export",
        "Export the policies of a checkpoint or of a whole run, also from ML-Agents: as the .onnx that Unity loads, or "
        "as source code (C, C#, JavaScript, GDScript).",
        "trajtrainer.cli.export",
    ),
    Command(
        "import",
        "Import a policy of Stable-Baselines3, CleanRL, rsl_rl or any .onnx: as the .onnx that Unity loads, or as a "
        "run.",
        "trajtrainer.tools.importing.command",
    ),
    Command(
        "inspect", "Show whether Unity will load exported .onnx files, and what they expect.", "trajtrainer.cli.inspect"
    ),
    Command(
        "verify",
        "Check with a recording (.demo) whether a game acts as its policy does in training, and if not, find out why.",
        "trajtrainer.tools.verify.command",
    ),
    Command(
        "evaluate",
        "Measure how good trained models are: play episodes, and compare the models. Trains nothing, and writes "
        "nothing into their runs.",
        "trajtrainer.tools.evaluate.command",
    ),
    Command(
        "record",
        "Record what a policy does in an environment (.demo). Trains nothing.",
        "trajtrainer.tools.record.command",
    ),
    Command(
        "demo",
        "Show what is in recordings (.demo), merge and split them, and convert them from and to other formats.",
        "trajtrainer.tools.demo.command",
    ),
    Command(
        "tournament",
        "Let trained models play against each other, every pair on both sides, and rate them. Trains nothing, and "
        "writes nothing into their runs.",
        "trajtrainer.tools.tournament.command",
    ),
    Command(
        "report",
        "Write an HTML page about runs: curves over all seeds, settings, evaluations, and where the time went.",
        "trajtrainer.tools.report.command",
    ),
    Command(
        "search",
        "Find settings that learn well: try settings within the ranges of a configuration, several at once.",
        "trajtrainer.tools.search.command",
    ),
    Command("push", "Upload a run to the Hugging Face Hub, with a model card.", "trajtrainer.tools.hub.push_command"),
    Command(
        "pull",
        "Download a run from the Hugging Face Hub into the results folder.",
        "trajtrainer.tools.hub.pull_command",
    ),
    Command(
        "alias",
        "Create a command mlagents-learn that does the same as 'trajtrainer learn', for scripts that call it.",
        "trajtrainer.cli.alias",
    ),
    Command("plot", "Plot curves of runs, over all seeds, as a picture.", "trajtrainer.tools.report.plot_command"),
    Command(
        "completion",
        "Print a script that lets bash, zsh or fish complete commands and options.",
        "trajtrainer.cli.completion",
    ),
    Command(
        "page",
        "Show runs in the browser, live: curves, lessons, evaluations, logs, files.",
        "trajtrainer.tools.page.command",
    ),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code: 0 done, 1 an error that was explained, 2 wrong usage."""
    arguments = sys.argv[1:] if argv is None else argv
    if argv is None and Path(sys.argv[0]).stem == _ALIAS:
        arguments = ["learn", *arguments]
    for stream in (sys.stdout, sys.stderr):
        # Files and pipes on Windows have an encoding without many characters, even of our own tables.
        if isinstance(stream, TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="replace")
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
            f"error: There is not enough memory for this command ({str(error) or 'MemoryError'}). Close other "
            "programs, or raise the memory limit of this one (ulimit -v, or that of its container).",
            file=sys.stderr,
        )
        return 1
    except KeyboardInterrupt:
        print("Interrupted.", file=sys.stderr)
        return INTERRUPTED
    except OSError as error:
        if _is_closed_pipe(error):
            try:
                print(flush=True)
            except OSError:
                return 1  # stdout it is: in 'trajtrainer ... | head', head has read enough
        raise
    finally:
        # The interpreter would fail at its exit if what is left for a closed pipe could not be written.
        try:
            if sys.stdout is not None:
                sys.stdout.flush()
        except OSError as error:
            if not _is_closed_pipe(error):
                raise
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _is_closed_pipe(error: OSError) -> bool:
    return error.errno in (errno.EPIPE, errno.EINVAL)  # the second on Windows


def _choose(first: Sequence[str]) -> Command:
    """The command that the first argument names. The other arguments are for the command's own parser."""
    width = max(len(command.name) for command in COMMANDS)
    parser = argparse.ArgumentParser(
        "trajtrainer",
        usage="%(prog)s [-h] [--version] COMMAND ...",
        description="Trains the agents of Unity ML-Agents, Godot, Gymnasium and PettingZoo environments.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="commands ('trajtrainer COMMAND --help' shows more):\n"
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
        hint = closest(name, by_name) or f"; to train with a configuration, use: trajtrainer learn {name}"
        parser.error(f"unknown command {name!r}, expected one of {', '.join(by_name)}{hint}")
    return by_name[name]
