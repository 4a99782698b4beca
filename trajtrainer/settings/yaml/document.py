"""Reads YAML into a tree of values with their places in the file, and converts scalars to Python values.

The same conversions apply to command-line options. They reject ambiguous values, so that mistakes do not go unnoticed.
"""

from __future__ import annotations

import enum
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, Literal, NoReturn

import yaml
from attrs import define, frozen

from trajtrainer.core.spelling import closest
from trajtrainer.settings.checks import AUTO, ConfigurationError, InvalidValueError, Place, Problem, mismatch

_MAPPING_TAG = "tag:yaml.org,2002:map"
_SEQUENCE_TAG = "tag:yaml.org,2002:seq"
_STRING_TAG = "tag:yaml.org,2002:str"
_MERGE_TAG = "tag:yaml.org,2002:merge"
# ML-Agents versions from 2020 and 2021 wrote the Python class of ``behaviors`` to ``configuration.yaml``. Only its
# items are read, and nothing is executed.
_DUMPED_BEHAVIORS = tuple(
    f"tag:yaml.org,2002:python/object/apply:{name}"
    for name in ("mlagents.trainers.settings.DefaultTrainerDict", "collections.defaultdict")
)
_MAX_NODES = 20_000  # nested aliases can expand to a tree that does not fit in memory

_NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
_LARGEST_INT = 2**63 - 1


@frozen
class Written:
    """A scalar that YAML did not read as text, and its text: ``run_id: 007`` means the text "007", not the number 7."""

    value: object
    text: str


@define
class PlacedValue:
    """A value and its place.

    Attributes:
        content: dict[str, PlacedValue], list[PlacedValue], or a scalar: None, text, or ``Written`` for all other kinds.
        place: the place of the value or, in a mapping, of its key.
    """

    content: Any
    place: Place

    @property
    def mapping(self) -> dict[str, PlacedValue]:
        """The entries of the mapping; empty if the content is not a mapping."""
        return self.content if isinstance(self.content, dict) else {}

    def at(self, *path: str) -> PlacedValue:
        """Return the value at a path of keys; a value of None if the path does not exist."""
        found = self
        for key in path:
            found = found.mapping.get(key) or PlacedValue(None, self.place)
        return found

    def plain(self) -> Any:
        """Return the value without places."""
        if isinstance(self.content, dict):
            return {key: entry.plain() for key, entry in self.content.items()}
        if isinstance(self.content, list):
            return [entry.plain() for entry in self.content]
        return self.content

    def locate(self, path: tuple[str, ...]) -> Place:
        """Return the place of the value at ``path``. If it does not exist, use the line of the last existing key."""
        if not path:
            return self.place
        entries = self.mapping
        if isinstance(self.content, list):
            entries = {str(index): entry for index, entry in enumerate(self.content)}
        inner = entries.get(path[0])
        return inner.locate(path[1:]) if inner else self.place.below(*path)


def from_mapping(value: object, place: Place) -> PlacedValue:
    """Build a tree from plain Python or numpy values that all come from one place."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, Mapping):
        return PlacedValue(
            {str(key): from_mapping(inner, place.below(str(key))) for key, inner in value.items()}, place
        )
    if isinstance(value, list | tuple):
        return PlacedValue([from_mapping(inner, place.below(str(index))) for index, inner in enumerate(value)], place)
    return PlacedValue(value, place)


def read(text: str, filename: str) -> tuple[PlacedValue | None, list[Problem]]:
    """Read one YAML document.

    Keys are always read as text, because a behavior may be called ``on`` or ``1``.

    Returns:
        The tree (None for an empty document), and the problems that do not prevent reading (duplicate keys, tags).

    Raises:
        ConfigurationError: the text is not YAML.
    """
    try:
        loader = _Loader(text, filename)
        node = loader.get_single_node()
        if node is None:
            return None, []
        return loader.entry(node, loader.root), loader.problems
    except yaml.YAMLError as error:
        raise ConfigurationError([_syntax_problem(error, text, filename)]) from error
    except RecursionError as error:
        raise ConfigurationError([Problem(Place(filename), "is nested too deeply")]) from error


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader, except that it builds ``PlacedValue`` objects instead of plain values."""

    def __init__(self, text: str, filename: str) -> None:
        super().__init__(text)
        self.root = Place(filename)
        self.problems: list[Problem] = []
        self._open: set[int] = set()
        self._composed = 0
        self._visited = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        self._composed += 1
        if self._composed > _MAX_NODES:  # also counts keys; stops before reading the rest
            self._raise_too_large()
        return super().compose_node(parent, index)

    def entry(self, node: yaml.Node, place: Place) -> PlacedValue:
        if id(node) in self._open:
            self._complain(place, "an anchor contains itself")
            return PlacedValue(None, place)
        self._visited += 1
        if self._visited > _MAX_NODES:
            self._raise_too_large()
        self._open.add(id(node))
        try:
            return PlacedValue(self._content(node, place), place)
        finally:
            self._open.remove(id(node))

    def _content(self, node: yaml.Node, place: Place) -> Any:
        if isinstance(node, yaml.MappingNode) and node.tag == _MAPPING_TAG:
            return self._mapping(node, place)
        if isinstance(node, yaml.SequenceNode) and node.tag == _SEQUENCE_TAG:
            return [self.entry(item, _at(item, place, str(index))) for index, item in enumerate(node.value)]
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, place)
        if node.tag in _DUMPED_BEHAVIORS:
            pairs = node.value if isinstance(node, yaml.MappingNode) else ()
            for key, value in pairs:
                if key.value == "dictitems":
                    return self.entry(value, place).content
            self._complain(
                place,
                "this is the configuration.yaml of a run of ML-Agents from 2020 or 2021 that had no settings for any "
                "behavior; expected the settings of at least one. Use the file that the run was started with",
            )
            return {}
        self._complain(place, f"the tag {node.tag} is not supported")
        return None

    def _scalar(self, node: yaml.ScalarNode, place: Place) -> Any:
        try:
            value = self.construct_object(node)
            if isinstance(value, int):
                str(value)  # fails for numbers with too many digits to be shown in a message
        except ValueError:  # an invalid date such as May 32, or a number with too many digits
            return node.value
        except yaml.YAMLError:
            self._complain(place, f"the tag {node.tag} is not supported")
            return None
        return value if value is None or node.tag == _STRING_TAG else Written(value, node.value)

    def _mapping(self, node: yaml.MappingNode, place: Place) -> dict[str, PlacedValue]:
        content: dict[str, PlacedValue] = {}
        for key, value in node.value:
            if key.tag == _MERGE_TAG:
                continue
            if not isinstance(key, yaml.ScalarNode):
                self._complain(_at(key, place), "a key must be text, not a list or mapping")
                continue
            inner = _at(key, place, key.value)
            if key.value in content:
                first = content[key.value].place.line
                self._complain(inner, f"this key is already on line {first}; remove one of the two")
            else:
                content[key.value] = self.entry(value, inner)
        for merged in self._merged(node, place):
            for name, entry in merged.items():
                content.setdefault(name, entry)
        return content

    def _merged(self, node: yaml.MappingNode, place: Place) -> Iterator[dict[str, PlacedValue]]:
        """Yield the entries that ``<<: *anchor`` adds. The mapping's own keys and earlier anchors take precedence."""
        for key, value in node.value:
            if key.tag != _MERGE_TAG:
                continue
            for source in value.value if isinstance(value, yaml.SequenceNode) else [value]:
                if isinstance(source, yaml.MappingNode):
                    yield self.entry(source, place).mapping
                else:
                    self._complain(_at(key, place), "<< expects a mapping or a list of mappings")

    def _raise_too_large(self) -> NoReturn:
        raise ConfigurationError(
            [Problem(self.root, f"has more than {_MAX_NODES} keys and values, counting aliases in full")]
        )

    def _complain(self, place: Place, message: str) -> None:
        self.problems.append(Problem(place, message))


def _at(node: yaml.Node, place: Place, *keys: str) -> Place:
    """Return the place of a node at ``keys`` below ``place``."""
    return Place(place.source, node.start_mark.line + 1, (*place.path, *keys))


def _syntax_problem(error: yaml.YAMLError, text: str, filename: str) -> Problem:
    if isinstance(error, yaml.reader.ReaderError):
        broken_line = text.count("\n", 0, error.position) + 1
        return Problem(Place(filename, broken_line), f"the character {text[error.position]!r} is not allowed in YAML")
    if not isinstance(error, yaml.MarkedYAMLError):
        return Problem(Place(filename), f"is not YAML: {error}")
    mark = error.problem_mark or error.context_mark
    line: int | None = None if mark is None else mark.line + 1
    message = ", ".join(part for part in (error.context, error.problem) if part)
    if "'\\t'" in message:
        return Problem(Place(filename, line), f"there is a tab; YAML allows only spaces for indentation ({message})")
    return Problem(Place(filename, line), f"is not YAML: {message}")


def invalid_value(found: object, expected: str) -> InvalidValueError:
    """Return the error for an invalid value. The caller adds the path."""
    return InvalidValueError(mismatch((), unwrapped(found), expected))


def unwrapped(value: object) -> object:
    """Return the plain value of a scalar, without its text."""
    if isinstance(value, list):
        return [unwrapped(item) for item in value]
    return value.value if isinstance(value, Written) else value


def _number(value: object) -> int | float | None:
    """Return the value as a number, even if it is text (PyYAML reads ``5e4`` as text); None if it is not a number."""
    plain = unwrapped(value)
    if isinstance(plain, str) and _NUMBER.fullmatch(plain) and len(plain) < 100:
        plain = float(plain) if re.search("[.eE]", plain) else int(plain)
    if isinstance(plain, bool) or not isinstance(plain, int | float):
        return None
    return plain


def leaves(value: object, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the dotted path and value of each leaf of nested mappings. An empty mapping is a leaf.

    For example, the path is "behaviors.Ball.max_steps".
    """
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from leaves(inner, f"{path}.{key}" if path else str(key))
    else:
        yield path, value


def whole_number(value: object, _type: object = None) -> int:
    """Convert ``64``, ``20_000``, ``5e4`` or ``5.0e5`` to an int, but reject ``64.7`` and ``true``.

    Raises:
        InvalidValueError: the value is not a whole number, or needs more than 64 bits.
    """
    number = _number(value)
    if isinstance(number, float) and (not math.isfinite(number) or number != int(number)):
        number = None
    if number is None:
        raise invalid_value(value, "a whole number")
    if abs(number) > _LARGEST_INT:
        raise invalid_value(value, "a whole number of at most 64 bits")
    return int(number)


def real_number(value: object, _type: object = None) -> float:
    """Convert any finite number, including ``3e-4``, to a float.

    Raises:
        InvalidValueError: the value is not a finite number.
    """
    number = _number(value)
    if number is None or abs(number) > 1e308:
        raise invalid_value(value, "a number")
    result = float(number)
    if not math.isfinite(result):
        raise invalid_value(value, "a finite number")
    return result


def number_or_auto(value: object, _type: object = None) -> float | Literal["auto"]:
    """Convert any finite number to a float, and return ``auto`` unchanged.

    Raises:
        InvalidValueError: the value is neither a finite number nor ``auto``.
    """
    plain = unwrapped(value)
    if isinstance(plain, str):
        if plain == AUTO:
            return AUTO
        raise invalid_value(value, f"a number or {AUTO}")
    return real_number(value)


def truth_value(value: object, _type: object = None) -> bool:
    """Convert ``true`` or ``false`` to a bool, but reject quoted text.

    Raises:
        InvalidValueError: the value is neither ``true`` nor ``false``.
    """
    plain = unwrapped(value)
    if not isinstance(plain, bool):
        raise invalid_value(value, "true or false, without quotes" if isinstance(plain, str) else "true or false")
    return plain


def text(value: object, _type: object = None) -> str:
    """Return the text of any scalar, exactly as it was written: ``run_id: 007`` is the run "007".

    Raises:
        InvalidValueError: the value is a mapping, a list or null.
    """
    if isinstance(value, Written):
        return value.text
    if not isinstance(value, str):
        raise invalid_value(value, "text")
    return value


def text_or_number(value: object, _type: object = None) -> str | int:
    """Convert a whole number to an int, and any other scalar to text.

    Raises:
        InvalidValueError: the value is a mapping, a list or null.
    """
    plain = unwrapped(value)
    return plain if isinstance(plain, int) and not isinstance(plain, bool) else text(value)


def enum_member(value: object, enumeration: Any) -> enum.Enum:
    """Return the enum member with this value.

    Raises:
        InvalidValueError: there is no such member.
    """
    names: dict[str, enum.Enum] = {member.value: member for member in enumeration}
    name = value.text if isinstance(value, Written) else value
    if isinstance(name, str) and name in names:
        return names[name]
    hint = closest(name, names) if isinstance(name, str) else ""
    raise invalid_value(value, f"one of {', '.join(names)}{hint}")
