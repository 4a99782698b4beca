"""docs/reference/command-line.md and docs/reference/cli: a page for each command, from its parser."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator

from scripts.reference.docstrings import MADE
from trajtrainer.cli.commands import COMMANDS, CommandRow
from trajtrainer.cli.main import parser_of

_HEAD = f"""# Command line

{MADE}

`trajtrainer COMMAND --help` prints the same in a terminal. `trajtrainer --version` prints the version.

```bash
trajtrainer learn builtin:ppo/3DBall --run-id=first
```

| command | meaning |
| --- | --- |
"""
_USUAL = ("positional arguments", "options")


def command_pages() -> dict[str, str]:
    """Return path in docs/reference -> page."""
    commands = COMMANDS.builtin
    rows = [f"| [`{name}`](cli/{name}.md) | {command.help} |" for name, command in commands.items()]
    pages = {f"cli/{name}.md": _page(name, command) for name, command in commands.items()}
    more = "See also: [exit codes](exit-codes.md) and [environment variables](environment-variables.md).\n"
    return {"command-line.md": _HEAD + "\n".join([*rows, "", more]), **pages}


def _page(name: str, command: CommandRow) -> str:
    parser = parser_of(name)
    lines = [f"# trajtrainer {name}", "", MADE, "", _escaped(command.help), ""]
    return "\n".join([*lines, *_described(parser, "##")])


def _described(parser: argparse.ArgumentParser, level: str) -> Iterator[str]:
    """Yield the lines about a parser: usage, arguments, options, and its own commands."""
    visible = [action for action in parser._actions if action.help != argparse.SUPPRESS and action.dest != "help"]
    commands = [action for action in visible if isinstance(action, argparse._SubParsersAction)]
    required = [action for action in visible if action.option_strings and action.required]
    words = [_use(action) for action in visible if not action.option_strings]
    options = ["[OPTIONS]"] if any(action.option_strings and not action.required for action in visible) else []
    yield from ("```text", " ".join([parser.prog, *options, *map(_named, required), *words]), "```", "")
    for group in parser._action_groups:
        actions = [each for each in group._group_actions if each in visible and each not in commands]
        if not actions:
            continue
        is_positional = not actions[0].option_strings
        title = (
            ("Arguments" if is_positional else "Options") if group.title in _USUAL else str(group.title).capitalize()
        )
        yield from (
            f"{level} {title}",
            "",
            f"| {'argument' if is_positional else 'option'} | meaning |",
            "| --- | --- |",
        )
        yield from (f"| {_names(action)} | {_meaning(parser, action)} |" for action in actions)
        yield ""
    for action in commands:
        about = {choice.dest: choice.help or "" for choice in action._choices_actions}
        for name, inner in action.choices.items():
            yield from (f"{level} {name}", "", _escaped(_sentence(about[name])), "")
            yield from _described(inner, level + "#")


def _use(action: argparse.Action) -> str:
    """Return an argument as it appears in the usage, such as ``[NAME ...]``."""
    name = _value(action)
    if action.nargs in ("+", "*"):
        return f"{name} [{name} ...]" if action.nargs == "+" else f"[{name} ...]"
    return f"[{name}]" if action.nargs == "?" else name


def _named(action: argparse.Action) -> str:
    return " ".join([action.option_strings[-1], _value(action)]).strip()


def _value(action: argparse.Action) -> str:
    """Return the placeholder of an option's value; "" for a switch."""
    if action.nargs == 0:
        return ""
    if isinstance(action.metavar, tuple):
        return " ".join(action.metavar)
    if action.metavar:
        return action.metavar
    return "|".join(map(str, action.choices)) if action.choices else action.dest.upper()


def _names(action: argparse.Action) -> str:
    value = _value(action)
    if not action.option_strings:
        return f"`{value}`"
    separator = " " if not value else "=" if action.nargs is None and len(action.option_strings[-1]) > 2 else " "
    written = [f"{name}{' ' if len(name) == 2 else separator}{value}".strip() for name in action.option_strings]
    return ", ".join(f"`{each}`".replace("|", "\\|") for each in written)


def _meaning(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    values = {**vars(action), "prog": parser.prog, "choices": ", ".join(map(str, action.choices or ()))}
    text = _sentence(_escaped((action.help or "") % values))
    return re.sub(r"docs/(\w+/[\w/-]+\.md(?:#[\w-]+)?)", r"[docs/\1](../../\1)", text)


def _escaped(text: str) -> str:
    """Convert help text to Markdown, without changing how code and HTML are shown."""
    text = re.sub(r"(?<!\w)'([^'\s][^']*)'(?!\w)", r"`\1`", text)  # quoted words are code
    text = re.sub(r"(?<![\w`-])--[a-z][\w-]*(=\w+)?", r"`\g<0>`", text)
    parts = re.split(r"(`[^`]*`)", text)
    shown = [part if part.startswith("`") else re.sub(r"([<*_|\[\]])", r"\\\1", part) for part in parts]
    return "".join(part.replace("|", "\\|") if part.startswith("`") else part for part in shown)


def _sentence(text: str) -> str:
    text = text[:1].upper() + text[1:]
    return text if text.endswith(".") else f"{text}."
