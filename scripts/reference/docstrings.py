"""Docstrings as Markdown."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterator
from typing import Any

import trajtrainer
from trajtrainer.settings.yaml.commented import entries, parts

MADE = "<!-- Made by scripts/pages.py from the code: change docstrings and help texts there. -->"


def marked(text: str) -> str:
    """Return a docstring's text as Markdown on one line."""
    text = re.sub(r":\w+:(`[^`]+`)", r"\1", " ".join(text.split()))
    return re.sub(r"``(.+?)``", r"`\1`", text)


def linked(text: str, page: str) -> str:
    """Return the text of an API page, with a link at the first mention of each other public class."""
    for name in set(re.findall(r"`(\w+)`", text)) - {page}:
        if has_page(name):
            text = re.sub(rf"(?<!\[)`{name}`", f"[`{name}`]({name}.md)", text, count=1)
    return text


def has_page(name: str) -> bool:
    """Return whether a public name of trajtrainer has its own page, unlike errors and aliases."""
    each = getattr(trajtrainer, name, None) if name in trajtrainer.__all__ else None
    is_documented = inspect.isfunction(each) or (isinstance(each, type) and not issubclass(each, Exception))
    return is_documented and each.__module__.startswith("trajtrainer.")


def first_sentence(docstring: str) -> str:
    """Return the first sentence of a docstring."""
    return re.split(r"(?<=\.)(?<!et al\.)\s", marked(re.split(r"\n\s*\n", inspect.cleandoc(docstring))[0]))[0]


def signature(name: str, function: Any) -> str:
    """Return a function's signature as source code."""
    signature = inspect.signature(function)
    words, starred = [], False
    for parameter in signature.parameters.values():
        if parameter.name in ("self", "cls"):
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not starred:
            words.append("*")
            starred = True
        kinds: dict[Any, str] = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}
        stars = kinds.get(parameter.kind, "")
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


def code(text: str) -> list[str]:
    """Return a fenced code block, marked as a doctest if it looks like one."""
    return [f"```{'pycon' if text.startswith('>>>') else 'py'}", text, "```", ""]


def markdown(docstring: str) -> Iterator[str]:
    """Convert a docstring to Markdown, line by line."""
    for title, body in parts(docstring):
        if title:
            yield from (f"{title}:", "")
            yield from (_item(title, name, text) for name, text in entries(body))
            yield ""
            continue
        # A blank line between two indented paragraphs is part of one block of code.
        for paragraph in re.split(r"\n[ ]*\n(?!    )|(?<=[:.])\n[ ]*\n(?=    )", "\n".join(body).strip("\n")):
            if paragraph.startswith((">>>", "    ")):
                yield from code(textwrap.dedent(paragraph).replace("  # doctest: +SKIP", ""))
            elif re.match(r"- ", paragraph):
                yield from (f"- {marked(item)}" for item in re.split(r"(?:^|\n)- ", paragraph)[1:])
                yield ""
            elif paragraph:
                yield from (marked(re.sub(r"::$", ":", paragraph)), "")


def _item(title: str, name: str, text: str) -> str:
    if title in ("Returns", "Yields"):
        return marked(f"{name}: {text}" if text else name)
    return f"- `{name}`: {marked(text)}"
