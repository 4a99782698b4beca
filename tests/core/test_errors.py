"""Errors in messages."""

from __future__ import annotations

import pytest

from trajtrainer.core.errors import first_line


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError("one\ntwo"), "ValueError: one"),
        (KeyError(), "KeyError"),
        (RuntimeError("  \n"), "RuntimeError"),
        (OSError("x" * 300), "OSError: " + "x" * 200),
    ],
)
def test_an_error_fits_in_one_line(error: BaseException, line: str) -> None:
    assert first_line(error) == line
