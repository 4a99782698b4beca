"""Prints the results of benchmarks as a table, and writes them as JSON."""

from __future__ import annotations

import json
import math
import os
import platform
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

RUNS = 5


@dataclass(frozen=True)
class Row:
    """One result: the measurements in ``runs``, of which the median is shown, and the target (``bar``)."""

    work: str
    unit: str
    runs: list[float] = field(default_factory=list)
    bar: float | None = None

    @property
    def median(self) -> float:
        return statistics.median(self.runs)


def interleaved(measurements: Sequence[Callable[[], float]], runs: int = RUNS) -> list[list[float]]:
    """Repeat all measurements ``runs`` times, alternating, so that disturbances affect all of them equally."""
    figures: list[list[float]] = [[] for _ in measurements]
    for _ in range(runs):
        for found, measure in zip(figures, measurements, strict=True):
            found.append(measure())
    return figures


def show(rows: Sequence[Row]) -> None:
    table = Table("work", "median", "unit", "lowest", "highest", "runs", "bar")
    for row in rows:
        bar = "" if row.bar is None else shown(row.bar)
        lowest, highest = min(row.runs), max(row.runs)
        table.add_row(row.work, shown(row.median), row.unit, shown(lowest), shown(highest), str(len(row.runs)), bar)
    Console(width=130).print(table)


def shown(value: float) -> str:
    """Format a number with three significant digits, or as an integer from 100 on; infinity is ``never``."""
    if math.isinf(value):
        return "never"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def write(rows: Sequence[Row], path: Path) -> None:
    machine = {"cores": os.cpu_count(), "python": platform.python_version(), "processor": platform.machine()}
    content = {"machine": machine, "rows": [{**asdict(row), "median": row.median} for row in rows]}
    path.write_text(json.dumps(content, indent=2) + "\n")
