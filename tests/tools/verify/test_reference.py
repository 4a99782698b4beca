"""docs/reference/exit-codes.md has the exit code of ``verify`` for bad input."""

from __future__ import annotations

import pytest

from tests.test_reference import rows
from trajtrainer.cli.main import main
from trajtrainer.tools.verify.command import _BAD_INPUT


def test_the_table_of_exit_codes_has_it(capsys: pytest.CaptureFixture[str]) -> None:
    (meaning,) = (meaning for code, _, meaning in rows("exit-codes.md") if int(code) == _BAD_INPUT)
    assert "`verify`: also a model or a recording that cannot be read." in meaning
    assert main(["verify", "no-such-file.onnx", "no-such-file.demo"]) == 2
    assert "error" in capsys.readouterr().err
