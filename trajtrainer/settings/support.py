"""Requests of a configuration that ML-Agents does and this trainer does not yet: the README's table "Not yet"."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from trajtrainer.settings.checks import Fault
from trajtrainer.settings.document import Entry
from trajtrainer.settings.problems import Problem

NOT_YET: Mapping[tuple[str, ...], str] = {
    ("reward_signals", "curiosity"): "leave it out, or use rnd",
    ("reward_signals", "gail"): "leave it out",
    ("behavioral_cloning",): "leave the section out",
}
"""Keys below a behavior (the last may be a value) -> what to do instead."""


def unsupported(behavior: object) -> Iterator[Fault]:
    """Find everything in the plain settings of one behavior that is not built yet."""
    for path, remedy in NOT_YET.items():
        asked = _asked(behavior, path)
        if asked:
            yield Fault(asked, f"{path[-1]} is not built yet; {remedy}")


def unsupported_in(root: Entry) -> Iterator[Problem]:
    """Find everything in a configuration's tree that is not built yet."""
    behaviors = root.mapping.get("behaviors")
    default = root.mapping.get("default_settings")
    for behavior in [*([default] if default else []), *(behaviors.mapping.values() if behaviors else [])]:
        for fault in unsupported(behavior.plain()):
            yield Problem(behavior.locate(fault.path), fault.message)


def _asked(settings: object, path: tuple[str, ...]) -> tuple[str, ...]:
    """Return the part of ``path`` that leads to what asks for its end; empty if nothing does."""
    for depth, key in enumerate(path):
        if settings == key:
            return path[:depth]
        settings = settings.get(key) if isinstance(settings, Mapping) else None
    return path if settings is not None else ()
