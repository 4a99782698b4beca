"""``trajtrainer completion SHELL``: prints a script that completes commands, options and files."""

import argparse

from trajtrainer.cli.commands import COMMANDS

SHELLS = ("bash", "zsh", "fish")
_HOW = """Save the script where the shell looks for it:
  bash  trajtrainer completion bash > ~/.local/share/bash-completion/completions/trajtrainer
  zsh   trajtrainer completion zsh > ~/.zfunc/_trajtrainer    (in ~/.zshrc, before compinit: fpath+=~/.zfunc)
  fish  trajtrainer completion fish > ~/.config/fish/completions/trajtrainer.fish
"""
_FILES = {"CONFIG", "FILE", "PATH", "MODEL", "RUN"}
_FOLDERS = {"DIR", "FOLDER"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _HOW
    parser.add_argument("shell", choices=SHELLS, help="the shell to print the script for")


def run(arguments: argparse.Namespace) -> int:
    """Print the script."""
    import shtab  # imported late, because no other command needs it

    # Normally, a command only builds its own parser, but completion needs the parsers of all commands.
    whole = argparse.ArgumentParser("trajtrainer")
    whole.add_argument("--version", action="version", version="")
    commands = whole.add_subparsers()
    for name in COMMANDS:
        if (command := COMMANDS.get(name)) is not None:  # None if its package is broken
            with COMMANDS.blaming(name):
                command.load().add_arguments(commands.add_parser(name, help=command.help, description=command.help))
    for action in _actions(whole):
        names = {action.metavar} if isinstance(action.metavar, str) else set(action.metavar or ())
        if names & (_FILES | _FOLDERS):
            files = shtab.FILE if names & _FILES else shtab.DIRECTORY
            action.complete = files  # type: ignore[attr-defined]  # read by shtab
    print(shtab.complete(whole, arguments.shell))
    return 0


def _actions(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    """Return the options and arguments of a parser and its subparsers."""
    found = []
    for action in parser._actions:
        found.append(action)
        if isinstance(action, argparse._SubParsersAction):
            found += [inner for each in action.choices.values() for inner in _actions(each)]
    return found
