"""One page of HTML about some runs, with everything in it: no file and no network is needed to look at it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from importlib.resources import files
from itertools import groupby, product
from typing import Any

import numpy as np

from trajtrainer.core.printable import counted
from trajtrainer.core.version import __version__
from trajtrainer.report.drawing import NUM_COLORS, chart, line, number
from trajtrainer.report.runs import Group, SavedRun
from trajtrainer.report.spread import interquartile_mean, interval, late_mean
from trajtrainer.report.tables import table
from trajtrainer.report.time_spent import time_section
from trajtrainer.rundir.series import Series, tags_of

REWARD = "Environment/Cumulative Reward"
_MEASURES = (REWARD, "Environment/Group Cumulative Reward", "Self-play/ELO")
# What one looks at first; whatever else there is comes behind it, folded.
_FIRST = ("Environment", "Evaluation", "Self-play")
_OPEN = {"Environment", "Evaluation", "Self-play", "Losses", "Policy"}
_EVALUATION = "Evaluation/"
_RETURN = "Cumulative Reward"


def page(groups: Sequence[Group], created: str) -> str:
    """Return the page.

    Args:
        groups: of runs, at least one.
        created: when this is, as text.
    """
    names = ", ".join(group.name for group in groups)
    behaviors = list(dict.fromkeys(name for group in groups for run in group.runs for name in run.behaviors))
    sections = [
        _section("Results", _legend(groups) + _results(groups, behaviors) + _runs(groups)),
        *(_section(behavior, _charts(groups, behavior), "charts") for behavior in behaviors),
        _section("Evaluation", _evaluation(groups, behaviors)),
        _section("Hyperparameters", _hyperparameters(groups)),
        _section("Where the time went", time_section(groups)),
    ]
    return (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; "
        "script-src 'unsafe-inline'\">"
        f"<title>{escape(names)}</title><style>{_resource('page.css')}</style></head><body>"
        f"<header><h1>{escape(names)}</h1><p>trajtrainer {escape(__version__)}, {escape(created)}</p></header>"
        f'<main>{"".join(sections)}</main><div id="tip" hidden></div>'
        f"<script>{_resource('page.js')}</script></body></html>\n"
    )


def _resource(name: str) -> str:
    return files("trajtrainer.report").joinpath(name).read_text(encoding="utf-8")


def _section(title: str, content: str, kind: str = "") -> str:
    return f'<section class="{kind}"><h2>{escape(title)}</h2>{content}</section>' if content else ""


def _legend(groups: Sequence[Group]) -> str:
    keys = "".join(
        f'<li><i class="c{i % NUM_COLORS}"></i>{escape(group.name)}'
        + (f" <small>{len(group.runs)} seeds</small>" if len(group.runs) > 1 else "")
        + "</li>"
        for i, group in enumerate(groups)
    )
    spread = any(len(group.runs) > 1 for group in groups)
    note = (
        "<p class=note>Lines are interquartile means over the seeds (of fewer than four seeds the mean), bands 95 % "
        "bootstrap intervals (Agarwal et al. 2021), thin lines single seeds.</p>"
    )
    return f'<ul class="legend">{keys}</ul>' + (note if spread else "")


def _results(groups: Sequence[Group], behaviors: Sequence[str]) -> str:
    """Return the table of what came out: over the last tenth of each run, and at best."""
    rows = []
    for behavior, tag, group in product(behaviors, _MEASURES, groups):
        runs = group.series(behavior, tag)
        if runs:
            last = np.array([late_mean(run) for run in runs])
            best = np.array([run.values.max() for run in runs])
            steps = number(max(int(run.steps[-1]) for run in runs))
            what = [behavior, tag.partition("/")[2], group.name, str(len(runs)), steps]
            rows.append([*what, *_with_interval(last), *_with_interval(best)])
    titles = ["behavior", "", "runs", "seeds", "steps", "last tenth", "95 %", "best summary", "95 %"]
    return table(titles, rows, text_columns=3)


def _with_interval(values: np.ndarray[Any, np.dtype[np.float64]]) -> list[str]:
    if len(values) == 1:
        return [number(float(values[0])), ""]
    low, high = interval(values[:, None])
    return [number(float(interquartile_mean(values))), f"{number(float(low[0]))} to {number(float(high[0]))}"]


def _runs(groups: Sequence[Group]) -> str:
    rows = [
        [run.name, group.name, "" if run.seed is None else str(run.seed), _ended(run), str(run.path)]
        for group in groups
        for run in group.runs
    ]
    inner = table(["run", "group", "seed", "ended", "folder"], rows, text_columns=5)
    return f"<details><summary>{counted(len(rows), 'run')}</summary>{inner}</details>"


def _ended(run: SavedRun) -> str:
    """Tell whether the run has come to an end of its own: only then its last checkpoint is in the status."""
    entries = [run.status.get(behavior) for behavior in run.behaviors]
    ends = [isinstance(entry, dict) and "final_checkpoint" in entry for entry in entries]
    return "in good order" if all(ends) else "no"


def _charts(groups: Sequence[Group], behavior: str) -> str:
    found = [run.behaviors[behavior] for group in groups for run in group.runs if behavior in run.behaviors]
    tags = sorted(tags_of({str(i): scalars for i, scalars in enumerate(found)}), key=_order)
    parts = []
    for category, some in groupby(tags, key=_category):
        figures = "".join(_chart(groups, behavior, tag) for tag in some)
        is_open = " open" if category in _OPEN else ""
        parts.append(
            f'<details{is_open}><summary>{escape(category)}</summary><div class="grid">{figures}</div></details>'
        )
    return "".join(parts)


def _chart(groups: Sequence[Group], behavior: str, tag: str) -> str:
    found = [(i, group, group.series(behavior, tag)) for i, group in enumerate(groups)]
    return chart(tag, [line(group.name, i, runs) for i, group, runs in found if runs])


def _category(tag: str) -> str:
    return tag.partition("/")[0]


def _order(tag: str) -> tuple[Any, ...]:
    category = _category(tag)
    place = _FIRST.index(category) if category in _FIRST else len(_FIRST) + (category not in _OPEN)
    return place, category, tag != REWARD, tag


def _evaluation(groups: Sequence[Group], behaviors: Sequence[str]) -> str:
    """Return the table of evaluations: the last one and the best."""
    rows = []
    for behavior in behaviors:
        for run in (run for group in groups for run in group.runs):
            scalars = run.behaviors.get(behavior, {})
            for tag, series in scalars.items():
                if tag.startswith(_EVALUATION) and tag.endswith(_RETURN):
                    rows.append([behavior, run.name, tag.removeprefix(_EVALUATION), *_evaluated(series, scalars, tag)])
    titles = ["behavior", "run", "", "evaluations", "last", "std", "min to max", "at step", "best", "at step", "length"]
    return table(titles, rows, text_columns=3) if rows else ""


def _evaluated(series: Series, scalars: Mapping[str, Series], tag: str) -> list[str]:
    """Return what a row tells; standard deviation and the like are of the returns of single agents alone."""
    best = int(series.values.argmax())

    def last(of: str) -> str:
        return number(float(scalars[of].values[-1])) if of in scalars else ""

    low, high = last(f"{tag} Min"), last(f"{tag} Max")
    return [
        str(len(series.values)),
        number(float(series.values[-1])),
        last(f"{tag} Std"),
        f"{low} to {high}" if low else "",
        number(float(series.steps[-1])),
        number(float(series.values[best])),
        number(float(series.steps[best])),
        last(f"{_EVALUATION}Episode Length") if tag == _EVALUATION + _RETURN else "",
    ]


def _hyperparameters(groups: Sequence[Group]) -> str:
    """Return the settings of all groups; with several groups first those in which they differ."""
    settings = [group.settings for group in groups]
    keys = list(dict.fromkeys(key for one in settings for key in one))
    differing = [key for key in keys if any(one.get(key, _ABSENT) != settings[0].get(key, _ABSENT) for one in settings)]
    names = [group.name for group in groups]
    first = ""
    if len(groups) > 1:
        first = (
            _settings_table(names, settings, differing) if differing else "<p>All groups have the same settings.</p>"
        )
    shared = [key for key in keys if key not in differing]
    columns = names if len(groups) == 1 else ["all"]
    rest = _settings_table(columns, settings[:1], shared)
    title = "All settings" if len(groups) == 1 else "Settings that all have"
    return first + (f"<details><summary>{title}</summary>{rest}</details>" if shared else "")


_ABSENT = object()


def _settings_table(names: Sequence[str], settings: Sequence[Mapping[str, Any]], keys: Sequence[str]) -> str:
    rows = [[key, *(_shown(one.get(key, _ABSENT)) for one in settings)] for key in keys]
    return table(["setting", *names], rows, text_columns=1 + len(names))


def _shown(value: object) -> str:
    if value is _ABSENT:
        return ""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return str(value)


def all_tags(groups: Sequence[Group]) -> Iterator[tuple[str, str]]:
    """Yield (behaviour, tag) of everything that the groups have."""
    behaviors = dict.fromkeys(name for group in groups for run in group.runs for name in run.behaviors)
    for behavior in behaviors:
        found = [run.behaviors.get(behavior, {}) for group in groups for run in group.runs]
        yield from ((behavior, tag) for tag in tags_of({str(i): each for i, each in enumerate(found)}))
