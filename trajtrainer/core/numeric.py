"""Numbers from code and games that are not ours. numpy alone would read the text "0.5" as a number.

Shape legend: N values.
"""

import contextlib
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

LARGEST_COUNT = 2**62
"""Half of what the 64 bits of an event file hold, so that a run can continue from it."""
_NUMBERS, _OBJECTS = "biuf", "O"
_F32 = np.dtype(np.float32)


def numbers_in(values: Any, dtype: Any) -> NDArray[Any]:
    """A new array of the numbers (or truth values) of an array or of nested lists.

    Raises:
        TypeError: there is something else, such as text.
        ValueError: lists of different lengths.
        OverflowError: a whole number that is too large for an integer type.
    """
    # The type that numpy finds for a list shows what is in it. An array is copied and converted in one pass.
    found = values if isinstance(values, np.ndarray) else np.array(values)
    kind = found.dtype.kind
    if kind not in _NUMBERS:
        # Objects may be numbers of any size, or of another library. None becomes NaN, which is refused as such.
        odd = [each for each in found.ravel().tolist() if each is not None and not hasattr(each, "__float__")]
        if odd or kind != _OBJECTS:
            raise TypeError(f"found {odd[0]!r}, expected a number" if odd else f"found {found.dtype}, expected numbers")
    return np.array(found, dtype) if found is values else found.astype(dtype, copy=False)


def first_not_finite(columns: Iterable[NDArray[Any]]) -> tuple[int, ...] | None:
    """The first f32 that is NaN or infinite: the number of its column, and its place in it. None if there is none."""
    for number, column in enumerate(columns):
        # Exact, unlike checking the sum or the mean. Counting is numpy's fastest way.
        if column.dtype == _F32 and np.count_nonzero(np.isfinite(column)) != column.size:
            return number, *np.argwhere(~np.isfinite(column))[0].tolist()
    return None


def count_in(value: Any) -> int:
    """A count or a step from a file.

    Raises:
        ValueError: no run reaches it, or it is no number.
        TypeError, OverflowError: it is no number.
    """
    number = int(value)
    if abs(number) > LARGEST_COUNT:
        raise ValueError(f"found the number {float(value):g}, expected at most {LARGEST_COUNT}")
    return number


def single_numbers(values: Iterable[Any]) -> NDArray[np.float32]:
    """N numbers, each by itself or in an array or list of one element, as f32 [N].

    Raises:
        TypeError: one is no number.
        ValueError: one is several numbers.
    """
    with contextlib.suppress(ValueError):  # some by themselves, others in arrays
        column = numbers_in(values, np.float32)
        if column.ndim == 1:
            return column
    return np.array([numbers_in(value, np.float32).reshape(()) for value in values], np.float32)
