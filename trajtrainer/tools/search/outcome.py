"""The results of a search: tables for the console, and a picture."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from trajtrainer.core import atomic
from trajtrainer.core.printable import one_line
from trajtrainer.settings.checks import shown
from trajtrainer.settings.search import Direction, Value
from trajtrainer.tools.search.study import Study

if TYPE_CHECKING:
    from rich.table import Table

_MOST_ROWS = 10
_MOST_RANGES = 10
_COLUMNS = 3
_WIDTH, _HEIGHT = 3.6, 2.8  # size of one chart in inches
_DPI = 150
_BLUE, _ORANGE, _GREY = "#0072b2", "#d55e00", "#7f7f7f"


def short_names(names: Sequence[str]) -> dict[str, str]:
    """Map the name of each range to its last part, or to as many parts as it needs to be unique."""
    short: dict[str, str] = {}
    for name in names:
        parts = name.split(".")
        endings = (".".join(parts[-count:]) for count in range(1, len(parts) + 1))
        others = [f".{other}" for other in names if other != name]
        short[name] = next(end for end in endings if end == name or not any(o.endswith(f".{end}") for o in others))
    return short


def brief(value: Value) -> str:
    """Format a value so that it is short enough for a table."""
    return f"{value:.4g}" if isinstance(value, float) else shown(value)


def best_table(study: Study) -> Table:
    """Return a table of the best trials with their values, the best first."""
    rows = []
    for trial in study.completed[:_MOST_ROWS]:
        values = [brief(trial.params[name]) if name in trial.params else "" for name in study.plan.ranges]
        rows.append([str(trial.number), brief(trial.value), *values])
    return _table(["trial", "value", *short_names(list(study.plan.ranges)).values()], rows)


def importance_table(importances: Mapping[str, float]) -> Table:
    """Return a table of how much each range matters."""
    return _table(["setting", "importance"], [[name, f"{weight:.2f}"] for name, weight in importances.items()])


def counts(study: Study) -> str:
    """Return the number of completed, pruned, failed and unfinished trials as text."""
    words = {"COMPLETE": "completed", "PRUNED": "stopped early", "FAIL": "failed", "RUNNING": "unfinished"}
    states = [trial.state.name for trial in study.trials]
    return ", ".join(f"{states.count(state)} {what}" for state, what in words.items() if state in states)


def plot(study: Study, importances: Mapping[str, float], path: Path) -> None:
    """Plot the values in the order of trials, the importances, and the values over each range.

    Raises:
        ImportError: matplotlib is not installed.
        OSError: the file cannot be written.
    """
    from matplotlib.figure import Figure

    plan, completed = study.plan, study.completed
    names = short_names(list(plan.ranges))
    shown_names = [*importances, *(name for name in names if name not in importances)][:_MOST_RANGES]
    rows = -(-(2 + len(shown_names)) // _COLUMNS)
    figure = Figure(figsize=(_WIDTH * _COLUMNS, _HEIGHT * rows), dpi=_DPI, layout="constrained")
    titles = ["trials", "importance", *(names[name] for name in shown_names)]
    charts = [figure.add_subplot(rows, _COLUMNS, place, title=title) for place, title in enumerate(titles, 1)]
    by_number = sorted(completed, key=lambda trial: trial.number)
    numbers, values = [trial.number for trial in by_number], [trial.value for trial in by_number]
    best = np.maximum if plan.search.direction is Direction.MAXIMIZE else np.minimum
    charts[0].plot(numbers, best.accumulate(values), color=_ORANGE, drawstyle="steps-post", label="best so far")
    charts[0].plot(numbers, values, "o", color=_BLUE, label="completed")
    pruned = [(trial.number, trial.value) for trial in study.trials if trial.state.name == "PRUNED" and trial.value]
    charts[0].plot(*np.array(pruned).reshape(-1, 2).T, "x", color=_GREY, label="stopped early")
    charts[0].set_ylabel(plan.search.metric)
    charts[0].legend(fontsize="small")
    charts[1].barh([names[name] for name in importances], list(importances.values()), color=_BLUE)
    charts[1].invert_yaxis()
    for chart, name in zip(charts[2:], shown_names, strict=True):
        given, trials = plan.ranges[name], [trial for trial in completed if name in trial.params]
        at = [trial.params[name] for trial in trials]
        if given.choices:
            at = [given.choices.index(value) for value in at]
            chart.set_xticks(range(len(given.choices)), [shown(choice) for choice in given.choices])
        elif given.log:
            chart.set_xscale("log")
        chart.plot(at, [trial.value for trial in trials], "o", color=_BLUE)
    atomic.write_with(path, lambda temporary: figure.savefig(temporary, format=path.suffix[1:]))


def _table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column, title in enumerate(titles):
        table.add_column(one_line(title), justify="right" if column else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(one_line(cell)) for cell in row))
    return table
