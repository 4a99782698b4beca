"""Cuts the absolute paths of this machine out of what is published.

Of each path only the last part stays: ``/home/anna/Games/ball.demo`` becomes ``ball.demo``. A home folder in short
(``~/Games``) counts as absolute, and a URL loses its user and password.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import PurePosixPath, PureWindowsPath
from typing import Any

_END = r"\s'\",;:|<>()\[\]{}"  # what ends a path inside of a text
_SCHEME = r"[A-Za-z][A-Za-z0-9+.-]+://"
_URL = re.compile(_SCHEME)
_IN_TEXT = re.compile(
    rf"(?P<url>{_SCHEME}[^\s'\",;|<>()\[\]{{}}]+)"
    rf"|(?<![\w/\\])(?:[A-Za-z]:[\\/]|\\\\)(?P<windows>[^{_END}]+)"
    rf"|(?<![\w.~/\\)\]}}-])(?:~[\w.-]*)?/(?=[\w.~])(?P<posix>[^{_END}]+)"
)


class Places:
    """Finds and cuts absolute paths.

    Args:
        known: absolute paths that are found wherever they stand, also those with spaces.
    """

    def __init__(self, known: Iterable[str]) -> None:
        self._names = {place: last_part(place) for place in known if last_part(place)}
        longest_first = sorted(self._names, key=len, reverse=True)
        # One that goes on is another path, which the general pattern finds.
        self._known = re.compile(f"({'|'.join(map(re.escape, longest_first))})(?![\\w/\\\\-])") if self._names else None

    def in_value(self, value: Any) -> Any:
        """Return plain data without them: a text is a path, ``key=path``, or has some in it."""
        if isinstance(value, dict):
            return {key: self.in_value(inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [self.in_value(inner) for inner in value]
        if not isinstance(value, str):
            return value
        if _URL.match(value):
            return _cut_url(value)
        if is_absolute(value):
            return last_part(value)
        key, sign, path = value.partition("=")
        alone = sign and "=" not in path and is_absolute(path)
        return f"{key}={last_part(path)}" if alone else self.in_text(value)

    def in_text(self, text: str) -> str:
        """Return a text without them."""
        return _IN_TEXT.sub(_cut_match, self._without_known(text))

    def in_lines(self, text: str) -> str:
        """Return a text without them, whose lines may be ``key:<tab>value`` as in the summary of the settings."""
        lines = (line.partition(":\t") for line in text.split("\n"))
        return "\n".join(key + sign + self.in_value(value) if sign else self.in_text(key) for key, sign, value in lines)

    def known_in(self, value: Any) -> Any:
        """Return the content of a checkpoint without the known ones, and the very same object if it has none.

        No others: the name of a sensor may look like a path.
        """
        if isinstance(value, str):
            cut = self._names.get(value) or self._without_known(value)
            return value if cut == value else cut
        if isinstance(value, dict):
            pairs = [(self.known_in(key), self.known_in(inner)) for key, inner in value.items()]
            same = all(a is b and c is d for (a, c), (b, d) in zip(pairs, value.items(), strict=True))
            return value if same else dict(pairs)
        if isinstance(value, list | tuple):
            items = [self.known_in(inner) for inner in value]
            return value if all(a is b for a, b in zip(items, value, strict=True)) else type(value)(items)
        return value

    def _without_known(self, text: str) -> str:
        return self._known.sub(lambda match: self._names[match[1]], text) if self._known else text


def is_absolute(text: str) -> bool:
    """Return whether a text is an absolute path here or on Windows, or one below a home folder."""
    starts_at_home = re.match(r"~[\w.-]*[/\\]", text) is not None
    return starts_at_home or PurePosixPath(text).is_absolute() or PureWindowsPath(text).is_absolute()


def last_part(path: str) -> str:
    """Return the last part of a path of any system."""
    return re.split(r"[/\\]+", path.rstrip("/\\"))[-1]


def paths_in(value: Any) -> Iterator[str]:
    """Yield the absolute paths with more than one part that plain data holds."""
    if isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from paths_in(inner)
    elif isinstance(value, str):
        for text in (value, value.partition("=")[2]):
            if is_absolute(text) and len(re.findall(r"[/\\]+[^/\\]", text)) > 1:
                yield text


def _cut_match(match: re.Match[str]) -> str:
    if match["url"]:
        return _cut_url(match["url"])
    return last_part(match["windows"] or match["posix"])


def _cut_url(url: str) -> str:
    scheme, _, rest = url.partition("://")
    server, slash, path = rest.partition("/")
    server = server.rpartition("@")[2]
    # Without a server it is a file of this machine: file:///home/..., sqlite:////home/...
    return f"{scheme}://{server}{slash}{last_part(path) if server in ('', 'localhost') else path}"
