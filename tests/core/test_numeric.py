"""Numbers are numbers, and text is not."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from trajtrainer.core.numeric import count_in, numbers_in, single_numbers


@pytest.mark.parametrize(
    "values",
    [
        "1",
        b"1",
        ["0.5", 1.0],
        [[0.5], ["1"]],
        [np.array("1"), 2.0],
        np.array(["1"]),
        np.array(["1", 2.0], object),
        [{}, 1],
        [1 + 2j],
        [np.datetime64(5, "ns")],
    ],
)
def test_what_is_no_number_is_refused(values: Any) -> None:
    with pytest.raises(TypeError, match="expected"):
        numbers_in(values, np.float32)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1, True, np.float32(0.5)], [1, 1, 0.5]),
        ([[1, 2], (3, 4)], [[1, 2], [3, 4]]),
        ([2**70, Fraction(1, 2)], [2.0**70, 0.5]),
        (np.array([1, 2], np.uint8), [1, 2]),
        ([], []),
        (3, 3),
    ],
)
def test_numbers_of_any_type_are_taken(values: Any, expected: Any) -> None:
    found = numbers_in(values, np.float32)
    assert found.dtype == np.float32
    assert found.tolist() == expected


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_result_is_always_a_copy(dtype: Any) -> None:
    values = np.zeros(3, dtype)
    assert not np.shares_memory(numbers_in(values, np.float32), values)


def test_a_number_may_be_in_an_array_of_one_element() -> None:
    assert single_numbers([1.0, np.array([2.0]), [3], np.array([[4.0]]), np.array(5)]).tolist() == [1, 2, 3, 4, 5]
    assert single_numbers(np.array([[1.0], [2.0]])).tolist() == [1, 2]
    wrong: list[list[Any]] = [[np.zeros(2), 1.0], [np.zeros(2)], [[]]]
    for several in wrong:
        with pytest.raises(ValueError, match="reshape"):
            single_numbers(several)
    with pytest.raises(TypeError, match="found '1'"):
        single_numbers([np.array(["1"]), 2.0])


@pytest.mark.parametrize("value", [2**70, -(2**70), 1e300, float("inf"), float("nan"), "x", None])
def test_counts_of_files_that_no_run_reaches(value: Any) -> None:
    with pytest.raises((ValueError, OverflowError, TypeError)):
        count_in(value)
    assert count_in(2**62) == 2**62
