"""docs/reference/settings: a page per section of the YAML, from the classes of the settings."""

from __future__ import annotations

import enum
import inspect
import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, get_args, get_origin

import attrs

from scripts.reference.docstrings import MADE, marked
from trajtrainer.settings.components import ALGORITHMS, REWARD_SIGNALS, Hyperparameters, RewardSignalSettings
from trajtrainer.settings.environment import SAMPLERS, Sampler
from trajtrainer.settings.flags import FLAGS
from trajtrainer.settings.run import RunSettings
from trajtrainer.settings.search import SearchSettings
from trajtrainer.settings.yaml.commented import meaning
from trajtrainer.settings.yaml.structuring import fields_of

_HEAD = f"""# Settings

{MADE}

Every key of the YAML file: its meaning, when to change it, its default and its values. Each section has a page:

```yaml
default_settings: {{...}}     # defaults for all behaviors
behaviors:
  NAME:                     # as in Behavior Parameters, without ?team=
    trainer_type: ppo
    hyperparameters: {{...}}  # of the trainer_type
    network_settings: {{...}}
    reward_signals: {{extrinsic: {{...}}}}
env_settings: {{...}}
```

`trajtrainer config FILE` checks a file and prints it with all defaults filled in. Keys that ML-Agents does not know are
comments there. Options on the command line override the file. You can write whole numbers as `5e4`.
"""
_RANGES = """
The key `ranges` of this section says which settings to try: see [Search](../../train/search.md).
"""
_Section = tuple[tuple[str, ...], type[Any]]
_WORDS = {bool: "`true`, `false`", int: "whole number", float: "number", str: "text"}


def settings_pages() -> dict[str, str]:
    """Return path in docs/reference/settings -> page."""
    sections: list[_Section] = [*walk(RunSettings, (), set()), (("search",), SearchSettings)]
    places = {cls: (_file(path), anchor(heading(path))) for path, cls in sections}
    pages = defaultdict[str, list[str]](list)
    for path, cls in sections:
        pages[_file(path)].append(table(path, cls, places))
    index = pages.pop("index.md")
    made = {name: "\n".join([_title(name), MADE + "\n", *tables]).rstrip() + "\n" for name, tables in pages.items()}
    made["search.md"] += _RANGES
    return {"index.md": "\n".join([_HEAD, *index, _contents(sections)]), **made}


def _file(path: tuple[str, ...]) -> str:
    """Return the file name of a section's page, which depends on its top-level key or its key in a behavior."""
    if path[:2] == ("behaviors", "NAME") and len(path) > 2:
        hyperparameters = re.match(r"hyperparameters \((\w+)\)", path[2])
        if hyperparameters:
            return f"{hyperparameters[1]}.md"
        return f"{path[2]}.md" if path[2] in ("network_settings", "reward_signals") else "behaviors.md"
    return f"{path[0]}.md" if path else "index.md"


def _title(file: str) -> str:
    name = file.removesuffix(".md")
    return f"# {f'hyperparameters: {name}' if name in ALGORITHMS.builtin else name}\n"


def _contents(sections: Sequence[_Section]) -> str:
    """Return a table with links to all sections, with the anchors from when all sections were on one page."""
    rows = [
        f"| [{heading(path)}]({_file(path)}{anchor(heading(path))}){{ {anchor(heading(path))} }} | "
        f"{_sentence(_intro(cls))} |"
        for path, cls in sections
        if path
    ]
    return "\n".join(["## All sections", "", "| section | meaning |", "| --- | --- |", *rows, ""])


def walk(cls: type[Any], path: tuple[str, ...], seen: set[type[Any]]) -> Iterator[_Section]:
    """Yield the path and class of each section; if a class occurs several times, only the first path."""
    seen.add(cls)
    yield path, cls
    for field in fields_of(cls):
        for name, inner in _below(field):
            if inner not in seen and field.name != "default_settings":  # which is a behavior, too
                yield from walk(inner, (*path, *name), seen)


def _below(field: attrs.Attribute[Any]) -> Iterator[tuple[tuple[str, ...], type[Any]]]:
    """Yield the sections below a key: their names and classes."""
    for cls in _classes(field.type):
        if cls is Hyperparameters:
            yield from (((f"{field.name} ({name})",), row.settings) for name, row in ALGORITHMS.builtin.items())
        elif cls is RewardSignalSettings:
            yield from (((field.name, name), row.settings) for name, row in REWARD_SIGNALS.builtin.items())
        elif cls in get_args(Sampler):
            (name,) = (name for name, sampler in SAMPLERS.items() if sampler is cls)
            yield (field.name, f"sampler_parameters ({name})"), cls
        else:
            yield (field.name, *(["NAME"] if get_origin(_bare(field.type)) is dict else [])), cls


def _bare(declared: Any) -> Any:
    """Return an optional type without None."""
    (first, *more) = [each for each in get_args(declared) if each is not type(None)] or [declared]
    return first if type(None) in get_args(declared) and not more else declared


def _classes(declared: Any) -> Iterator[type[Any]]:
    if isinstance(declared, type) and attrs.has(declared):
        yield declared
    for inner in get_args(declared):
        yield from _classes(inner)


def heading(path: tuple[str, ...]) -> str:
    """Return the heading of a section: its path, without the part up to NAME where that is unambiguous."""
    below = path[2:]
    is_clear = below and below[0] not in attrs.fields_dict(RunSettings)
    return ".".join(below if is_clear else path) or "The whole file"


def anchor(heading: str) -> str:
    """Return the anchor that Markdown gives a heading."""
    return "#" + re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


_Places = Mapping[type[Any], tuple[str, str]]
"""Class -> its page and its anchor on the page."""


def table(path: tuple[str, ...], cls: type[Any], places: _Places) -> str:
    """A section: its heading, what it is for, and its keys.

    Raises:
        LookupError: a key has no description.
    """
    where = f" In the file: `{'.'.join(path)}`." if path else ""
    rows = [_row(path, cls, field, places) for field in fields_of(cls)]
    head = [f"## {heading(path)}", "", _intro(cls) + where, "", "| key | default | values | meaning |"]
    return "\n".join([*head, "| --- | --- | --- | --- |", *rows, ""])


def _intro(cls: type[Any]) -> str:
    paragraph = marked(re.split(r"\n\s*\n", inspect.getdoc(cls) or "")[0]).replace("](operate/", "](../../operate/")
    return re.sub(r"^`[\w.]+`: (.)", lambda found: found[1].upper(), paragraph)


def _row(path: tuple[str, ...], cls: type[Any], field: attrs.Attribute[Any], places: _Places) -> str:
    text = marked(meaning(cls, field.name)).replace("|", "\\|")
    option = next((flag.option for flag in FLAGS if flag.help and flag.path == ".".join((*path, field.name))), None)
    cells = [f"`{field.name}`", _default(cls, field), _value(field, places), _sentence(text)]
    return "| " + " | ".join(cells) + (f" Option `{option}`." if option else "") + " |"


def _default(cls: type[Any], field: attrs.Attribute[Any]) -> str:
    default = field.default
    if default is attrs.NOTHING:
        return "required"
    if default is not None and isinstance(default, attrs.Factory):  # type: ignore[arg-type]
        default = getattr(cls(), field.name) if default.takes_self else default.factory()
    return _shown(default)


def _shown(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, enum.Enum):
        return f"`{value.value}`"
    if isinstance(value, dict):
        return ", ".join(f"`{key}`" for key in value) or "none"
    if attrs.has(type(value)):
        return "its defaults"
    if value in ("", []):
        return "none"
    return f"`{value if isinstance(value, str) else json.dumps(value)}`"


def _value(field: attrs.Attribute[Any], places: _Places) -> str:
    """Describe the values that a key may have."""
    declared = _bare(field.type)
    if isinstance(declared, type) and issubclass(declared, enum.Enum):
        return ", ".join(f"`{member.value}`" for member in declared)
    for _, cls in _below(field):
        kind = "list" if get_origin(declared) is list else "mapping"
        return f"[{kind}]({''.join(places[cls])})"
    validator = getattr(field.validator, "validator", field.validator)  # within attrs.validators.optional
    expected = getattr(validator, "expected", None)
    if expected is None:
        return _WORDS.get(declared, "mapping" if get_origin(declared) is dict else "list")
    return re.sub(r"^(a )?(whole )?(?=number)", "whole " if declared is int else "", expected.removeprefix("a "))


def _sentence(text: str) -> str:
    text = text[:1].upper() + text[1:]
    return text if text.endswith(".") else f"{text}."
