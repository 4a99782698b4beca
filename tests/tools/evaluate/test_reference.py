"""docs/reference/exit-codes.md has the exit code that only ``evaluate`` has."""

from __future__ import annotations

from tests.test_reference import rows
from trajtrainer.tools.evaluate import evaluate


def test_the_table_of_exit_codes_has_it() -> None:
    (code,) = (int(code) for code, command, _ in rows("exit-codes.md") if "`evaluate`" in command)
    assert code == evaluate.TOO_LOW
