"""The description of a command-line option."""

from __future__ import annotations

import enum
from functools import cache
from typing import Any

from attrs import frozen

from trajtrainer.settings.run import RunSettings


class ValueKind(enum.Enum):
    """The kind of value that an option takes."""

    TEXT = enum.auto()
    WHOLE = enum.auto()
    REAL = enum.auto()
    SWITCH = enum.auto()
    REST = enum.auto()  # all arguments that follow the option
    WORDS = enum.auto()  # the words that follow, as one string; a list of strings if the option is repeated
    REMOVED = enum.auto()  # accepted and ignored


@frozen
class Flag:
    """A command-line option.

    Attributes:
        option: the option as the user types it.
        path: path of the setting that the option sets ("section.field"); empty if it sets none.
        kind: the kind of value that the option takes.
        help: one sentence for the help text; if empty, the option is hidden.
        metavar: name of the value in the help text.
        group: heading under which the help text lists the option; None for argparse's own.
        note: warning to log when the option is used.
        choices: the allowed values, if they are limited.
    """

    option: str
    path: str
    kind: ValueKind
    help: str
    metavar: str | None = None
    group: str | None = None
    note: str | None = None
    choices: tuple[str, ...] | None = None

    @property
    def name(self) -> str:
        """Name of the option's attribute in the parsed arguments."""
        return self.option.removeprefix("--").replace("-", "_")

    @property
    def default(self) -> Any:
        """Value of the setting if the option is not given."""
        value: Any = _defaults() if self.path else None
        for key in self.path.split(".") if self.path else ():
            value = getattr(value, key, None)  # an optional section may be None
        return value


@cache
def _defaults() -> RunSettings:
    return RunSettings()
