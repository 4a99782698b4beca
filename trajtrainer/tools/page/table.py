"""The table of runs: a row for each behavior of each run, with its settings and latest statistics."""

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
# Matches the boundaries between words in names such as "PolicyLoss", "Q1Loss" and "GPUMemory".
_WORDS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


class Row(NamedTuple):
    """A row: one behavior of a run.

    Attributes:
        run_id: id of the run.
        folder: name of the behavior's folder.
        settings: key -> value as YAML text, for the settings of the run and of the behavior (without
            ``behaviors.NAME``).
        measures: key of a gauge (``Losses.PolicyLoss``) -> its latest value.
    """

    run_id: str
    folder: str
    settings: Mapping[str, str]
    measures: Mapping[str, float]


def rows_of(run: RunView) -> list[Row]:
    """Return the rows of a run: one for each behavior in its summary."""
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
    """Return the table as columns. Each column stores a text only once, because runs share most of their settings.

    Args:
        rows: all rows.
        tags: key of a gauge -> its tag, if known.

    Returns:
        ``rows``: for each row, the run id and the behavior's folder. ``settings``: for each column, the key, whether
        the setting is only a name or location of the run, the texts, and for each row the index of its text or -1.
        ``measures``: for each column, the key, the title, and for each row its number or None.
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
    """Guess the tag of a gauge, because the keys in ``timers.json`` have no spaces and slashes."""
    return _WORDS.sub(" ", key.replace(".", "/", 1))
