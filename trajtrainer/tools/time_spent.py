"""Summarizes how a run spent its time, according to ``timers.json``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from trajtrainer.core.timers import EARLIER, add_trees, number_of

# Block -> kind of work. A block that is not listed has the same kind as the block that contains it.
_KINDS = {
    "run_training.settings": "start and end",
    "run_training.import": "start and end",
    "run_training.setup": "start and end",
    "env_start": "start and end",
    "env_close": "start and end",
    "make_behavior": "start and end",
    "env_step": "collect",
    "env_wait": "environment",
    "env_send": "environment",
    "TorchPolicy.evaluate": "act",
    "trainer_advance": "collect",
    "_update_policy": "learn",
    "RLTrainer._checkpoint": "save",
    "TrainerController._save_models": "save",
    "evaluation": "evaluate",
    "evaluation_close": "start and end",
    "callbacks": "other",
}
KINDS = ("environment", "act", "collect", "learn", "save", "evaluate", "start and end", "other")
_SMALLEST = 0.002
_DEEPEST = 8


def all_sessions(timers: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the timer tree of ``timers.json`` including the sessions before the run was resumed."""
    earlier = timers.get(EARLIER)
    return add_trees(timers, earlier) if isinstance(earlier, dict) else timers


def num_sessions(timers: Mapping[str, Any]) -> int:
    """Return how often the run was started or resumed, according to ``timers.json``."""
    earlier = timers.get(EARLIER)
    return 1 + (int(number_of(earlier.get("sessions"))) if isinstance(earlier, dict) else 0)


def by_kind(timers: Mapping[str, Any]) -> dict[str, float]:
    """Return the seconds spent on each kind of work, in the order of ``KINDS``."""
    seconds = dict.fromkeys(KINDS, 0.0)
    _add(timers, "other", seconds, 0)
    return seconds


def _add(node: Mapping[str, Any], kind: str, seconds: dict[str, float], depth: int) -> None:
    seconds[kind] += number_of(node.get("self"))
    for name, child in _children(node, depth):
        _add(child, _KINDS.get(name, kind), seconds, depth + 1)


@dataclass(frozen=True, slots=True)
class TimerBlock:
    """One block of the timer tree.

    Attributes:
        name: the block's name in ``timers.json``.
        depth: number of blocks that contain it.
        seconds: time spent in it, including nested blocks.
        count: how often it was entered.
        is_parallel: True if it ran in another thread.
    """

    name: str
    depth: int
    seconds: float
    count: float
    is_parallel: bool


def blocks(timers: Mapping[str, Any]) -> Iterator[TimerBlock]:
    """Yield the blocks that took at least 0.2% of the time: longest first, each before its nested blocks."""
    yield from _blocks(timers, _SMALLEST * seconds_of(timers), 0)


def _blocks(node: Mapping[str, Any], least: float, depth: int) -> Iterator[TimerBlock]:
    for name, child in sorted(_children(node, depth), key=lambda item: -seconds_of(item[1])):
        seconds = seconds_of(child)
        if seconds >= least:
            yield TimerBlock(name, depth, seconds, number_of(child.get("count")), bool(child.get("is_parallel")))
            yield from _blocks(child, least, depth + 1)


def _children(node: Mapping[str, Any], depth: int) -> list[tuple[str, Mapping[str, Any]]]:
    children = node.get("children")
    if not isinstance(children, dict) or depth >= _DEEPEST:
        return []
    return [(name, child) for name, child in children.items() if isinstance(child, dict)]


def seconds_of(node: Mapping[str, Any]) -> float:
    """Return how long a block took, including its nested blocks."""
    return number_of(node.get("total"))


def duration(seconds: float) -> str:
    """Format a duration: 0.25 s, 45.1 s, 12 min 31 s, 3 h 05 min."""
    if seconds < 100:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes} min {rest:02} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02} min"
