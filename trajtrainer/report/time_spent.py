"""Where the time went, from ``timers.json``."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

from trajtrainer.report.runs import Group

# Block -> kind of work; what is within a block and has no kind of its own is of the same.
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
_ORDER = ("environment", "act", "collect", "learn", "save", "evaluate", "start and end", "other")
_SMALLEST = 0.002
_DEEPEST = 8


def time_section(groups: Sequence[Group]) -> str:
    """Return a bar and a tree for each run that has timers."""
    runs = [run for group in groups for run in group.runs if _seconds(run.timers) > 0]
    if not runs:
        return ""
    used = [kind for kind in _ORDER if any(_by_kind(run.timers)[kind] > 0 for run in runs)]
    keys = "".join(f'<li><i class="c{_ORDER.index(kind)}"></i>{kind}</li>' for kind in used)
    rows = "".join(_row(run.name, run.timers) for run in runs)
    return f'<ul class="legend">{keys}</ul><div class="times">{rows}</div>'


def _row(name: str, timers: Mapping[str, Any]) -> str:
    kinds = _by_kind(timers)
    total = sum(kinds.values())
    parts = "".join(
        f'<span class="c{i}" style="width:{100 * kinds[kind] / total:.2f}%" '
        f'title="{kind}: {duration(kinds[kind])}, {100 * kinds[kind] / total:.1f} %"></span>'
        for i, kind in enumerate(_ORDER)
        if kinds[kind] > 0
    )
    tree = "".join(_tree(timers, _seconds(timers), 0))
    return (
        f"<details><summary><b>{escape(name)}</b> <small>{duration(_seconds(timers))}</small>"
        f'<div class="bar">{parts}</div></summary>'
        f'<div class="wide"><table class="tree"><tbody>{tree}</tbody></table></div></details>'
    )


def _by_kind(timers: Mapping[str, Any]) -> dict[str, float]:
    seconds = dict.fromkeys(_ORDER, 0.0)
    _add(timers, "other", seconds, 0)
    return seconds


def _add(node: Mapping[str, Any], kind: str, seconds: dict[str, float], depth: int) -> None:
    seconds[kind] += max(0.0, _number(node.get("self")))
    for name, child in _children(node, depth):
        _add(child, _KINDS.get(name, kind), seconds, depth + 1)


def _tree(node: Mapping[str, Any], total: float, depth: int) -> Iterator[str]:
    for name, child in sorted(_children(node, depth), key=lambda item: -_seconds(item[1])):
        seconds = _seconds(child)
        if seconds < _SMALLEST * total:
            continue
        thread = " <small>thread</small>" if child.get("is_parallel") else ""
        count = _number(child.get("count"))
        yield (
            f'<tr><td style="padding-left:{1.2 * depth + 0.3:.1f}em">{escape(name)}{thread}</td>'
            f'<td class="n">{duration(seconds)}</td><td class="n">{100 * seconds / total:.1f} %</td>'
            f'<td class="n">{count:,.0f} times</td></tr>'
        )
        yield from _tree(child, total, depth + 1)


def _children(node: Mapping[str, Any], depth: int) -> list[tuple[str, Mapping[str, Any]]]:
    children = node.get("children")
    if not isinstance(children, dict) or depth >= _DEEPEST:
        return []
    return [(name, child) for name, child in children.items() if isinstance(child, dict)]


def _seconds(node: Mapping[str, Any]) -> float:
    return max(0.0, _number(node.get("total")))


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return 0.0
    try:
        return float(value) if math.isfinite(value) else 0.0
    except OverflowError:
        return 0.0


def duration(seconds: float) -> str:
    """Return seconds as text: 0.25 s, 45.1 s, 12 min 31 s, 3 h 05 min."""
    if seconds < 100:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes} min {rest:02} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02} min"
