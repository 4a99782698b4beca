"""Charts of a page as SVG: no program is needed to see them, and a small script tells their numbers."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trajtrainer.report.spread import Course, course
from trajtrainer.rundir.series import Series

NUM_COLORS = 8
_WIDTH, _HEIGHT = 460, 250
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 20, 10, 26
_MOST_STEPS = 200
_TICKS = 5


@dataclass(frozen=True, slots=True)
class Line:
    """One group in a chart.

    Attributes:
        name: of the group.
        color: its number.
        course: over its seeds.
        runs: those of its seeds, if there are several.
    """

    name: str
    color: int
    course: Course
    runs: Sequence[Series]


def line(name: str, color: int, runs: Sequence[Series]) -> Line:
    """Return the line of a group."""
    return Line(
        name, color % NUM_COLORS, course(runs, _MOST_STEPS), [_thinned(run) for run in runs[: len(runs) > 1 and 20]]
    )


def _thinned(run: Series) -> Series:
    if len(run.steps) <= _MOST_STEPS:
        return run
    kept = np.linspace(0, len(run.steps) - 1, _MOST_STEPS).round().astype(np.int64)
    return Series(run.steps[kept], run.values[kept])


def chart(title: str, lines: Sequence[Line]) -> str:
    """Return a chart as a figure of HTML."""
    scale = _Scale(lines)
    svg = "".join([*scale.axes(), *(shape for each in lines for shape in _shapes(each, scale))])
    return (
        f'<figure class="chart"><figcaption>{escape(title)}</figcaption>'
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(title)}" '
        f'data-x="{_LEFT},{_WIDTH - _RIGHT}" data-y="{_TOP},{_HEIGHT - _BOTTOM}">{svg}'
        '<line class="cursor" hidden></line></svg>'
        f'<script type="application/json">{_numbers(lines, scale)}</script></figure>'
    )


class _Scale:
    """From steps and values to places in a picture."""

    def __init__(self, lines: Sequence[Line]) -> None:
        ends = [(one.course.steps[0], one.course.steps[-1]) for one in lines]
        self.x0, self.x1 = float(min(begin for begin, _ in ends)), float(max(end for _, end in ends))
        shown = [column for one in lines for column in (one.course.low, one.course.high)]
        shown += [run.values for one in lines for run in one.runs]
        self.y0, self.y1 = _padded(min(float(c.min()) for c in shown), max(float(c.max()) for c in shown))
        if self.x0 == self.x1:
            self.x0, self.x1 = self.x0 - 1, self.x1 + 1

    def points(self, steps: NDArray[Any], values: NDArray[Any]) -> str:
        x = _LEFT + (steps - self.x0) / (self.x1 - self.x0) * (_WIDTH - _LEFT - _RIGHT)
        # Halved first: the difference of two huge numbers is not finite.
        part = (values / 2 - self.y0 / 2) / (self.y1 / 2 - self.y0 / 2)
        y = _HEIGHT - _BOTTOM - part * (_HEIGHT - _TOP - _BOTTOM)
        return " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(x.tolist(), y.tolist(), strict=True))

    def axes(self) -> Iterator[str]:
        for value in ticks(self.y0, self.y1):
            y = self.points(np.array([self.x0]), np.array([value])).split(",")[1]
            yield f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y}" y2="{y}"/>'
            yield f'<text x="{_LEFT - 6}" y="{y}" dy=".32em" text-anchor="end">{number(value)}</text>'
        for step in ticks(self.x0, self.x1):
            x = self.points(np.array([step]), np.array([self.y0])).split(",")[0]
            yield f'<text x="{x}" y="{_HEIGHT - 8}" text-anchor="middle">{number(step)}</text>'


def _shapes(one: Line, scale: _Scale) -> Iterator[str]:
    found = one.course
    style = f'class="c{one.color}'
    if (found.num_seeds > 1).any():
        there = np.concatenate([found.steps, found.steps[::-1]])
        yield f'<polygon {style} band" points="{scale.points(there, np.concatenate([found.low, found.high[::-1]]))}"/>'
    for run in one.runs:
        yield f'<polyline {style} seed" points="{scale.points(run.steps, run.values)}"/>'
    if len(found.steps) == 1:
        x, y = scale.points(found.steps, found.middle).split(",")
        yield f'<circle {style} dot" cx="{x}" cy="{y}" r="3"/>'
    else:
        yield f'<polyline {style} line" points="{scale.points(found.steps, found.middle)}"/>'


def _numbers(lines: Sequence[Line], scale: _Scale) -> str:
    """Return the numbers for the script, harmless within HTML."""
    content = {
        "x": [scale.x0, scale.x1],
        "lines": [
            {
                "name": one.name,
                "color": one.color,
                "steps": one.course.steps.tolist(),
                "middle": _rounded(one.course.middle),
                "low": _rounded(one.course.low) if one.runs else None,
                "high": _rounded(one.course.high) if one.runs else None,
            }
            for one in lines
        ],
    }
    return json.dumps(content, separators=(",", ":")).replace("<", "\\u003c").replace("&", "\\u0026")


def _rounded(values: NDArray[np.float64]) -> list[float]:
    return [float(f"{value:.5g}") for value in values.tolist()]


def _padded(low: float, high: float) -> tuple[float, float]:
    """Return a range with some room around it."""
    room = (high / 2 - low / 2) * 0.1 or abs(high) * 0.1 or 1.0
    largest = float(np.finfo(np.float64).max) / 2
    return max(low - room, -largest), min(high + room, largest)


def ticks(low: float, high: float) -> list[float]:
    """Return a few round numbers between two."""
    step = _round_step((high / 2 - low / 2) / _TICKS * 2)
    first = math.ceil(low / step)
    return [count * step for count in range(first, math.floor(high / step) + 1)]


def _round_step(least: float) -> float:
    """Return 1, 2 or 5 times a power of ten, at least as large."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least * (1 - 1e-9))


def number(value: float) -> str:
    """Return a number in short: 12.5k, 0.031, 1.2e-07."""
    size = abs(value)
    for large, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if large <= size < 1e12:
            return f"{value / large:.4g}{letter}"
    return f"{value:.4g}" if size >= 1e-3 or not size else f"{value:.2g}"
