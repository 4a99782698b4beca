"""Curves as a picture, drawn by matplotlib (the extra ``plot``)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trajtrainer.core import atomic
from trajtrainer.report.runs import Group
from trajtrainer.report.spread import Course, course

_WIDTH, _HEIGHT = 7.0, 3.6  # inches of one chart
_DPI = 150
_MOST_STEPS = 1000
# Okabe and Ito's colours, which the colour-blind can tell apart, the darker ones first.
_COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f", "#000000")


def draw(groups: Sequence[Group], charts: Sequence[tuple[str, str]], path: Path) -> None:
    """Draw a chart for each behaviour and tag, below one another, with a line for each group.

    Args:
        groups: of runs.
        charts: (behaviour, tag), each of which some group has.
        path: of the picture.

    Raises:
        OSError: the file cannot be written.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter

    figure = Figure(figsize=(_WIDTH, _HEIGHT * len(charts)), dpi=_DPI, layout="constrained")
    all_axes = figure.subplots(len(charts), 1, squeeze=False)[:, 0]
    with_behavior = len({behavior for behavior, _ in charts}) > 1
    for axes, (behavior, tag) in zip(all_axes, charts, strict=True):
        for number, group in enumerate(groups):
            runs = group.series(behavior, tag)
            if runs:
                label = group.name if len(runs) == 1 else f"{group.name} ({len(runs)} seeds)"
                for run in runs if len(runs) > 1 else ():
                    axes.plot(run.steps, run.values, color=_COLORS[number % len(_COLORS)], alpha=0.25, linewidth=0.7)
                _line(axes, course(runs, _MOST_STEPS), label, _COLORS[number % len(_COLORS)])
        axes.set_title(f"{behavior}: {tag}" if with_behavior else tag, loc="left", fontsize=10, fontweight="bold")
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
        axes.margins(x=0.01)
    all_axes[-1].set_xlabel("steps")
    _legend(figure, all_axes)
    atomic.write_with(path, lambda temporary: figure.savefig(temporary, format=path.suffix[1:]))


def _line(axes: Any, found: Course, label: str, color: str) -> None:
    marker = "o" if len(found.steps) == 1 else None
    axes.plot(found.steps, found.middle, color=color, label=label, linewidth=1.8, marker=marker)
    if (found.num_seeds > 1).any():
        axes.fill_between(found.steps, found.low, found.high, color=color, alpha=0.18, linewidth=0)


def _legend(figure: Any, all_axes: Any) -> None:
    """Draw one legend for all charts, above them."""
    entries: dict[str, Any] = {}
    for axes in all_axes:
        lines, labels = axes.get_legend_handles_labels()
        for line, label in zip(lines, labels, strict=True):
            entries.setdefault(label, line)
    figure.legend(entries.values(), entries.keys(), loc="outside upper left", ncols=2, frameon=False, fontsize=9)
