"""Metadata and checks for the fields of settings classes, and errors about invalid configurations.

A check raises ``InvalidValueError`` with a ``Fault`` for each invalid field. The YAML reader turns faults into
``Problem``s with file, line and path, and reports all of them in one ``ConfigurationError``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, TypeVar

from attrs import Attribute, frozen

from trajtrainer.core.errors import PluginError, SettingsError
from trajtrainer.core.plugins import Registry
from trajtrainer.core.printable import one_line
from trajtrainer.core.spelling import closest

Row = TypeVar("Row")

AUTO: Literal["auto"] = "auto"
AutoOrNumber = float | Literal["auto"]
"""A number, or ``auto`` to choose the value during the run."""

OURS = {"dumped": "changed"}
"""Metadata of a field that ML-Agents does not have. A dump contains it only if it differs from its default."""
UNDUMPED = {"dumped": "never"}
"""Metadata of a field that files may contain. Dumps do not, because it has already been applied to other fields."""
INTERNAL = {"dumped": "never", "internal": True}
"""Metadata of a field that is not part of any file."""


def in_order(*names: str) -> Callable[[type, list[Attribute[Any]]], list[Attribute[Any]]]:
    """Return a ``field_transformer`` that puts the named fields of a class into this order.

    Dumps list keys in the order of the fields, and must list them in the same order as ML-Agents. Other fields keep
    their positions.
    """

    def transform(_cls: type, fields: list[Attribute[Any]]) -> list[Attribute[Any]]:
        named = {each.name: each for each in fields if each.name in names}
        ordered = iter(names)
        return [named[next(ordered)] if each.name in named else each for each in fields]

    return transform


@frozen
class Fault:
    """One invalid value.

    Attributes:
        path: path of the field relative to the object being built, such as ``("network_settings", "memory")``.
        message: the invalid value, and the values that are allowed.
    """

    path: tuple[str, ...]
    message: str

    def below(self, *keys: str) -> Fault:
        """Return the same fault with ``keys`` prepended to its path, for an enclosing object."""
        return Fault((*keys, *self.path), self.message)

    def __str__(self) -> str:
        return f"{'.'.join(self.path)}: {self.message}" if self.path else self.message


def mismatch(path: tuple[str, ...], found: object, expected: str) -> Fault:
    """Return the fault for an invalid value. ``expected`` completes the sentence "expected ..."."""
    return Fault(path, f"found {shown(found)}, expected {expected}")


def shown(value: object) -> str:
    """Format a value as in YAML, short enough for a message."""
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


class InvalidValueError(SettingsError):
    """One or more values of a settings object are invalid."""

    def __init__(self, *faults: Fault) -> None:
        super().__init__("; ".join(str(fault) for fault in faults))
        self.faults = faults


def raise_faults(faults: Iterable[Fault]) -> None:
    """Raise ``InvalidValueError`` with all faults, if there are any."""
    found = tuple(faults)
    if found:
        raise InvalidValueError(*found)


@frozen
class Check:
    """A validator for attrs that can describe the values it expects."""

    holds: Callable[[Any], bool]
    expected: str  # completes the sentence "expected ..."

    def __call__(self, _instance: Any, attribute: Attribute[Any], value: Any) -> None:
        """Raise ``InvalidValueError`` if the value is invalid."""
        if not self.holds(value):
            raise InvalidValueError(mismatch((attribute.name,), value, self.expected))


def satisfies(condition: Callable[[Any], bool], expected: str) -> Check:
    """Return a check that ``condition(value)`` is true. ``expected`` completes the sentence "expected ..."."""
    return Check(condition, expected)


def row_of(registry: Registry[Row] | Mapping[str, Row], name: str, *path: str) -> Row:
    """Return a registry's row with the given name.

    Args:
        registry: the registry.
        name: name of the row.
        path: path of the setting that contains the name, for the error.

    Raises:
        InvalidValueError: there is no such row, or the package that should provide it is broken.
    """
    if name not in registry:
        expected = f"one of {', '.join(registry)}{closest(name, registry)}"
        raise InvalidValueError(mismatch(path, name, expected))
    try:
        return registry[name]
    except PluginError as error:
        raise InvalidValueError(Fault(path, str(error))) from error


@frozen
class _Registered:
    registry: Registry[Any] | Mapping[str, Any]

    @property
    def expected(self) -> str:
        """The registered names, to complete the sentence "expected ..."."""
        return f"one of {', '.join(self.registry)}"

    def __call__(self, _instance: Any, attribute: Attribute[Any], value: Any) -> None:
        """Raise ``InvalidValueError`` if the value is invalid."""
        row_of(self.registry, value, attribute.name)


def registered(registry: Registry[Any] | Mapping[str, Any]) -> _Registered:
    """Return a check that a registry has a row with the given name, and that the row can be loaded."""
    return _Registered(registry)


def at_least(minimum: float, unit: str = "a number") -> Check:
    """Return a check for ``value >= minimum``."""
    return satisfies(lambda value: value >= minimum, f"{unit} of at least {minimum}")


def between(minimum: float, maximum: float) -> Check:
    """Return a check for ``minimum <= value <= maximum``."""
    return satisfies(lambda value: minimum <= value <= maximum, f"a number from {minimum} to {maximum}")


positive: Check = satisfies(lambda value: value > 0, "a number above 0")
positive_or_auto: Check = satisfies(lambda value: value == AUTO or value > 0, f"a number above 0, or {AUTO}")
not_negative: Check = at_least(0)
count: Check = at_least(1, "a whole number")
"""Check for sizes, intervals and counts: a whole number of at least 1."""
unlimited_count: Check = at_least(-1, "a whole number")
"""Check for limits where -1 means no limit."""
fraction: Check = between(0, 1)


def check_settings_class(cls: object, base: type[Any]) -> None:
    """Check that the settings class of a row can be read from YAML.

    Raises:
        TypeError: ``cls`` is not an attrs class that inherits from ``base``.
    """
    if not isinstance(cls, type) or not issubclass(cls, base) or "__attrs_attrs__" not in vars(cls):
        raise TypeError(f"its settings are {cls!r}, expected a subclass of {base.__name__} with @attrs.frozen")


@frozen
class Place:
    """A place in the user's input.

    Attributes:
        source: name of a file, or of a command-line option.
        line: line number from 1; None if the source has no lines.
        path: the keys that lead to the place, as the user wrote them.
    """

    source: str
    line: int | None = None
    path: tuple[str, ...] = ()

    def below(self, *keys: str) -> Place:
        """Return the place at ``keys`` below this one. It has the same line, because the exact line is not known."""
        return Place(self.source, self.line, (*self.path, *keys))

    def __str__(self) -> str:
        where = self.source if self.line is None else f"{self.source}:{self.line}"
        return one_line(f"{where}: {'.'.join(self.path)}" if self.path else where)


@frozen
class Problem:
    """One error in a configuration, with its place and a message."""

    place: Place
    message: str

    def __str__(self) -> str:
        return f"{self.place}: {self.message}"


class ConfigurationError(SettingsError):
    """A configuration is invalid. The message lists all problems in file order."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems: Sequence[Problem] = sorted(dict.fromkeys(problems), key=lambda each: each.place.line or 0)
        lines = [str(problem) for problem in self.problems]
        if len(lines) > 1:
            lines = [f"{len(lines)} problems in the configuration:", *(f"  {line}" for line in lines)]
        super().__init__("\n".join(lines))
