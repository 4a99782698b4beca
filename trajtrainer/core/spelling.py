"""Suggests a known word for a misspelled one."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(word: str, known: Iterable[str]) -> str | None:
    """Return the most similar known word; None if none of them is similar enough."""
    by_lower = {each.lower(): each for each in known}
    matches = difflib.get_close_matches(word.lower(), by_lower, n=1)
    return by_lower[matches[0]] if matches else None


def closest(word: str, known: Iterable[str]) -> str:
    """Return "; did you mean X?" if a known word is similar, otherwise an empty string."""
    match = nearest(word, known)
    return f"; did you mean {match}?" if match else ""
