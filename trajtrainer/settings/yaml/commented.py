"""Descriptions of settings, from the docstrings of their classes, and configurations with descriptions as comments."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import attrs
import yaml

from trajtrainer.core.printable import one_line
from trajtrainer.settings.components import ALGORITHMS, REWARD_SIGNALS, Hyperparameters
from trajtrainer.settings.environment import Sampler
from trajtrainer.settings.run import RunSettings
from trajtrainer.settings.suggestions import Choice, Section
from trajtrainer.settings.trainer import TrainerSettings
from trajtrainer.settings.yaml.convert import to_mapping
from trajtrainer.settings.yaml.structuring import CONVERTER, fields_of, sections_of

_WIDTH = 118
_COMPLETE = """\
# All settings with their values. ML-Agents does not have the settings in comments. Sections in comments are off, and
# their values are defaults or examples. To use a setting, uncomment it together with the sections that contain it.
"""
_Explained = set[tuple[type[Any], str]]


def meaning(cls: type[Any], name: str) -> str:
    """Return the description of a key from the docstring of the class, a base class or another algorithm.

    Raises:
        LookupError: no docstring describes the key.
    """
    others = (row.settings for row in ALGORITHMS.builtin.values() if issubclass(cls, Hyperparameters))
    for each in chain.from_iterable(found.__mro__ for found in chain([cls], others)):
        if name in (described := attributes(each)):
            return described[name]
    raise LookupError(f"The docstring of {cls.__name__} has no entry for {name} under Attributes.")


def attributes(cls: type[Any]) -> dict[str, str]:
    """Return the section ``Attributes`` of a class docstring: name -> text."""
    for title, body in parts(cls.__doc__ or ""):
        if title == "Attributes":
            return dict(entries(body))
    return {}


def parts(docstring: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the parts of a docstring as (title, lines). Text outside of any section has an empty title."""
    title, body = "", list[str]()
    for line in inspect.cleandoc(docstring).splitlines():
        if re.fullmatch(r"(Args|Attributes|Raises|Returns|Yields):", line):
            yield title, body
            title, body = line[:-1], []
        elif title and line and not line.startswith(" "):  # the end of an indented section
            yield title, body
            title, body = "", [line]
        else:
            body.append(line)
    yield title, body


def entries(body: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield the names in a section with their texts."""
    text = inspect.cleandoc("\n".join(["", *body]))
    for entry in re.split(r"\n(?=\S)", text):
        name, _, rest = entry.partition(":")
        yield name.strip(), " ".join(rest.split())


def write(
    head: Sequence[str],
    behaviors: Mapping[str, Section],
    about: Mapping[str, str],
    others: Mapping[str, Mapping[str, Any]],
) -> str:
    """Format a configuration as YAML with comments.

    Args:
        head: lines to write as comments at the top.
        behaviors: the section ``behaviors``.
        about: name of a behavior -> its description in one line.
        others: ``env_settings`` and ``engine_settings``, each as key -> value.
    """
    lines = [*_comment(head, 0), "behaviors:"]
    for name, section in behaviors.items():
        lines += [*_comment([about[name]], 1), f"  {_scalar(name)}:", *_behavior(section)]
    for section_name, values in others.items():
        if values:
            described = meaning(RunSettings, section_name)
            lines += [*_comment([_sentence(described)], 0), f"{section_name}:"]
            lines += _section(
                {key: Choice(value) for key, value in values.items()}, _class_of(RunSettings, section_name), 1
            )
    return "\n".join(lines) + "\n"


def complete(settings: RunSettings) -> str:
    """Format a configuration as YAML with every key.

    The text is the result of ``convert.dump``, which ML-Agents can read, plus comments. Unused keys that ML-Agents does
    not have are written as comments with their defaults, which can be uncommented. Unused sections are written as
    comments with all of their keys, in which required keys have example values.
    """
    return _COMPLETE + "\n".join(_used(settings, to_mapping(settings), set())) + "\n"


def _used(settings: Any, mapping: Mapping[str, Any], explained: _Explained) -> Iterator[str]:
    """Yield the lines of a settings object. Keys that are not in its ``mapping`` become comments.

    Args:
        settings: the object.
        mapping: plain values of the object.
        explained: classes and keys that have already been explained and get no further comment.
    """
    for key, value in mapping.items():
        inner = getattr(settings, key, None)
        if isinstance(value, dict) and attrs.has(type(inner)):
            yield f"{_scalar(key)}:"
            yield from _indented(_used(inner, value, explained))
        elif value and isinstance(inner, dict) and not any(isinstance(each, Sampler) for each in inner.values()):
            yield f"{_scalar(key)}:"
            for name, each in inner.items():
                yield f"  {_scalar(name)}:"
                yield from _indented(_indented(_used(each, value[name], explained)))
        else:
            yield from _dumped(key, value)
    for field in fields_of(type(settings)):
        if field.name not in mapping:
            yield from (f"# {line}" for line in _unused(type(settings), field, explained))


def _unused(cls: type[Any], field: attrs.Attribute[Any], explained: _Explained) -> Iterator[str]:
    """Yield the line of a key with its default, or the lines of a section with optional sections as comments."""
    described = "" if (cls, field.name) in explained else _first_sentence(cls, field.name)
    explained.add((cls, field.name))
    default: Any = field.default
    value = default.factory() if isinstance(default, attrs.Factory) else default  # type: ignore[arg-type]
    sections = sections_of(field)
    if not sections or value in ([], {}):
        value = field.metadata.get("example", value)
        needed = "Required. " if "example" in field.metadata else ""
        (line,) = _dumped(field.name, CONVERTER.unstructure(value))
        yield f"{line}  # {needed}{described}" if described else line
        return
    yield f"{field.name}:  # {described}" if described else f"{field.name}:"
    for inner in fields_of(sections[0]):
        prefix = "  # " if inner.default is None and sections_of(inner) else "  "
        yield from (f"{prefix}{line}" for line in _unused(sections[0], inner, explained))


def _dumped(key: str, value: Any) -> Iterator[str]:
    text: str = yaml.safe_dump({key: value}, sort_keys=False)
    yield from text.splitlines()


def _indented(lines: Iterable[str]) -> Iterator[str]:
    return (f"  {line}" for line in lines)


def _first_sentence(cls: type[Any], key: str) -> str:
    """Return the first sentence of a key's description; empty if the key's package does not describe it."""
    try:
        described = _sentence(meaning(cls, key))
    except LookupError:
        return ""
    return re.split(r"(?<=\.)(?<!et al\.) ", described)[0]


def _behavior(section: Section) -> Iterator[str]:
    hyperparameters = ALGORITHMS[section["trainer_type"].value].settings
    for key, value in section.items():
        if isinstance(value, Choice):
            yield from _entry(key, value, TrainerSettings, 2)
            continue
        if key == "hyperparameters":
            described = _sentence(re.split(r"\n\s*\n", hyperparameters.__doc__ or "")[0])
        else:
            described = _sentence(meaning(TrainerSettings, key))
        yield from _comment([described], 2)
        yield f"    {key}:"
        if key == "reward_signals":
            for name, signal in value.items():
                yield from _comment(["The rewards that the environment gives."], 3)
                yield f"      {name}:"
                yield from _section(signal, REWARD_SIGNALS[name].settings, 4)
        else:
            cls = hyperparameters if key == "hyperparameters" else _class_of(TrainerSettings, key)
            yield from _section(value, cls, 3)


def _class_of(cls: type[Any], key: str) -> type[Any]:
    return next(each for field in fields_of(cls) if field.name == key for each in sections_of(field))


def _section(section: Section, cls: type[Any], depth: int) -> Iterator[str]:
    for key, choice in section.items():
        yield from _entry(key, choice, cls, depth)


def _entry(key: str, choice: Choice, cls: type[Any], depth: int) -> Iterator[str]:
    lines = [_sentence(meaning(attrs.resolve_types(cls), key))]
    yield from _comment([*lines, f"Here: {choice.reason}."] if choice.reason else lines, depth)
    value = _scalar(choice.value)
    yield f"{'  ' * depth}{key}: {value}"


def _comment(lines: Sequence[str], depth: int) -> Iterator[str]:
    prefix = "  " * depth + "# "
    for line in lines:
        yield from (textwrap.wrap(one_line(line), _WIDTH, initial_indent=prefix, subsequent_indent=prefix) or ["#"])


def _scalar(value: Any) -> str:
    """Format a value as YAML on one line."""
    style = '"' if isinstance(value, str) and value.splitlines() not in ([], [value]) else None  # has line breaks
    text: str = yaml.safe_dump(value, default_flow_style=True, default_style=style, width=float("inf"))
    return text.removesuffix("\n...\n").rstrip("\n")


def _sentence(text: str) -> str:
    """Turn the text of a docstring into a complete sentence."""
    text = " ".join(text.split()).replace("``", "")
    text = text[:1].upper() + text[1:]
    return text if text.endswith(".") else f"{text}."
