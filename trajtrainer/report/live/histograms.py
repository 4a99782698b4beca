"""Histograms of event files as percentiles, which can be drawn over steps as curves can."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from tensorboard.util.tensor_util import make_ndarray

Floats = NDArray[np.float64]

LEVELS = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)
"""Of the percentiles that are kept: lowest, 5 %, 25 %, median, 75 %, 95 %, highest."""
_LARGEST = 1e300


def percentiles(histogram: Any) -> Floats | None:
    """Return the percentiles of a ``HistogramProto``, f64 [7]; None if it is empty or damaged.

    Values are taken to be spread evenly within a bucket.
    """
    counts = np.array(histogram.bucket, np.float64)
    borders = np.concatenate([[histogram.min], np.array(histogram.bucket_limit, np.float64)])
    return _interpolated(borders, counts, histogram.min, histogram.max)


def percentiles_of_tensor(tensor: Any) -> Floats | None:
    """Return the same of a newer histogram: a tensor of rows of left border, right border and count."""
    try:
        rows = np.asarray(make_ndarray(tensor), np.float64)
    except (TypeError, ValueError):
        return None
    if rows.ndim != 2 or rows.shape[1] != 3 or not len(rows):
        return None
    filled = np.flatnonzero(rows[:, 2] > 0)
    if not len(filled):
        return None
    rows = rows[filled[0] : filled[-1] + 1]
    return _interpolated(np.append(rows[0, 0], rows[:, 1]), rows[:, 2], rows[0, 0], rows[-1, 1])


def _interpolated(borders: Floats, counts: Floats, low: float, high: float) -> Floats | None:
    if len(borders) != len(counts) + 1 or not -_LARGEST < low <= high < _LARGEST:
        return None
    with np.errstate(over="ignore", invalid="ignore"):
        numbers = np.concatenate([[0.0], np.cumsum(counts)])
    borders = np.clip(borders, low, high)
    is_sound = np.isfinite(numbers).all() and (counts >= 0).all() and not np.isnan(borders).any()
    if not is_sound or numbers[-1] <= 0 or (np.diff(borders) < 0).any():
        return None
    found: Floats = np.interp(np.array(LEVELS) * numbers[-1], numbers, borders)
    found[0], found[-1] = low, high
    return found
