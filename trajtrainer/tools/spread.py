"""Aggregates a statistic over several seeds: interquartile mean and bootstrap interval (Agarwal et al. 2021).

Shape legend: S seeds, G grid points (steps), L levels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trajtrainer.policies.folder.series import Series

_LEVEL = 0.95
_TAILS = ((1 - _LEVEL) / 2, (1 + _LEVEL) / 2)
_RESAMPLES = 2000
_LAST_PART = 0.1
_SEED = 0
_POINTS = 201  # number of points that represent a distribution, including the usual percentiles
_NEIGHBORS = 0.25  # steps closer than this are merged, as a fraction of the distance between two points of a run
_MAX_AT_ONCE = 1 << 22  # resamples are computed in chunks of at most this many numbers


@dataclass(frozen=True, slots=True)
class Aggregate:
    """A statistic, aggregated over all seeds.

    Attributes:
        steps: steps of the grid, i64 [G].
        middle: interquartile mean over the seeds, f64 [G]; with fewer than 4 seeds, the mean.
        low: lower end of the 95% interval, f64 [G]; with one seed, the same as ``middle``.
        high: upper end of the interval, f64 [G].
        num_seeds: number of seeds with a value at each step, i64 [G].
    """

    steps: NDArray[np.int64]
    middle: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    num_seeds: NDArray[np.int64]


def interquartile_mean(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the mean of the middle half along the first axis, like ``scipy.stats.trim_mean(values, 0.25)``."""
    cut = len(values) // 4
    middle: NDArray[np.float64] = np.sort(values, axis=0)[cut : len(values) - cut].mean(axis=0)
    return middle


def late_mean(series: Series) -> float:
    """Return the mean over the last tenth of a run's steps."""
    begin = series.steps[-1] - _LAST_PART * (series.steps[-1] - series.steps[0])
    return float(series.values[series.steps >= begin].mean())


def interval(values: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the percentile bootstrap interval of the interquartile mean: low and high, f64 [G] each.

    Whole runs are resampled. The paper stratifies the bootstrap by task; here, each behavior of a group is one task.

    Args:
        values: the values of all seeds, f64 [S, G].
    """
    num_seeds, width = values.shape
    draws = np.random.default_rng(_SEED).integers(num_seeds, size=(num_seeds, _RESAMPLES))
    piece = max(1, _MAX_AT_ONCE // (num_seeds * _RESAMPLES))
    ends = [
        np.quantile(interquartile_mean(values[:, start : start + piece][draws]), _TAILS, axis=0)
        for start in range(0, width, piece)
    ]
    low, high = np.concatenate(ends, axis=1)
    return low, high


def difference_interval(values: NDArray[np.float64], first: NDArray[np.float64]) -> tuple[float, float]:
    """Return the percentile bootstrap interval of the difference of two interquartile means: low and high.

    The seeds of each side are resampled independently, because runs with the same seed are not paired samples.

    Args:
        values: one value per seed, f64 [S].
        first: the values to compare with, f64 [S]; the number of seeds may differ.
    """
    random = np.random.default_rng(_SEED)
    means, others = (
        interquartile_mean(side[random.integers(len(side), size=(len(side), _RESAMPLES))]) for side in (values, first)
    )
    low, high = np.quantile(means - others, _TAILS)
    return float(low), float(high)


def aggregate(runs: Sequence[Series], most: int) -> Aggregate:
    """Aggregate runs at up to ``most`` steps.

    Runs are interpolated linearly between their points. Each run counts from its first to its last step, so a run that
    ended early does not shorten the others.
    """
    steps, values = _on_grid(runs, most)
    known = ~np.isnan(values).all(axis=0)  # runs may not overlap, which leaves gaps
    steps, values = steps[known], values[:, known]
    there = ~np.isnan(values)
    middle, low, high = np.empty((3, len(steps)))
    for kind in np.unique(there, axis=1).T:
        columns = (there == kind[:, None]).all(axis=0)
        some = values[np.ix_(kind, columns)]
        middle[columns] = interquartile_mean(some)
        low[columns], high[columns] = interval(some) if kind.sum() > 1 else (some[0], some[0])
    return Aggregate(steps, middle, low, high, there.sum(axis=0))


def pooled_percentiles(
    runs: Sequence[Sequence[Series]], levels: Sequence[float], most: int
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the percentiles of all runs pooled with equal weights, at up to ``most`` steps.

    A run's values are assumed to be uniformly distributed between two neighboring percentiles.

    Args:
        runs: for each run, one series per level with that percentile.
        levels: the L levels of the percentiles, from 0 to 1, in ascending order.
        most: maximum number of steps.

    Returns:
        Steps i64 [G], and the percentiles at the same levels, f64 [L, G].
    """
    grids = [_on_grid(column, most) for column in zip(*runs, strict=True)]
    steps, known = grids[0][0], np.stack([values for _, values in grids])  # [L, S, G]
    there = ~np.isnan(known).all(axis=(0, 1))
    steps, known = steps[there], known[:, :, there]
    points = np.linspace(0.0, 1.0, _POINTS)
    weights = np.stack([np.interp(points, levels, row) for row in np.eye(len(levels))], axis=1)  # one column per level
    samples = np.tensordot(weights, known, 1).reshape(-1, len(steps))
    return steps, np.nanquantile(samples, levels, axis=0)


def _on_grid(runs: Sequence[Series], most: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the grid's steps, i64 [G], and the values there, f64 [S, G], with NaN outside a run's steps."""
    begins, steps = _grid(runs)
    if len(steps) > most:
        chosen = np.linspace(0, len(steps) - 1, most).round().astype(np.int64)
        begins, steps = begins[chosen], steps[chosen]
    values = np.full((len(runs), len(steps)), np.nan)
    for row, run in zip(values, runs, strict=True):
        inside = (steps >= run.steps[0]) & (begins <= run.steps[-1])
        row[inside] = np.interp(steps[inside], run.steps, run.values)
    return steps, values


def _grid(runs: Sequence[Series]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Group neighboring steps of all runs, and return the first and the last step of each group.

    Evaluations are due at the same steps in every run, but each run makes them a few steps later. If all these steps
    were separate points, each point would only have one seed, and the line would jump.
    """
    steps = np.unique(np.concatenate([run.steps for run in runs]))
    reach = min((np.median(np.diff(run.steps)) * _NEIGHBORS for run in runs if len(run.steps) > 1), default=0.0)
    begins: list[int] = []
    ends: list[int] = []
    for step in steps.tolist():
        if not begins or step > begins[-1] + reach:
            begins.append(step)
            ends.append(step)
        ends[-1] = step
    return np.array(begins), np.array(ends)
