"""A report about runs: a single HTML file that needs no other file and no network (``templates/report.html``)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from importlib.resources import files
from itertools import groupby, product
from typing import Any, NamedTuple

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from numpy.typing import NDArray

from trajtrainer.core.printable import counted
from trajtrainer.core.version import __version__
from trajtrainer.policies.folder.saved_run import shown_setting
from trajtrainer.policies.folder.series import Series
from trajtrainer.tools.groups import Group, ReportedRun
from trajtrainer.tools.spread import aggregate, difference_interval, interquartile_mean, interval, late_mean
from trajtrainer.tools.time_spent import KINDS, all_sessions, blocks, by_kind, duration, num_sessions, seconds_of

REWARD = "Environment/Cumulative Reward"
_MEASURES = (REWARD, "Environment/Group Cumulative Reward", "Self-play/ELO")
# Categories shown first. The others follow, and are collapsed unless they are in _OPEN.
_FIRST = ("Environment", "Evaluation", "Self-play")
_OPEN = {"Environment", "Evaluation", "Self-play", "Losses", "Policy"}
_EVALUATION = "Evaluation/"
_RETURN = "Cumulative Reward"
_NUM_COLORS = 8
_MAX_STEPS = 200  # points per line in a chart
_MAX_SEEDS = 20  # maximum number of seeds that are plotted individually, behind the line of their group
_ABSENT = object()


class Table(NamedTuple):
    """A table whose first ``num_text`` columns are text; the others are numbers, aligned to the right."""

    titles: Sequence[str]
    rows: Sequence[Sequence[str]]
    num_text: int


def report(groups: Sequence[Group], created: str) -> str:
    """Return the report as HTML.

    Args:
        groups: the groups to show, at least one.
        created: the time of creation, which is shown in the header.
    """
    environment = Environment(
        loader=PackageLoader("trajtrainer.tools.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(counted=counted, duration=duration)
    behaviors = _behaviors(groups)
    differing, shared = _hyperparameters(groups)
    runs = [(group, run) for group in groups for run in group.runs]
    timers = [(run.name, all_sessions(run.timers), num_sessions(run.timers)) for _, run in runs]
    uplot, templates = files("trajtrainer.tools") / "uplot", files("trajtrainer.tools.report") / "templates"
    style = [uplot / "uPlot.min.css", uplot / "plot.css", templates / "report.css"]
    # Join both files into one inline module, which needs no imports and exports.
    charts = "\n".join(each.read_text(encoding="utf-8") for each in (uplot / "plot.js", templates / "report.js"))
    charts = re.sub(r"^(import .*\n|export )", "", charts, flags=re.MULTILINE)
    license_text = f"/*! uPlot:\n{(uplot / 'LICENSE').read_text(encoding='utf-8')}*/"
    text = environment.get_template("report.html").render(
        title=", ".join(group.name for group in groups),
        version=__version__,
        created=created,
        style="\n".join(each.read_text(encoding="utf-8") for each in style),
        uplot=f"{license_text}\n{(uplot / 'uPlot.iife.min.js').read_text(encoding='utf-8')}",
        script=charts,
        groups=groups,
        num_colors=_NUM_COLORS,
        results=_results(groups, behaviors),
        differences=_differences(groups, behaviors),
        runs=Table(["run", "group", "seed", "ended cleanly", "folder"], [_run_row(*each) for each in runs], 5),
        charts={behavior: _charts(groups, behavior) for behavior in behaviors},
        evaluations=_evaluations(groups, behaviors),
        differing=differing,
        shared=shared,
        kinds=KINDS,
        times=[
            {
                "name": name,
                "sessions": sessions,
                "seconds": seconds_of(tree),
                "kinds": by_kind(tree),
                "blocks": list(blocks(tree)),
            }
            for name, tree, sessions in timers
            if seconds_of(tree) > 0
        ],
    )
    return f"{text}\n"


def _run_row(group: Group, run: ReportedRun) -> list[str]:
    # A run adds its final checkpoint to the status only if it finishes or is asked to stop, not if it crashes.
    is_clean = all("final_checkpoint" in run.sections.get(name, {}) for name in run.behaviors)
    return [run.name, group.name, "" if run.seed is None else str(run.seed), "yes" if is_clean else "no", str(run.path)]


def _results(groups: Sequence[Group], behaviors: Sequence[str]) -> Table:
    """Create the table with the mean over the last tenth of the runs, and their best summaries."""
    rows = []
    for behavior, tag, group in product(behaviors, _MEASURES, groups):
        runs = group.series(behavior, tag)
        if runs:
            last = np.array([late_mean(run) for run in runs])
            best = np.array([run.high.max() for run in runs])
            steps = number(max(int(run.steps[-1]) for run in runs))
            measure = [behavior, tag.partition("/")[2], group.name, str(len(runs)), steps]
            rows.append([*measure, *_with_interval(last), *_with_interval(best)])
    titles = ["behavior", "", "runs", "seeds", "steps", "last tenth", "95%", "best summary", "95%"]
    return Table(titles, rows, 3)


def _differences(groups: Sequence[Group], behaviors: Sequence[str]) -> Table:
    """Create the table that compares the last tenth of each group with that of the first group."""
    rows = []
    first = groups[0]
    for behavior, tag, group in product(behaviors, _MEASURES, groups[1:]):
        last, earlier = (
            np.array([late_mean(run) for run in each.series(behavior, tag)], dtype=np.float64)
            for each in (group, first)
        )
        if len(last) and len(earlier):
            mean = float(interquartile_mean(last) - interquartile_mean(earlier))
            shown = [_signed(mean), ""]  # a single seed says nothing about the spread
            if min(len(last), len(earlier)) > 1:
                low, high = difference_interval(last, earlier)
                shown = [_signed(mean), f"{_signed(low)} to {_signed(high)}"]
            rows.append([behavior, tag.partition("/")[2], group.name, *shown])
    return Table(["behavior", "", "runs", f"last tenth, difference from {first.name}", "95%"], rows, 3)


def _with_interval(values: NDArray[np.float64]) -> list[str]:
    if len(values) == 1:
        return [number(float(values[0])), ""]
    low, high = interval(values[:, None])
    return [number(float(interquartile_mean(values))), f"{number(float(low[0]))} to {number(float(high[0]))}"]


def _signed(value: float) -> str:
    return f"{'+' if value >= 0 else ''}{number(value)}"


def _charts(groups: Sequence[Group], behavior: str) -> list[dict[str, Any]]:
    """Return the charts of a behavior, grouped by category, which is the first part of the tag."""

    def category(tag: str) -> str:
        return tag.partition("/")[0]

    def order(tag: str) -> tuple[Any, ...]:
        name = category(tag)
        place = _FIRST.index(name) if name in _FIRST else len(_FIRST) + (name not in _OPEN)
        return place, name, tag != REWARD, tag

    return [
        {
            "name": name,
            "is_open": name in _OPEN,
            "charts": [
                {
                    "tag": tag,
                    "lines": [
                        _line(group.name, i % _NUM_COLORS, runs)
                        for i, group in enumerate(groups)
                        if (runs := group.series(behavior, tag))
                    ],
                }
                for tag in some
            ],
        }
        for name, some in groupby(sorted(_tags(groups, behavior), key=order), key=category)
    ]


def _line(name: str, color: int, runs: Sequence[Series]) -> dict[str, Any]:
    """Return a group's data for ``report.js``: the mean over the seeds, the interval, and the individual seeds."""

    def rounded(values: NDArray[np.float64]) -> list[float]:
        return [float(f"{value:.5g}") for value in values.tolist()]

    over_seeds = aggregate(runs, _MAX_STEPS)
    seeds = []
    for run in runs[: len(runs) > 1 and _MAX_SEEDS]:
        count = min(len(run.steps), _MAX_STEPS)
        kept = np.linspace(0, len(run.steps) - 1, count).round().astype(np.int64)
        seeds.append([run.steps[kept].tolist(), rounded(run.values[kept])])
    return {
        "name": name,
        "color": color,
        "x": over_seeds.steps.tolist(),
        "mean": rounded(over_seeds.middle),
        "low": rounded(over_seeds.low) if seeds else None,
        "high": rounded(over_seeds.high) if seeds else None,
        "seeds": seeds,
    }


def _evaluations(groups: Sequence[Group], behaviors: Sequence[str]) -> Table:
    """Create the table with the last and the best evaluation of each run."""
    rows = []
    for behavior, run in product(behaviors, (run for group in groups for run in group.runs)):
        scalars = run.behaviors.get(behavior, {})
        for tag, series in scalars.items():
            if not (tag.startswith(_EVALUATION) and tag.endswith(_RETURN)):
                continue
            # Teams have only the mean return, without the statistics of single agents.
            std, low, high, length = (
                number(float(scalars[name].values[-1])) if name in scalars else ""
                for name in (f"{tag} Std", f"{tag} Min", f"{tag} Max", f"{_EVALUATION}Episode Length")
            )
            best = int(series.values.argmax())
            rows.append(
                [
                    behavior,
                    run.name,
                    tag.removeprefix(_EVALUATION),
                    str(len(series.values)),
                    number(float(series.values[-1])),
                    std,
                    f"{low} to {high}" if low else "",
                    number(float(series.steps[-1])),
                    number(float(series.values[best])),
                    number(float(series.steps[best])),
                    length if tag == _EVALUATION + _RETURN else "",
                ]
            )
    titles = ["behavior", "run", "", "evaluations", "last", "std", "min to max", "at step", "best", "at step", "length"]
    return Table(titles, rows, 3)


def _hyperparameters(groups: Sequence[Group]) -> tuple[Table, Table]:
    """Create two tables: the settings in which the groups differ, and the settings that all of them share."""
    settings = [group.settings for group in groups]
    keys = list(dict.fromkeys(key for one in settings for key in one))
    differing = [key for key in keys if any(one.get(key, _ABSENT) != settings[0].get(key, _ABSENT) for one in settings)]

    def table(names: Sequence[str], settings: Sequence[Mapping[str, Any]], keys: Sequence[str]) -> Table:
        rows = [[key, *(shown_setting(one[key]) if key in one else "" for one in settings)] for key in keys]
        return Table(["setting", *names], rows, 1 + len(names))

    return (
        table([group.name for group in groups], settings, differing),
        table(["value"], settings[:1], [key for key in keys if key not in differing]),
    )


def number(value: float) -> str:
    """Format a number with up to four significant digits: 12.5k, 0.031, 1.2e-07."""
    size = abs(value)
    for large, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if large <= size < 1e12:
            return f"{value / large:.4g}{letter}"
    return f"{value:.4g}" if size >= 1e-3 or not size else f"{value:.2g}"


def all_tags(groups: Sequence[Group]) -> list[tuple[str, str]]:
    """Return (behavior, tag) for each statistic of the groups."""
    return [(behavior, tag) for behavior in _behaviors(groups) for tag in sorted(_tags(groups, behavior))]


def _behaviors(groups: Sequence[Group]) -> list[str]:
    return list(dict.fromkeys(name for group in groups for run in group.runs for name in run.behaviors))


def _tags(groups: Sequence[Group], behavior: str) -> set[str]:
    return {tag for group in groups for run in group.runs for tag in run.behaviors.get(behavior, {})}
