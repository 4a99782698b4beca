"""The course of a statistic over several seeds: interquartile mean and its bootstrap interval (Agarwal et al. 2021).

Shape legend: S seeds, G steps of the grid, R resamples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trajtrainer.rundir.series import Series

LEVEL = 0.95
_RESAMPLES = 2000
_LAST_PART = 0.1
_SEED = 0
_NEIGHBOURS = 0.25  # of the distance between two points of a run
_MOST_AT_ONCE = 1 << 22  # numbers of one piece of the resamples


@dataclass(frozen=True, slots=True)
class Course:
    """The course over all seeds.

    Attributes:
        steps: i64 [G].
        middle: interquartile mean over the seeds, f64 [G]; of fewer than 4 seeds it is the mean.
        low: lower end of the 95 % interval, f64 [G]; the same as ``middle`` with one seed.
        high: its upper end, f64 [G].
        num_seeds: how many seeds have got to each step, i64 [G].
    """

    steps: NDArray[np.int64]
    middle: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    num_seeds: NDArray[np.int64]


def interquartile_mean(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the mean of the middle half along the first axis: what ``scipy.stats.trim_mean(values, 0.25)`` gives."""
    cut = len(values) // 4
    middle: NDArray[np.float64] = np.sort(values, axis=0)[cut : len(values) - cut].mean(axis=0)
    return middle


def late_mean(series: Series) -> float:
    """Return the mean over the last tenth of a run's steps."""
    begin = series.steps[-1] - _LAST_PART * (series.steps[-1] - series.steps[0])
    return float(series.values[series.steps >= begin].mean())


def interval(values: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the percentile bootstrap interval of the interquartile mean, [G] each.

    Seeds are drawn with replacement, whole courses at a time. The bootstrap is stratified by task (Agarwal et al.
    2021); a behavior of a group is one task here.

    Args:
        values: f64 [S, G].
    """
    num_seeds, width = values.shape
    draws = np.random.default_rng(_SEED).integers(num_seeds, size=(num_seeds, _RESAMPLES))
    piece = max(1, _MOST_AT_ONCE // (num_seeds * _RESAMPLES))
    tails = [(1 - LEVEL) / 2, (1 + LEVEL) / 2]
    ends = [
        np.quantile(interquartile_mean(values[:, start : start + piece][draws]), tails, axis=0)
        for start in range(0, width, piece)
    ]
    low, high = np.concatenate(ends, axis=1) if ends else np.empty((2, 0))
    return low, high


def course(runs: Sequence[Series], most: int) -> Course:
    """Return the course over some runs, at most ``most`` steps of it.

    Between its points a run's course is taken for straight. A run counts from its first to its last step, so that
    one that was ended early takes nothing away from the others.
    """
    begins, steps = _grid(runs)
    if len(steps) > most:
        chosen = np.linspace(0, len(steps) - 1, most).round().astype(np.int64)
        begins, steps = begins[chosen], steps[chosen]
    values = np.full((len(runs), len(steps)), np.nan)
    for row, run in zip(values, runs, strict=True):
        inside = (steps >= run.steps[0]) & (begins <= run.steps[-1])
        row[inside] = np.interp(steps[inside], run.steps, run.values)
    there = ~np.isnan(values)
    middle, low, high = (np.full(len(steps), np.nan) for _ in range(3))
    for kind in np.unique(there, axis=1).T:
        columns = (there == kind[:, None]).all(axis=0)
        if not kind.any():
            continue
        some = values[np.ix_(kind, columns)]
        middle[columns] = interquartile_mean(some)
        low[columns], high[columns] = interval(some) if kind.sum() > 1 else (some[0], some[0])
    return _without_gaps(Course(steps, middle, low, high, there.sum(axis=0)))


def _grid(runs: Sequence[Series]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the steps of all runs, neighbors taken together: the first and the last step of each point.

    Evaluations are due at the same steps with each seed and come a little later, with each by another number of steps.
    Apart they would be points of some of the seeds, and the line would jump.
    """
    steps = np.unique(np.concatenate([run.steps for run in runs]))
    reach = min((np.median(np.diff(run.steps)) * _NEIGHBOURS for run in runs if len(run.steps) > 1), default=0.0)
    begins: list[int] = []
    ends: list[int] = []
    for step in steps.tolist():
        if begins and step <= begins[-1] + reach:
            ends[-1] = step
        else:
            begins.append(step)
            ends.append(step)
    return np.array(begins), np.array(ends)


def _without_gaps(found: Course) -> Course:
    """Return it without the steps that no run has: one ended before the other began."""
    there = found.num_seeds > 0
    return Course(found.steps[there], found.middle[there], found.low[there], found.high[there], found.num_seeds[there])
