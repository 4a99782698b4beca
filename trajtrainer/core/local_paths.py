"""Paths of this machine, which nobody else should see: of each, files that are shared have the last part only."""

import re
from pathlib import PurePosixPath, PureWindowsPath
from typing import Any

_SCHEME = r"[A-Za-z][A-Za-z0-9+.-]+://"
_END = r"\s'\",;:|<>()\[\]{}"  # what ends a path inside of a text
_IN_TEXT = re.compile(
    rf"(?P<url>{_SCHEME}[^\s'\",;|<>()\[\]{{}}]+)"
    rf"|(?<![\w/\\])(?:[A-Za-z]:[\\/]|\\\\)[^{_END}]+"
    rf"|(?<![\w.~/\\)\]}}-])(?:~[\w.-]*)?/(?=[\w.~])[^{_END}]+"
)


def without_folders(value: Any) -> Any:
    """Plain data in which texts may be an absolute path, be ``key=PATH``, or contain paths; of these, the last part."""
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
    """Whether a text is an absolute path, of POSIX or of Windows, or a path in a home folder."""
    starts_at_home = re.match(r"~[\w.-]*[/\\]", text) is not None
    return starts_at_home or PurePosixPath(text).is_absolute() or PureWindowsPath(text).is_absolute()


def last_part(path: str) -> str:
    """The last part of a path of any operating system."""
    return re.split(r"[/\\]+", path.rstrip("/\\"))[-1]


def _short_url(url: str) -> str:
    """A URL without its password. Without a server it is a file of this machine: file:///home/..., sqlite:////home/..."""
    scheme, _, rest = url.partition("://")
    server, slash, path = rest.partition("/")
    server = server.rpartition("@")[2]
    return f"{scheme}://{server}{slash}{last_part(path) if server in ('', 'localhost') else path}"
