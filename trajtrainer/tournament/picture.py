"""A picture of the ratings over the steps that the models were trained for (the extra ``plot``)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from trajtrainer.core import atomic
from trajtrainer.tournament.standings import Standing

_SIZE_INCHES = (8.0, 5.0)


def draw(table: Sequence[Standing], path: Path) -> None:
    """Draw every model's rating and standard deviation: a line for the checkpoints of a run, a point for each other.

    Models of which nobody knows the steps are levels right across.

    Raises:
        OSError: the file cannot be written.
    """
    from matplotlib.figure import Figure

    axes = (figure := Figure(figsize=_SIZE_INCHES, layout="constrained")).add_subplot()
    series: dict[str, list[Standing]] = {}
    for row in table:
        series.setdefault(row.entrant.series or row.entrant.name, []).append(row)
    for label, rows in series.items():
        known = [(row.entrant.steps, row.rating, row.uncertainty) for row in rows if row.entrant.steps is not None]
        if known:
            steps, ratings, uncertainties = zip(*sorted(known), strict=True)
            axes.errorbar(steps, ratings, uncertainties, label=label, marker="o", capsize=3)
        else:
            axes.axhline(rows[0].rating, label=label, linestyle="--", color=f"C{list(series).index(label) % 10}")
    axes.set_xlabel("steps")
    axes.set_ylabel("rating")
    axes.grid(alpha=0.3)
    axes.legend()
    atomic.write_with(path, lambda temporary: figure.savefig(temporary, format=path.suffix[1:]))
