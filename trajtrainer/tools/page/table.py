"""The table of runs: a row for each behavior of each run, with its settings and newest statistics."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

from trajtrainer.core.filenames import behavior_of
from trajtrainer.core.metrics import OF_STATISTICS
from trajtrainer.policies.folder.saved_run import gauge_key, shown_setting
from trajtrainer.tools.groups import OF_A_RUN
from trajtrainer.tools.page.runs import RunView, shortened

_MAX_SETTINGS = 1000
_MAX_MEASURES = 300
_MAX_OF_A_ROW = 2000
_SEED = "env_settings.seed"
_NO_MEASURES = {"Step", "IsTraining"}
# "PolicyLoss", "Q1Loss", "GPUMemory"
_WORDS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


class Row(NamedTuple):
    """A behavior of a run.

    Attributes:
        run_id: of the run.
        folder: the name of the behavior's folder.
        settings: those of the run, and of the behavior without ``behaviors.NAME``: key -> value, as YAML has it.
        measures: key of a gauge (``Losses.PolicyLoss``) -> its newest value.
    """

    run_id: str
    folder: str
    settings: Mapping[str, str]
    measures: Mapping[str, float]


def rows_of(run: RunView) -> list[Row]:
    """The rows of a run: one for each behavior, as in its summary."""
    configuration = run.saved.configuration
    sections = ("behaviors", "default_settings")
    whole = {key: value for key, value in configuration.flat.items() if key.partition(".")[0] not in sections}
    found = []
    for folder in run.behavior_folders():
        behavior = behavior_of(folder)
        settings = {**configuration.of_behavior(behavior), **whole}
        measures = run.saved.gauges(behavior)
        shown = {key: shortened(shown_setting(value)) for key, value in islice(settings.items(), _MAX_OF_A_ROW)}
        few = {key: value for key, value in islice(measures.items(), _MAX_OF_A_ROW) if key not in _NO_MEASURES}
        found.append(Row(run.saved.run_id, folder, shown, few))
    return found


def table(rows: Sequence[Row], tags: Mapping[str, str]) -> dict[str, Any]:
    """The table as columns. Each text occurs once in a column, because most runs share most of their settings.

    Args:
        rows: all of them.
        tags: key of a gauge -> the tag that it is made of, as far as known.

    Returns:
        ``rows``: run id and behavior's folder of each. ``settings``: key, whether it only names or places the run, the
        texts, and for each row the position of its text or -1. ``measures``: key, title, and the number of each row or
        None.
    """
    keys = list(islice(dict.fromkeys(key for row in rows for key in row.settings), _MAX_SETTINGS))
    settings = []
    for key in keys:
        texts: dict[str, int] = {}
        places = [texts.setdefault(row.settings[key], len(texts)) if key in row.settings else -1 for row in rows]
        settings.append([key, key in OF_A_RUN and key != _SEED, list(texts), places])
    known = {gauge_key(metric.tag): metric.tag for metric in OF_STATISTICS} | dict(tags)
    gauges = list(islice(sorted({key for row in rows for key in row.measures}), _MAX_MEASURES))
    measures = [[key, known.get(key) or _title(key), [row.measures.get(key) for row in rows]] for key in gauges]
    return {"rows": [[row.run_id, row.folder] for row in rows], "settings": settings, "measures": measures}


def _title(key: str) -> str:
    """A guess at the tag: spaces and slashes are lost in ``timers.json``."""
    return _WORDS.sub(" ", key.replace(".", "/", 1))
