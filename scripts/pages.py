"""``python scripts/pages.py`` writes the reference (docs/reference) from docstrings, and the code in
docs/explanation/ppo.md."""

from __future__ import annotations

import enum
import inspect
import json
import pkgutil
import re
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args, get_origin

import attrs

import trajtrainer
from trajtrainer.settings.components import ALGORITHMS, REWARD_SIGNALS, Hyperparameters, RewardSignalSettings
from trajtrainer.settings.environment import SAMPLERS, Sampler
from trajtrainer.settings.flags import FLAGS
from trajtrainer.settings.run import RunSettings
from trajtrainer.settings.yaml.commented import entries, meaning, parts
from trajtrainer.settings.yaml.structuring import is_internal

DOCS = Path(__file__).resolve().parents[1] / "docs"
_MADE = "<!-- Made by scripts/pages.py from the docstrings of the classes: change those. -->"

SETTINGS_HEAD = f"""# All settings

{_MADE}

Every key of the YAML: what it means, when to change it, its default and its range. `trajtrainer config FILE` prints a
file with all defaults filled in, those of keys that ML-Agents does not know as comments, or everything that is wrong
with it. An option of the command line goes before the file. Whole numbers may be written as `5e4`.

```yaml
default_settings: {{...}}     # what lies under every behavior, and serves those that are not listed
behaviors:
  NAME:                     # as in Behavior Parameters, without ?team=
    trainer_type: ppo
    hyperparameters: {{...}}  # of the trainer_type
    network_settings: {{...}}
    reward_signals: {{extrinsic: {{...}}}}
env_settings: {{...}}
```
"""
API_HEAD = f"""# Python reference

{_MADE}

Everything that `import trajtrainer` has. How the parts go together: [From Python](../../guides/python.md).
"""
_ALIASES = {
    "Statistics": "The type `dict[str, NDArray[np.floating]]`: what an algorithm reports, values by tag. A summary "
    "writes their mean."
}
_Section = tuple[tuple[str, ...], type[Any]]
_WORDS = {bool: "`true`, `false`", int: "whole number", float: "number", str: "text"}


def settings_page() -> str:
    """Return docs/reference/settings/index.md."""
    sections = list(_sections(RunSettings, (), set()))
    places = {cls: _anchor(_heading(path)) for path, cls in sections}
    return "\n".join([SETTINGS_HEAD, *(_table(path, cls, places) for path, cls in sections)]).rstrip() + "\n"


def _sections(cls: type[Any], path: tuple[str, ...], seen: set[type[Any]]) -> Iterator[_Section]:
    """Yield place and class of every section, each class at the first place that has it."""
    seen.add(cls)
    yield path, cls
    for field in _fields(cls):
        for name, inner in _below(field):
            if inner not in seen and field.name != "default_settings":  # which is a behavior, too
                yield from _sections(inner, (*path, *name), seen)


def _fields(cls: type[Any]) -> list[attrs.Attribute[Any]]:
    return [field for field in attrs.fields(attrs.resolve_types(cls)) if not is_internal(field)]


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
    """Return a type without its None."""
    (first, *more) = [each for each in get_args(declared) if each is not type(None)] or [declared]
    return first if type(None) in get_args(declared) and not more else declared


def _classes(declared: Any) -> Iterator[type[Any]]:
    if isinstance(declared, type) and attrs.has(declared):
        yield declared
    for inner in get_args(declared):
        yield from _classes(inner)


def _heading(path: tuple[str, ...]) -> str:
    """Return what a section is called: its place, below NAME where that is clear."""
    below = path[2:]
    is_clear = below and below[0] not in attrs.fields_dict(RunSettings)
    return ".".join(below if is_clear else path) or "At the top"


def _anchor(heading: str) -> str:
    """Return the anchor that Markdown gives a heading."""
    return "#" + re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


def _table(path: tuple[str, ...], cls: type[Any], places: Mapping[type[Any], str]) -> str:
    told = _marked(re.split(r"\n\s*\n", inspect.getdoc(cls) or "")[0]).replace("](guides/", "](../../guides/")
    intro = re.sub(r"^`\w+`: (.)", lambda found: found[1].upper(), told) + (f" `{'.'.join(path)}`" if path else "")
    level = "##" if len(path) < 2 or path[1:] == ("NAME",) else "###"
    rows = [_row(path, cls, field, places) for field in _fields(cls)]
    head = [f"{level} {_heading(path)}", "", intro, "", "| key | default | value | |", "| --- | --- | --- | --- |"]
    return "\n".join([*head, *rows, ""])


def _row(path: tuple[str, ...], cls: type[Any], field: attrs.Attribute[Any], places: Mapping[type[Any], str]) -> str:
    text = _marked(meaning(cls, field.name)).replace("|", "\\|")
    option = next((flag.option for flag in FLAGS if flag.help and flag.path == ".".join((*path, field.name))), None)
    cells = [f"`{field.name}`", _default(cls, field), _value(field, places), _sentence(text)]
    return "| " + " | ".join(cells) + (f" Option `{option}`." if option else "") + " |"


def _default(cls: type[Any], field: attrs.Attribute[Any]) -> str:
    default = field.default
    if default is attrs.NOTHING:
        return "required"
    if isinstance(default, attrs.Factory):  # type: ignore[arg-type]
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


def _value(field: attrs.Attribute[Any], places: Mapping[type[Any], str]) -> str:
    """Return in words what a key may have."""
    declared = _bare(field.type)
    if isinstance(declared, type) and issubclass(declared, enum.Enum):
        return ", ".join(f"`{member.value}`" for member in declared)
    for _, cls in _below(field):
        return f"[{'list' if get_origin(declared) is list else 'mapping'}]({places[cls]})"
    validator = getattr(field.validator, "validator", field.validator)  # within attrs.validators.optional
    expected = getattr(validator, "expected", None)
    if expected is None:
        return _WORDS.get(declared, "list")
    return re.sub(r"^(a )?(whole )?(?=number)", "whole " if declared is int else "", expected.removeprefix("a "))


def _sentence(text: str) -> str:
    text = text[:1].upper() + text[1:]
    return text if text.endswith(".") else f"{text}."


def _marked(text: str) -> str:
    """Return a docstring's text as Markdown on one line."""
    text = re.sub(r":\w+:(`[^`]+`)", r"\1", " ".join(text.split()))
    return re.sub(r"``(.+?)``", r"`\1`", text)


def api_page() -> str:
    """Return docs/reference/api/index.md."""
    objects = {name: getattr(trajtrainer, name) for name in trajtrainer.__all__ if name != "__version__"}
    groups: dict[str, list[str]] = {"Functions": [], "Classes": [], "Errors": []}
    for name, each in objects.items():
        is_class = isinstance(each, type) or get_origin(each) is not None
        is_error = isinstance(each, type) and issubclass(each, Exception)
        groups["Errors" if is_error else "Classes" if is_class else "Functions"].append(_entry(name, each))
    checks = trajtrainer.validators
    groups["Validators"] = [*_told(checks.__doc__ or ""), *(_validator(name) for name in checks.__all__)]
    return "\n".join([API_HEAD, *(part for title, group in groups.items() for part in (f"## {title}\n", *group))])


def _validator(name: str) -> str:
    """Return what a validator, or a function that makes one, asks for."""
    each = getattr(trajtrainer.validators, name)
    if inspect.isfunction(each):
        return "\n".join([f"### {name}", "", *_code(_signature(name, each)), *_told(each.__doc__ or "")])
    text = f"A type: {each.__doc__}" if isinstance(each, type) else f"Asks for {each.expected}."
    return f"### {name}\n\n{text}\n"


def _entry(name: str, each: Any) -> str:
    lines = [f"### {name}", ""]
    if get_origin(each) is not None:  # an alias, which has no docstring of its own
        return "\n".join([*lines, _ALIASES[name], ""])
    if not each.__module__.startswith("trajtrainer."):
        return "\n".join([*lines, f"`{each.__module__}.{each.__qualname__}`.", ""])
    if not isinstance(each, type):
        return "\n".join([*lines, *_code(_signature(name, each)), *_told(each.__doc__ or "")])
    if issubclass(each, Exception):
        above = ", ".join(f"`{base.__name__}`" for base in each.__bases__)
        return "\n".join([*lines, f"Derives from {above}.", "", *_told(each.__doc__ or "")])
    if not attrs.has(each) and "__dataclass_fields__" not in vars(each) and "__init__" in vars(each):
        lines += _code(_signature(name, each))
    lines += _told(each.__doc__ or "")
    for member, value in vars(each).items():
        call = getattr(value, "__func__", value)
        if member.startswith("_") or isinstance(value, property) or not inspect.isfunction(call):
            continue
        if call.__doc__:
            lines += [*_code(_signature(f"{name}.{member}", call)), *_told(call.__doc__)]
    properties = {name: each for name, each in vars(each).items() if isinstance(each, property) and name[0] != "_"}
    if properties:
        told = {member: (value.__doc__ or "").split("\n\n")[0] for member, value in properties.items()}
        lines += ["Properties:", "", *(f"- `{member}`: {_marked(text)}" for member, text in told.items()), ""]
    return "\n".join(lines)


def _signature(name: str, function: Any) -> str:
    """Return a function's head as it would be written."""
    signature = inspect.signature(function)
    words, starred = [], False
    for parameter in signature.parameters.values():
        if parameter.name in ("self", "cls"):
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not starred:
            words.append("*")
            starred = True
        stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
        starred = starred or stars == "*"
        noted = "" if parameter.annotation is parameter.empty else f": {_annotation(parameter.annotation)}"
        equals = " = " if noted else "="
        given = "" if parameter.default is parameter.empty else f"{equals}{parameter.default!r}"
        words.append(f"{stars}{parameter.name}{noted}{given}")
    returned = signature.return_annotation
    arrow = "" if returned in (signature.empty, None, "None") else f" -> {_annotation(returned)}"
    short = f"{name}({', '.join(words)}){arrow}"
    return short if len(short) <= 110 else f"{name}(\n" + "".join(f"    {word},\n" for word in words) + f"){arrow}"


def _annotation(annotation: Any) -> str:
    return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)


def _code(text: str) -> list[str]:
    return ["```", text, "```", ""]


def _told(docstring: str) -> Iterator[str]:
    """Yield the lines of Markdown that a docstring makes."""
    for title, body in parts(docstring):
        if title:
            yield from (f"{title}:", "")
            yield from (_item(title, name, text) for name, text in entries(body))
            yield ""
            continue
        for paragraph in re.split(r"\n\s*\n", "\n".join(body).strip("\n")):
            if paragraph.startswith((">>>", "    ")):
                yield from _code(inspect.cleandoc(paragraph).replace("  # doctest: +SKIP", ""))
            elif re.match(r"- ", paragraph):
                yield from (f"- {_marked(item)}" for item in re.split(r"(?:^|\n)- ", paragraph)[1:])
                yield ""
            elif paragraph:
                yield from (_marked(re.sub(r"::$", ":", paragraph)), "")


def _item(title: str, name: str, text: str) -> str:
    if title in ("Returns", "Yields"):
        return _marked(f"{name}: {text}" if text else name)
    return f"- `{name}`: {_marked(text)}"


_BLOCK = re.compile(
    r"<!-- code (?P<name>\S+) \| (?P<first>.*?) \| (?P<end>.*?) ?-->\n```python.*?\n.*?```\n", re.DOTALL
)


def ppo_page() -> str:
    """Return docs/explanation/ppo.md with its blocks of code as they are now. Its words are changed in the page itself.

    A block is named by its function in ``trajtrainer.algos``, the beginning of its first line, and that of the line
    behind its last; without the latter it goes to the end of the function.
    """
    return _BLOCK.sub(_current, (DOCS / "explanation" / "ppo.md").read_text(encoding="utf-8"))


def _current(block: re.Match[str]) -> str:
    lines = inspect.getsource(pkgutil.resolve_name(f"trajtrainer.algos.{block['name']}")).splitlines()
    starts = [number for number, line in enumerate(lines) if line.strip().startswith(block["first"])]
    if len(starts) != 1:
        raise LookupError(f"{block['name']} has {len(starts)} lines that begin with {block['first']!r}")
    rest = lines[starts[0] :]
    ends = [number for number, line in enumerate(rest) if line.strip().startswith(block["end"])] if block["end"] else []
    if block["end"] and not ends:
        raise LookupError(f"no line of {block['name']} after {block['first']!r} begins with {block['end']!r}")
    code = textwrap.dedent("\n".join(rest[: ends[0]] if ends else rest)).strip("\n")
    marker = block[0].split("\n", 1)[0]
    module, name = block["name"].split(":")
    return f'{marker}\n```python title="algos/{module.replace(".", "/")}.py, {name}"\n{code}\n```\n'


PAGES = {
    "reference/settings/index.md": settings_page,
    "reference/api/index.md": api_page,
    "explanation/ppo.md": ppo_page,
}


if __name__ == "__main__":
    for file, page in PAGES.items():
        (DOCS / file).write_text(page(), encoding="utf-8")
