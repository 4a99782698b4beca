"""Loads statistics writers that were written for ML-Agents (entry points in the group ``mlagents.stats_writer``)."""

from __future__ import annotations

import logging
from importlib.metadata import entry_points

from trajtrainer.core.stats import StatsWriter
from trajtrainer.settings.run import RunSettings

logger = logging.getLogger(__name__)

GROUP = "mlagents.stats_writer"
_OWN = "mlagents."  # ML-Agents' own writers, which trajtrainer replaces


def mlagents_writers(settings: RunSettings) -> list[StatsWriter]:
    """Create the ML-Agents writers of installed packages. Writers that fail are logged and left out."""
    entries = [entry for entry in entry_points(group=GROUP) if not entry.value.startswith(_OWN)]
    if not entries:
        return []
    from trajtrainer.run.mlagents_stand_in import MlagentsWriter, RunOptions, stand_in  # lazy import: rarely needed

    stand_in()
    writers: list[StatsWriter] = []
    for entry in entries:
        try:
            made = list(entry.load()(RunOptions(settings)))
            wrong = [each for each in made if not hasattr(each, "write_stats")]
            if wrong:
                raise TypeError(f"it returned {wrong[0]!r}, expected a list of StatsWriter")
        except Exception as error:
            package = entry.dist.name if entry.dist is not None else entry.module
            logger.error(
                "The statistics writer %r for ML-Agents, from package %s (%s), is not used: %s: %s. The only parts of "
                "mlagents that exist here are trainers.stats and trainers.settings.RunOptions.",
                entry.name, package, entry.value, type(error).__name__, error,
            )  # fmt: skip
            logger.debug("Traceback of the error:", exc_info=True)
        else:
            writers += [MlagentsWriter(entry.name, each, settings) for each in made]
    return writers
