"""docs/reference/api: a page for each public class and function, from their docstrings."""

from __future__ import annotations

import inspect
from typing import Any

import attrs

import trajtrainer
from scripts.reference.docstrings import MADE, code, first_sentence, has_page, linked, markdown, marked, signature
from trajtrainer import testing

_ALIASES = {
    "Statistics": "The type `dict[str, NDArray[np.floating]]`: what an algorithm reports, values by tag. A summary "
    "writes their mean."
}


_HEAD = f"""# Python API

{MADE}

Everything that `import trajtrainer` gives you. [From Python](../../train/python.md) shows how the parts work together.

```python
import trajtrainer

print(trajtrainer.__version__)
```
"""


def api_pages() -> dict[str, str]:
    """Return path in docs/reference/api -> page."""
    objects = {name: getattr(trajtrainer, name) for name in trajtrainer.__all__ if name != "__version__"}
    groups: dict[str, list[str]] = {"Functions": [], "Classes": [], "Errors": []}
    functions, classes = dict[str, str](), dict[str, str]()
    errors = f"# Errors\n\n{MADE}\n\nEvery error derives from `TrajtrainerError`.\n\n"
    for name, each in objects.items():
        if isinstance(each, type) and issubclass(each, Exception):
            groups["Errors"].append(_line(name, f"errors.md#{name.lower()}", each.__doc__))
            errors += _error(name, each)
        elif has_page(name):
            kind, some = ("Functions", functions) if inspect.isfunction(each) else ("Classes", classes)
            groups[kind].append(_line(name, f"{name}.md", each.__doc__))
            some[f"{name}.md"] = linked(_page(name, each), name)
        else:
            about = _ALIASES.get(name) or f"`{each.__module__}.{each.__qualname__}`, as in ML-Agents."
            groups["Classes"].append(f"| `{name}`{{ #{name.lower()} }} | {about} |")
    last = {"errors.md": errors, "validators.md": _module(trajtrainer.validators), "testing.md": _module(testing)}
    groups["For plugins"] = [
        _line("validators", "validators.md", trajtrainer.validators.__doc__),
        _line("testing", "testing.md", testing.__doc__),
    ]
    head = "| name | meaning |\n| --- | --- |\n"
    index = [f"## {title}\n\n{head}" + "\n".join(rows) + "\n" for title, rows in groups.items()]
    return {"index.md": "\n".join([_HEAD, *index]), **functions, **classes, **last}


def _line(name: str, target: str, docstring: str | None) -> str:
    return f"| [`{name}`]({target}){{ #{name.lower()} }} | {first_sentence(docstring or '')} |"


def _module(module: Any) -> str:
    """Return a page with all names of a module."""
    lines = [f"# {module.__name__.removeprefix('trajtrainer.')}", "", MADE, "", *markdown(module.__doc__ or "")]
    return "\n".join([*lines, *(_member(name, getattr(module, name)) for name in module.__all__)])


def _member(name: str, each: Any) -> str:
    """Describe a member of a module: a function, a class or a validator."""
    if inspect.isfunction(each):
        return "\n".join([f"## {name}", "", *code(signature(name, each)), *markdown(each.__doc__ or "")])
    if not isinstance(each, type):
        return f"## {name}\n\nAsks for {each.expected}.\n"
    lines = [f"## {name}", "", *markdown(each.__doc__ or "")]
    for member, value in vars(each).items():
        if inspect.isfunction(value) and value.__doc__ and not member.startswith("_"):
            lines += [f"### {name}.{member}", "", *code(signature(member, value)), *markdown(value.__doc__)]
    return "\n".join(lines)


def _error(name: str, each: type[Exception]) -> str:
    above = ", ".join(f"`{base.__name__}`" for base in each.__bases__)
    return "\n".join([f"## {name}", "", f"Derives from {above}.", "", *markdown(each.__doc__ or ""), ""])


def _page(name: str, each: Any) -> str:
    """Return the page of a class or function."""
    first, *rest = markdown(each.__doc__ or "")
    lines = [f"# {name}", "", MADE, "", first, ""]
    is_record = attrs.has(each) or "__dataclass_fields__" in vars(each)
    if inspect.isfunction(each) or ("__init__" in vars(each) and not is_record):
        lines += code(signature(f"trajtrainer.{name}", each))
    lines += rest
    if inspect.isfunction(each):
        return "\n".join([*lines, _source(each), ""])
    properties = {member: value for member, value in vars(each).items() if isinstance(value, property)}
    public = {member: value for member, value in properties.items() if member[0] != "_"}
    if public:
        about = {member: (value.__doc__ or "").split("\n\n")[0] for member, value in public.items()}
        lines += ["## Properties", "", *(f"- `{member}`: {marked(text)}" for member, text in about.items()), ""]
    for member, value in vars(each).items():
        call = getattr(value, "__func__", value)
        if not member.startswith("_") and inspect.isfunction(call) and call.__doc__:
            lines += [f"## {member}", "", *code(signature(f"{name}.{member}", call)), *markdown(call.__doc__)]
    return "\n".join([*lines, _source(each), ""])


def _source(each: Any) -> str:
    return f"Source: `{each.__module__.replace('.', '/')}.py`."
