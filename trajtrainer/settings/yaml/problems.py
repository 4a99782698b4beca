"""Mistakes in a configuration: all of them in one error, each problem with its place."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from attrs import frozen

from trajtrainer.core.errors import SettingsError
from trajtrainer.core.printable import one_line


@frozen
class Place:
    """The place where something was written.

    Attributes:
        source: a file's name, or the command line option.
        line: counted from 1; None where there are no lines.
        path: the keys that lead there, as the user wrote them.
    """

    source: str
    line: int | None = None
    path: tuple[str, ...] = ()

    def below(self, *keys: str) -> Place:
        """Return the place of something inside, as far as it is known: the same line."""
        return Place(self.source, self.line, (*self.path, *keys))

    def __str__(self) -> str:
        where = self.source if self.line is None else f"{self.source}:{self.line}"
        return one_line(f"{where}: {'.'.join(self.path)}" if self.path else where)


@frozen
class Problem:
    """One thing that is wrong: where, what is there, and what would have been right."""

    place: Place
    message: str

    def __str__(self) -> str:
        return f"{self.place}: {self.message}"


class ConfigurationError(SettingsError):
    """A configuration with at least one problem; the message lists them all in the order of the file."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems: Sequence[Problem] = sorted(dict.fromkeys(problems), key=lambda each: each.place.line or 0)
        lines = [str(problem) for problem in self.problems]
        if len(lines) > 1:
            lines = [f"{len(lines)} problems in the configuration:", *(f"  {line}" for line in lines)]
        super().__init__("\n".join(lines))
