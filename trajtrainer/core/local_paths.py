"""Removes folders from local paths in files that are shared with others, keeping only the last part of each path."""

import re
from pathlib import PurePosixPath, PureWindowsPath
from typing import Any

_SCHEME = r"[A-Za-z][A-Za-z0-9+.-]+://"
_END = r"\s'\",;:|<>()\[\]{}"  # characters that mark the end of a path in a text
_IN_TEXT = re.compile(
    rf"(?P<url>{_SCHEME}[^\s'\",;|<>()\[\]{{}}]+)"
    rf"|(?<![\w/\\])(?:[A-Za-z]:[\\/]|\\\\)[^{_END}]+"
    rf"|(?<![\w.~/\\)\]}}-])(?:~[\w.-]*)?/(?=[\w.~])[^{_END}]+"
)


def without_folders(value: Any) -> Any:
    """Shorten every path in plain data to its last part.

    A string may be an absolute path, have the form ``key=PATH``, or contain paths.
    """
    if isinstance(value, dict):
        return {key: without_folders(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [without_folders(inner) for inner in value]
    if not isinstance(value, str):
        return value
    if re.match(_SCHEME, value):
        return _short_url(value)
    key, sign, path = value.partition("=")
    for before, rest in (("", value), (key + sign, path)):
        if is_absolute(rest) and "=" not in rest:
            return before + last_part(rest)
    return _IN_TEXT.sub(lambda found: _short_url(found[0]) if found["url"] else last_part(found[0]), value)


def is_absolute(text: str) -> bool:
    """Return whether a text is an absolute POSIX or Windows path, or a path in a home folder."""
    starts_at_home = re.match(r"~[\w.-]*[/\\]", text) is not None
    return starts_at_home or PurePosixPath(text).is_absolute() or PureWindowsPath(text).is_absolute()


def last_part(path: str) -> str:
    """Return the last part of a path of any operating system."""
    return re.split(r"[/\\]+", path.rstrip("/\\"))[-1]


def _short_url(url: str) -> str:
    """Remove the user and password from a URL, and also the folders if it refers to a local file.

    Examples of local files are file:///home/... and sqlite:////home/...
    """
    scheme, _, rest = url.partition("://")
    server, slash, path = rest.partition("/")
    server = server.rpartition("@")[2]
    return f"{scheme}://{server}{slash}{last_part(path) if server in ('', 'localhost') else path}"
