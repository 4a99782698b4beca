"""Makes untrusted text safe to print, so that it can neither control the terminal nor imitate a line of our output.

For example, a behavior, a key in a YAML file or a tensor of a model may be called ``Ball\\n[INFO] Saved.``
"""

from __future__ import annotations

import copy
import logging
import os
import re


def one_line(text: str) -> str:
    """Replace non-printable characters, including newlines but not tabs, with their escape sequences."""
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() or each == "\t" else each.encode("unicode_escape").decode() for each in text
    )


def printable(text: str) -> str:
    """Like ``one_line``, but keep newlines. Lines after the first are indented, so they cannot imitate our output."""
    if text.isprintable():
        return text
    return re.sub(r"\n(?=\S)", "\n  ", "\n".join(map(one_line, text.split("\n"))))


def encodable(text: str) -> str:
    """Replace lone surrogates, which cannot be encoded, with their escape sequences."""
    return text.encode("utf-8", "backslashreplace").decode()


def shortened(text: str, most: int = 2000) -> str:
    """Shorten a text that may quote long parts of a file, but keep the end, which often tells users what to do."""
    return text if len(text) <= most else f"{text[: most // 2]} [...] {text[-most // 4 :]}"


def counted(number: int, thing: str) -> str:
    """Format a count: ``counted(1, "trial")`` is "1 trial", ``counted(2, "trial")`` is "2 trials"."""
    return f"{number} {thing}{'' if number == 1 else 's'}"


def with_safe_arguments(record: logging.LogRecord) -> logging.LogRecord:
    """Return a copy of a log record whose text and path arguments are on one line. The format string is trusted."""
    arguments = record.args
    if isinstance(arguments, tuple):
        record = copy.copy(record)
        record.args = tuple(one_line(str(each)) if isinstance(each, str | os.PathLike) else each for each in arguments)
    return record
