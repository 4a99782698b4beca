"""Plots curves of runs to files with matplotlib (the extra ``plot``)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trajtrainer.core import atomic
from trajtrainer.core.errors import SettingsError
from trajtrainer.tools.groups import Group
from trajtrainer.tools.spread import aggregate

_WIDTH, _HEIGHT = 7.0, 3.6  # size of one chart in inches
_DPI = 150
_MAX_STEPS = 1000
# The palette of Okabe and Ito, which color-blind readers can distinguish. Darker colors come first.
_COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f", "#000000")


def check_picture(path: Path, option: str) -> None:
    """Check that matplotlib can write an image with this file name, which was given with ``option``.

    Raises:
        SettingsError: the suffix is not supported, or matplotlib is not installed.
    """
    try:
        from matplotlib.backend_bases import FigureCanvasBase
    except ImportError as error:
        raise SettingsError(
            f"{option} needs the package matplotlib, which is not installed. Install it with: pip install "
            "'trajtrainer[plot]'. ('trajtrainer report' needs no extra package.)"
        ) from error
    kinds = FigureCanvasBase.filetypes
    if path.suffix[1:] not in kinds:
        raise SettingsError(f"{option} {path}: the name of an image file must end in .{', .'.join(sorted(kinds))}.")


def plot(groups: Sequence[Group], charts: Sequence[tuple[str, str]], path: Path) -> None:
    """Plot one chart per behavior and tag, stacked vertically, with a line for each group.

    Args:
        groups: the groups of runs.
        charts: (behavior, tag) of each chart. At least one group has data for it.
        path: path of the file; its suffix determines the format.

    Raises:
        OSError: the file cannot be written.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter

    figure = Figure(figsize=(_WIDTH, _HEIGHT * len(charts)), dpi=_DPI, layout="constrained")
    all_axes = figure.subplots(len(charts), 1, squeeze=False)[:, 0]
    with_behavior = len({behavior for behavior, _ in charts}) > 1
    legend: dict[str, Any] = {}
    for axes, (behavior, tag) in zip(all_axes, charts, strict=True):
        for number, group in enumerate(groups):
            runs = group.series(behavior, tag)
            if not runs:
                continue
            color = _COLORS[number % len(_COLORS)]
            for run in runs if len(runs) > 1 else ():
                axes.plot(run.steps, run.values, color=color, alpha=0.25, linewidth=0.7)
            over_seeds = aggregate(runs, _MAX_STEPS)
            marker = "o" if len(over_seeds.steps) == 1 else None
            (line,) = axes.plot(over_seeds.steps, over_seeds.middle, color=color, linewidth=1.8, marker=marker)
            legend.setdefault(group.name if len(runs) == 1 else f"{group.name} ({len(runs)} seeds)", line)
            if (over_seeds.num_seeds > 1).any():
                axes.fill_between(
                    over_seeds.steps, over_seeds.low, over_seeds.high, color=color, alpha=0.18, linewidth=0
                )
        axes.set_title(f"{behavior}: {tag}" if with_behavior else tag, loc="left", fontsize=10, fontweight="bold")
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
        axes.margins(x=0.01)
    all_axes[-1].set_xlabel("steps")
    figure.legend(legend.values(), legend.keys(), loc="outside upper left", ncols=2, frameon=False, fontsize=9)
    atomic.write_with(path, lambda temporary: figure.savefig(temporary, format=path.suffix[1:]))
