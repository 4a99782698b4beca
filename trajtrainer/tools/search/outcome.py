"""What came of a search: tables for the console, and a picture."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trajtrainer.core import atomic
from trajtrainer.core.printable import one_line
from trajtrainer.settings.checks import shown
from trajtrainer.settings.search import Direction, Plan, Value
from trajtrainer.tools.search.study import Study

if TYPE_CHECKING:
    from rich.table import Table

_MOST_ROWS = 10
_MOST_CHARTS = 12
_COLUMNS = 3
_WIDTH, _HEIGHT = 3.6, 2.8  # inches of one chart
_DPI = 150
_BLUE, _ORANGE, _GREY = "#0072b2", "#d55e00", "#7f7f7f"


def short_names(names: Sequence[str]) -> dict[str, str]:
    """Name of a range -> its last part, or as many parts as make it unique."""
    short: dict[str, str] = {}
    for name in names:
        parts = name.split(".")
        endings = (".".join(parts[-count:]) for count in range(1, len(parts) + 1))
        others = [f".{other}" for other in names if other != name]
        short[name] = next(end for end in endings if end == name or not any(o.endswith(f".{end}") for o in others))
    return short


def brief(value: Value) -> str:
    """A value short enough for a table."""
    return f"{value:.4g}" if isinstance(value, float) else shown(value)


def best_table(study: Study, plan: Plan) -> Table:
    """The best trials with their values, the best first."""
    rows = []
    for trial in study.completed[:_MOST_ROWS]:
        values = [brief(trial.params[name]) if name in trial.params else "" for name in plan.ranges]
        rows.append([str(trial.number), brief(trial.value), *values])
    return _table(["trial", "value", *short_names(list(plan.ranges)).values()], rows)


def importance_table(importances: Mapping[str, float]) -> Table:
    """How much each range matters."""
    return _table(["setting", "importance"], [[name, f"{weight:.2f}"] for name, weight in importances.items()])


def counts(study: Study) -> str:
    """How many trials ended in which way, in words."""
    words = {"COMPLETE": "went to the end", "PRUNED": "ended early", "FAIL": "failed", "RUNNING": "left for --resume"}
    states = [trial.state.name for trial in study.trials]
    return ", ".join(f"{states.count(state)} {what}" for state, what in words.items() if state in states)


def plot(study: Study, plan: Plan, importances: Mapping[str, float], path: Path) -> None:
    """Plot the values in the order of trials, the importances, and the values over each range.

    Raises:
        ImportError: matplotlib is not installed.
        OSError: the file cannot be written.
    """
    from matplotlib.figure import Figure

    def label(chart: Any, title: str, x: str = "", y: str = "") -> None:
        chart.set_title(title, loc="left", fontsize=9, fontweight="bold")
        chart.set_xlabel(x, fontsize=8)
        chart.set_ylabel(y, fontsize=8)

    names = short_names(list(plan.ranges))
    shown_names = [*importances, *(name for name in names if name not in importances)][: _MOST_CHARTS - 2]
    num_charts = 2 + len(shown_names)
    rows = -(-num_charts // _COLUMNS)
    figure = Figure(figsize=(_WIDTH * _COLUMNS, _HEIGHT * rows), dpi=_DPI, layout="constrained")
    charts = list(figure.subplots(rows, _COLUMNS, squeeze=False).flat)
    for chart in charts:
        chart.grid(alpha=0.25)
        chart.set_axisbelow(True)
        chart.tick_params(labelsize=7)
        chart.spines[["top", "right"]].set_visible(False)
    for chart in charts[num_charts:]:
        chart.set_visible(False)
    _plot_history(charts[0], study, plan)
    label(charts[0], "trials", "trial", plan.search.metric)
    charts[1].barh([names[name] for name in importances], list(importances.values()), color=_BLUE)
    charts[1].invert_yaxis()
    label(charts[1], "importance")
    for chart, name in zip(charts[2:], shown_names, strict=False):
        _plot_range(chart, study, plan, name)
        label(chart, names[name])
    atomic.write_with(path, lambda temporary: figure.savefig(temporary, format=path.suffix[1:]))


def _plot_history(chart: Any, study: Study, plan: Plan) -> None:
    completed = sorted(study.completed, key=lambda trial: trial.number)
    pruned = [trial for trial in study.trials if trial.state.name == "PRUNED" and trial.value is not None]
    choose = max if plan.search.direction is Direction.MAXIMIZE else min
    values = [trial.value for trial in completed]
    best = [choose(values[: count + 1]) for count in range(len(values))]
    numbers = [trial.number for trial in completed]
    chart.plot(numbers, best, color=_ORANGE, drawstyle="steps-post", label="best so far")
    chart.plot(numbers, values, "o", color=_BLUE, markersize=4, label="went to the end")
    if pruned:
        places, reached = zip(*((trial.number, trial.value) for trial in pruned), strict=True)
        chart.plot(places, reached, "x", color=_GREY, markersize=4, label="ended early")
    chart.xaxis.get_major_locator().set_params(integer=True)
    chart.legend(frameon=False, fontsize=7)


def _plot_range(chart: Any, study: Study, plan: Plan, name: str) -> None:
    given = plan.ranges[name]
    trials = [trial for trial in study.completed if name in trial.params]
    places = [trial.params[name] for trial in trials]
    if given.choices:
        places = [given.choices.index(place) for place in places]
        chart.set_xticks(range(len(given.choices)), [shown(choice) for choice in given.choices])
        chart.set_xlim(-0.5, len(given.choices) - 0.5)
    else:
        if given.log:
            chart.set_xscale("log")
            chart.xaxis.set_minor_formatter("")
        chart.set_xlim(given.low, given.high)
    chart.plot(places, [trial.value for trial in trials], "o", color=_BLUE, markersize=4, clip_on=False)


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
