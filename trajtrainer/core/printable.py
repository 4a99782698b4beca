"""Text from the wire or a file on its way to a person: it must neither steer the terminal nor look like our own lines.

A behaviour may be called ``Ball\\n[INFO] Saved.``; so may the keys of a YAML file or the tensors of a model.
"""

from __future__ import annotations

import copy
import logging
import os
import re


def one_line(text: str) -> str:
    """Return ``text`` with everything that is no visible character, line ends included, written as an escape sequence.

    Tabs stay.
    """
    return "".join(map(_visible, text)) if not text.isprintable() else text


def printable(text: str) -> str:
    """Return ``text`` in lines, each as by ``one_line``.

    All but the first begin with white space, so that none can pass for a line of its own.
    """
    if text.isprintable():
        return text
    return re.sub(r"\n(?=\S)", "\n  ", "\n".join(map(one_line, text.split("\n"))))


def counted(number: int, thing: str) -> str:
    """Return "1 trial", "2 trials"."""
    return f"{number} {thing}{'' if number == 1 else 's'}"


def with_safe_arguments(record: logging.LogRecord) -> logging.LogRecord:
    """Return a log record whose arguments stay on one line. The lines of the message itself are ours."""
    arguments = record.args
    if isinstance(arguments, tuple):
        record = copy.copy(record)
        record.args = tuple(one_line(str(each)) if isinstance(each, str | os.PathLike) else each for each in arguments)
    return record


def _visible(character: str) -> str:
    if character.isprintable() or character == "\t":
        return character
    return character.encode("unicode_escape").decode()
