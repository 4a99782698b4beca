"""What the docstrings of the settings' classes tell of each key, for pages and for files that explain themselves."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

from trajtrainer.settings.hyperparameters import ALGORITHMS, Hyperparameters


def meaning(cls: type[Any], name: str) -> str:
    """Return what a docstring tells of a key: that of the class, of a base class, or of another algorithm.

    Raises:
        LookupError: none does.
    """
    others = [row.settings for row in ALGORITHMS.builtin.values()] if issubclass(cls, Hyperparameters) else []
    for each in chain.from_iterable(found.__mro__ for found in (cls, *others)):
        if name in (told := attributes(each)):
            return told[name]
    raise LookupError(f"The docstring of {cls.__name__} has no entry for {name} under Attributes.")


def attributes(cls: type[Any]) -> dict[str, str]:
    """Return the section Attributes of a docstring: name -> text."""
    for title, body in parts(cls.__doc__ or ""):
        if title == "Attributes":
            return dict(entries(body))
    return {}


def parts(docstring: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the parts of a docstring: the text under the title "", then sections as Args."""
    title, body = "", list[str]()
    for line in inspect.cleandoc(docstring).splitlines():
        if re.fullmatch(r"(Args|Attributes|Raises|Returns|Yields):", line):
            yield title, body
            title, body = line[:-1], []
        elif title and line and not line.startswith(" "):  # a section ends where text is no longer indented
            yield title, body
            title, body = "", [line]
        else:
            body.append(line)
    yield title, body


def entries(body: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield names and texts of a section."""
    text = inspect.cleandoc("\n".join(["", *body]))
    for entry in re.split(r"\n(?=\S)", text):
        name, _, rest = entry.partition(":")
        yield name.strip(), " ".join(rest.split())
