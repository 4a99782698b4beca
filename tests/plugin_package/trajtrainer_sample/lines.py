"""A statistics writer: one line per summary in a file of the run's folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from trajtrainer import RunSettings, StatsSummary, StatsWriter, StatsWriterRow


class Lines(StatsWriter):
    """Appends ``behavior step tag ...``."""

    def __init__(self, settings: RunSettings) -> None:
        self._path = Path(settings.checkpoint_settings.results_dir) / "lines.txt"

    def write_stats(self, category: str, values: Mapping[str, StatsSummary], step: int) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(f"{category} {step} {' '.join(tag.replace(' ', '_') for tag in values)}\n")


ROW = StatsWriterRow(Lines)
