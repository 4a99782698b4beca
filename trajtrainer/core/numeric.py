"""Validation of numbers from user code and games. numpy alone would accept the text "0.5" as a number.

Shape legend: N values.
"""

import contextlib
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

LARGEST_COUNT = 2**62
"""Largest count accepted from a file: half the range of the int64 in event files, which leaves room to continue."""
_NUMBERS, _OBJECTS = "biuf", "O"
_F32 = np.dtype(np.float32)


def numbers_in(values: Any, dtype: Any) -> NDArray[Any]:
    """Return a new array with the numbers (or bools) in an array or in nested lists.

    Raises:
        TypeError: there are values of other types, such as text.
        ValueError: the lists have different lengths.
        OverflowError: an integer is too large for an integer ``dtype``.
    """
    # For a list, the dtype that numpy infers reveals values that are not numbers. An array is copied and converted in
    # one pass.
    found = values if isinstance(values, np.ndarray) else np.array(values)
    kind = found.dtype.kind
    if kind not in _NUMBERS:
        # Objects may be integers of any size, or numbers from another library. None becomes NaN, which is rejected
        # later.
        odd = [each for each in found.ravel().tolist() if each is not None and not hasattr(each, "__float__")]
        if odd or kind != _OBJECTS:
            raise TypeError(f"found {odd[0]!r}, expected a number" if odd else f"found {found.dtype}, expected numbers")
    return np.array(found, dtype) if found is values else found.astype(dtype, copy=False)


def first_not_finite(columns: Iterable[NDArray[Any]]) -> tuple[int, ...] | None:
    """Return the column number and index of the first f32 that is NaN or infinite; None if all numbers are finite."""
    for number, column in enumerate(columns):
        # This is exact, unlike checking the sum or the mean, and counting is the fastest way to do it in numpy.
        if column.dtype == _F32 and np.count_nonzero(np.isfinite(column)) != column.size:
            return number, *np.argwhere(~np.isfinite(column))[0].tolist()
    return None


def count_in(value: Any) -> int:
    """Convert a count or a step from a file to an int.

    Raises:
        ValueError: the value is larger than any run can reach, or not a number.
        TypeError, OverflowError: the value is not a number.
    """
    number = int(value)
    if abs(number) > LARGEST_COUNT:
        raise ValueError(f"found the number {float(value):g}, expected at most {LARGEST_COUNT}")
    return number


def single_numbers(values: Iterable[Any]) -> NDArray[np.float32]:
    """Convert N numbers, each a scalar or an array or list of one element, to f32 [N].

    Raises:
        TypeError: a value is not a number.
        ValueError: a value contains several numbers.
    """
    with contextlib.suppress(ValueError):  # numpy raises this for a mix of scalars and arrays
        column = numbers_in(values, np.float32)
        if column.ndim == 1:
            return column
    return np.array([numbers_in(value, np.float32).reshape(()) for value in values], np.float32)
