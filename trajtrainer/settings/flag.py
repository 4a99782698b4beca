"""What an option of the command line is."""

from __future__ import annotations

import enum
from typing import Any

from attrs import frozen

from trajtrainer.settings.run import RunSettings

_DEFAULTS = RunSettings()


class ValueKind(enum.Enum):
    """How an option takes its value."""

    TEXT = enum.auto()
    WHOLE = enum.auto()
    REAL = enum.auto()
    SWITCH = enum.auto()
    REST = enum.auto()  # everything that follows it
    WORDS = enum.auto()  # the words that follow it are one text; if it is repeated, there is a list of texts
    REMOVED = enum.auto()  # accepted and ignored


class HelpSection(enum.Enum):
    """Headings of the help."""

    RUN = "options"
    ENGINE = "Engine Configuration"
    TORCH = "Torch Configuration"


@frozen
class Flag:
    """One option.

    Attributes:
        option: as the user types it.
        path: of the setting that it sets ("section.field"); empty if it sets nothing.
        kind: how it takes its value.
        help: one sentence; empty hides the option.
        metavar: name of its value in the help.
        group: heading in the help.
        note: warning when it is used.
        choices: its values, if there are only some.
    """

    option: str
    path: str
    kind: ValueKind
    help: str
    metavar: str | None = None
    group: HelpSection = HelpSection.RUN
    note: str | None = None
    choices: tuple[str, ...] | None = None

    @property
    def name(self) -> str:
        """Name of the attribute in parsed arguments."""
        return self.option.removeprefix("--").replace("-", "_")

    @property
    def default(self) -> Any:
        """Value of the setting without the option."""
        value: Any = _DEFAULTS if self.path else None
        for key in self.path.split(".") if self.path else ():
            value = getattr(value, key, None)  # a section may be left out as a whole
        return value
