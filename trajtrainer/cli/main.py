"""The ``trajtrainer`` command: dispatches to the subcommands, and turns errors into messages and exit codes."""

import argparse
import errno
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from io import TextIOWrapper
from pathlib import Path
from typing import Any, NoReturn

from trajtrainer.cli.commands import COMMANDS
from trajtrainer.core.errors import TrajtrainerError
from trajtrainer.core.printable import printable
from trajtrainer.core.spelling import closest
from trajtrainer.core.version import __version__

INTERRUPTED = 130
_ONE_LINE = 10_000
# Error messages from the dynamic loader when it runs out of memory.
_NO_MEMORY = ("failed to map segment", "Cannot allocate memory")
_WRONG_USAGE = 2  # as in argparse
_ALIAS = "mlagents-learn"  # created by ``trajtrainer alias``


class _Parser(argparse.ArgumentParser):
    """Argument parser with short usage errors that suggest the option the user probably meant."""

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


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code: 0 for success, 1 for an error with a message, 2 for wrong usage."""
    arguments = sys.argv[1:] if argv is None else argv
    if argv is None and Path(sys.argv[0]).stem == _ALIAS:
        arguments = ["learn", *arguments]
    for stream in (sys.stdout, sys.stderr):
        # On Windows, files and pipes have an encoding without many characters, even some that our own tables contain.
        if isinstance(stream, TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="replace")
    try:
        name = _choose(arguments[:1])
        with COMMANDS.blaming(name):
            return parse(name, arguments[1:])()
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
            "programs, or raise the memory limit (ulimit -v, or that of the container).",
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
                return 1  # stdout is closed, as in 'trajtrainer ... | head' after head has exited
        raise
    finally:
        # If stdout is a closed pipe, the interpreter would print an error at exit while flushing the remaining output.
        try:
            if sys.stdout is not None:
                sys.stdout.flush()
        except OSError as error:
            if not _is_closed_pipe(error):
                raise
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _is_closed_pipe(error: OSError) -> bool:
    return error.errno in (errno.EPIPE, errno.EINVAL)  # EINVAL on Windows


def parser_of(name: str) -> argparse.ArgumentParser:
    """Build the parser for a command's arguments.

    Raises:
        PluginError: the package that should provide the command is broken.
    """
    command = COMMANDS[name]
    parser = _Parser(f"trajtrainer {name}", description=command.help)
    command.load().add_arguments(parser)
    return parser


def parse(name: str, argv: Sequence[str]) -> Callable[[], int]:
    """Parse the arguments of a command, and return a function that runs it.

    Raises:
        PluginError: the package that should provide the command is broken.
        SystemExit: the usage is wrong, or help was requested.
    """
    arguments = parser_of(name).parse_args(argv)
    run: Callable[[argparse.Namespace], int] = COMMANDS[name].load().run
    return lambda: run(arguments)


def _choose(first: Sequence[str]) -> str:
    """Return the command named by the first argument. The command's own parser handles the other arguments."""
    width = max(map(len, COMMANDS))
    parser = argparse.ArgumentParser(
        "trajtrainer",
        usage="%(prog)s [-h] [--version] COMMAND ...",
        description="Trains the agents of Unity ML-Agents, Godot, Gymnasium and PettingZoo environments.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="commands ('trajtrainer COMMAND --help' shows more):\n"
        + "\n".join(f"  {name:<{width}}  {_about(name)}" for name in COMMANDS),
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    parser.add_argument("command", metavar="COMMAND", help="the command to run")
    if not first:
        parser.print_help()
        parser.exit(_WRONG_USAGE)
    name: str = parser.parse_args(first).command
    if name not in COMMANDS:
        hint = closest(name, COMMANDS) or f"; to train with a configuration, use: trajtrainer learn {name}"
        parser.error(f"unknown command {name!r}, expected one of {', '.join(COMMANDS)}{hint}")
    return name


def _about(name: str) -> str:
    """Return the help text of a command or, to avoid importing a package, the name of the package that adds it."""
    package = COMMANDS.package(name)
    return f"Provided by the package {package}." if package else COMMANDS[name].help
