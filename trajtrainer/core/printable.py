"""Makes text from the wire or a file safe to print: it must not control the terminal, nor look like a line of ours.

A behavior, a key in a YAML file or a tensor of a model may be called ``Ball\\n[INFO] Saved.``
"""

from __future__ import annotations

import copy
import logging
import os
import re


def one_line(text: str) -> str:
    """Replace every character that is not visible by its escape sequence, line ends included. Tabs stay."""
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() or each == "\t" else each.encode("unicode_escape").decode() for each in text
    )


def printable(text: str) -> str:
    """Like ``one_line``, but keeps line ends. Every line after the first is indented, so none looks like ours."""
    if text.isprintable():
        return text
    return re.sub(r"\n(?=\S)", "\n  ", "\n".join(map(one_line, text.split("\n"))))


def encodable(text: str) -> str:
    """Replace halves of surrogate pairs, which no encoding has, by their escape sequences."""
    return text.encode("utf-8", "backslashreplace").decode()


def shortened(text: str, most: int = 2000) -> str:
    """Cut a text with long parts of a file in it. The middle is left out, as the end often says what to do."""
    return text if len(text) <= most else f"{text[: most // 2]} [...] {text[-most // 4 :]}"


def counted(number: int, thing: str) -> str:
    """``counted(1, "trial")`` is "1 trial", ``counted(2, "trial")`` is "2 trials"."""
    return f"{number} {thing}{'' if number == 1 else 's'}"


def with_safe_arguments(record: logging.LogRecord) -> logging.LogRecord:
    """A log record whose text and path arguments stay on one line. The format string itself is ours."""
    arguments = record.args
    if isinstance(arguments, tuple):
        record = copy.copy(record)
        record.args = tuple(one_line(str(each)) if isinstance(each, str | os.PathLike) else each for each in arguments)
    return record
