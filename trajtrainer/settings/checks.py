"""What the fields of settings classes carry: metadata, and checks that keep senseless values out of every object.

A check raises ``InvalidValueError``, which knows the field; the YAML reader adds file, line and path to it.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, TypeVar

from attrs import Attribute, frozen

from trajtrainer.core.errors import PluginError, SettingsError
from trajtrainer.core.plugins import Registry
from trajtrainer.core.printable import one_line

Row = TypeVar("Row")

OURS = {"dumped": "changed"}
"""Metadata of a field that ML-Agents does not know: a dump has it only where it is not at its default."""
UNDUMPED = {"dumped": "never"}
"""Metadata of a field that a file may have but no dump does, because other fields then say the same."""
INTERNAL = {"dumped": "never", "internal": True}
"""Metadata of a field that is no part of any file."""


def in_order(*names: str) -> Callable[[type, list[Attribute[Any]]], list[Attribute[Any]]]:
    """Return a ``field_transformer`` that brings the named fields of a class into this order.

    Files have the keys in the order of the fields, which is ML-Agents'. The places that the named fields take among
    the others stay theirs.
    """

    def transform(_cls: type, fields: list[Attribute[Any]]) -> list[Attribute[Any]]:
        named = {each.name: each for each in fields if each.name in names}
        ordered = iter(names)
        return [named[next(ordered)] if each.name in named else each for each in fields]

    return transform


@frozen
class Fault:
    """One value that does not fit.

    Attributes:
        path: the field, relative to the object that was being built (``("network_settings", "memory")``).
        message: what is there and what would have fitted.
        compared: of a check across fields, the other fields that it looked at.
    """

    path: tuple[str, ...]
    message: str
    compared: tuple[tuple[str, ...], ...] = ()

    def below(self, *keys: str) -> Fault:
        """Return the same fault, seen from an object that has this one at ``keys``."""
        return Fault((*keys, *self.path), self.message, tuple((*keys, *path) for path in self.compared))

    def __str__(self) -> str:
        return f"{'.'.join(self.path)}: {self.message}" if self.path else self.message


def misfit(path: tuple[str, ...], found: object, expected: str, *compared: tuple[str, ...]) -> Fault:
    """Return the fault of a value; ``expected`` completes the sentence "expected ..."."""
    return Fault(path, f"found {shown(found)}, expected {expected}", compared)


def shown(value: object) -> str:
    """Return a value as it would stand in YAML, short enough for a message."""
    if value is None:
        return "nothing (null)"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "a mapping" if value else "{}"
    if isinstance(value, list) and not all(isinstance(item, int | float) for item in value):
        return "a list"
    text = repr(value) if isinstance(value, str) else str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def nearest(word: str, known: Iterable[str], likeness: float = 0.6) -> str | None:
    """Return the known word that is most like this one, if one is at least that much (from 0 to 1)."""
    by_lower = {each.lower(): each for each in known}
    matches = difflib.get_close_matches(word.lower(), by_lower, n=1, cutoff=likeness)
    return by_lower[matches[0]] if matches else None


def closest(word: str, known: Iterable[str]) -> str:
    """Return "; did you mean X?" if a known word is close to this one, else nothing."""
    match = nearest(word, known)
    return f"; did you mean {match}?" if match else ""


class InvalidValueError(SettingsError):
    """Values of one settings object that do not fit."""

    def __init__(self, *faults: Fault) -> None:
        super().__init__("; ".join(str(fault) for fault in faults))
        self.faults = faults


def refuse(faults: Iterable[Fault]) -> None:
    """Raise all faults at once; do nothing if there are none.

    Raises:
        InvalidValueError: there is at least one.
    """
    found = tuple(faults)
    if found:
        raise InvalidValueError(*found)


class Check(Protocol):
    """A validator of attrs that can say what it asks for."""

    @property
    def expected(self) -> str:
        """Complete the sentence "expected ..."."""

    def __call__(self, _instance: Any, attribute: Attribute[Any], value: Any) -> None:
        """Raise ``InvalidValueError`` if the value does not fit."""


@frozen
class _Condition:
    holds: Callable[[Any], bool]
    expected: str

    def __call__(self, _instance: Any, attribute: Attribute[Any], value: Any) -> None:
        if not self.holds(value):
            raise InvalidValueError(misfit((attribute.name,), value, self.expected))


@frozen
class _Registered:
    registry: Registry[Any]

    @property
    def expected(self) -> str:
        return f"one of {', '.join(self.registry)}"

    def __call__(self, _instance: Any, attribute: Attribute[Any], value: Any) -> None:
        row_of(self.registry, value, attribute.name)


def satisfies(condition: Callable[[Any], bool], expected: str) -> Check:
    """Return a check that ``condition(value)`` holds; ``expected`` says in words what it asks for."""
    return _Condition(condition, expected)


def row_of(registry: Registry[Row], name: str, *path: str) -> Row:
    """Return a registry's row of this name, which stands at ``path``.

    Raises:
        InvalidValueError: there is none, or the package that should bring it is broken.
    """
    if name not in registry:
        expected = f"one of {', '.join(registry)}{closest(name, registry)}"
        raise InvalidValueError(misfit(path, name, expected))
    try:
        return registry[name]
    except PluginError as error:
        raise InvalidValueError(Fault(path, str(error))) from error


def registered(registry: Registry[Any]) -> Check:
    """Return a check that a registry has a row of this name, which can be loaded."""
    return _Registered(registry)


def at_least(minimum: float, unit: str = "a number") -> Check:
    """Return ``value >= minimum``."""
    return satisfies(lambda value: value >= minimum, f"{unit} of at least {minimum}")


def between(minimum: float, maximum: float) -> Check:
    """Return ``minimum <= value <= maximum``."""
    return satisfies(lambda value: minimum <= value <= maximum, f"a number from {minimum} to {maximum}")


positive: Check = satisfies(lambda value: value > 0, "a number above 0")
not_negative: Check = at_least(0)
count: Check = at_least(1, "a whole number")
"""For sizes, intervals and numbers of things: at least 1."""
unlimited_count: Check = at_least(-1, "a whole number")
"""For limits where -1 means that there is none."""
fraction: Check = between(0, 1)


def check_settings_class(cls: object, base: type[Any]) -> None:
    """Raise if a row's settings cannot be read from YAML.

    Raises:
        TypeError: they are no class of attrs below ``base``.
    """
    if not isinstance(cls, type) or not issubclass(cls, base) or "__attrs_attrs__" not in vars(cls):
        raise TypeError(f"its settings {cls!r} are no subclass of {base.__name__} that is decorated with attrs.frozen")


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
