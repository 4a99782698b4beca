"""Errors for callers in Python: what they say of command line options, said of arguments and settings instead."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager

from trajtrainer.core.errors import TrajtrainerError
from trajtrainer.settings.flag_table import FLAGS, Flag, Kind

# A command to be typed keeps its options.
_COMMAND = r"(?:trajtrainer|mlagents-learn) [a-z][^.;\n]*"
_OPTION = r"(?:the )?(?P<option>--[a-z][a-z-]*)(?:=(?P<value>[^\s,;]*[^\s,;.:)]))?(?: flag| parameter)?(?![\w-])"
_MENTION = re.compile(rf"{_COMMAND}|(?<![\w-]){_OPTION}")
_BY_OPTION = {flag.option: flag for flag in FLAGS}
# Arguments whose names are not those of the options.
_OTHER_NAMES = {"env": ("environment", "file_name")}


@contextmanager
def python_names(arguments: Collection[str]) -> Iterator[None]:
    """Let errors through, with the names that a caller in Python knows.

    An option becomes the argument that stands for it, or, without one, the key in the settings.

    Args:
        arguments: names of all arguments that the caller may give.
    """
    try:
        yield
    except TrajtrainerError as error:
        error.args = tuple(in_python(part, arguments) if isinstance(part, str) else part for part in error.args)
        raise


def in_python(text: str, arguments: Collection[str]) -> str:
    """Return a message with arguments in place of options.

    >>> in_python("Use --resume, or choose another --run-id, or set --base-port.", ("resume", "run_id"))
    'Use resume=True, or choose another run_id, or set env_settings.base_port.'
    """

    def told(mention: re.Match[str]) -> str:
        flag = _BY_OPTION.get(mention["option"] or "")
        return mention[0] if flag is None else _told(flag, mention["value"], arguments)

    return _MENTION.sub(told, text)


def _told(flag: Flag, value: str | None, arguments: Collection[str]) -> str:
    name = next((name for name in _OTHER_NAMES.get(flag.name, (flag.name,)) if name in arguments), None)
    if name is not None:
        if flag.kind is Kind.SWITCH:
            return f"{name}=True"
        if value is None:
            return name
        return f'{name}="{value}"' if flag.kind is Kind.TEXT else f"{name}={value}"
    if not flag.path:
        return flag.option
    if flag.kind is Kind.SWITCH:
        return f"{flag.path}: true"
    return flag.path if value is None else f"{flag.path}: {value}"
