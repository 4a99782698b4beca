"""Entry points through which other packages add statistics writers."""

from __future__ import annotations

import logging
from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any

logger = logging.getLogger(__name__)

STATS_WRITER_GROUP = "trajtrainer.stats_writer"


def load_entry_points(group: str) -> list[tuple[str, Callable[..., Any]]]:
    """The callables registered under ``group``. One that fails to import is reported and left out."""
    loaded = []
    for entry in entry_points(group=group):
        try:
            loaded.append((entry.name, entry.load()))
        except Exception:
            logger.exception("Plugin %r of group %r could not be loaded and is left out.", entry.name, group)
    return loaded
