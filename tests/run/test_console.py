"""Where log lines and tracebacks of a command go."""

from __future__ import annotations

import logging

import pytest

from trajtrainer.core.errors import TrajtrainerError
from trajtrainer.run.console import console

logger = logging.getLogger("trajtrainer.somewhere")


def test_lines_go_to_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    with console(debug=False):
        logger.debug("hidden")
        logger.info("seen")

    assert capsys.readouterr() == ("[INFO] seen\n", "")


def test_stdout_can_be_left_to_the_result(capsys: pytest.CaptureFixture[str]) -> None:
    with console(debug=False, to_stderr=True):
        logger.info("seen")

    assert capsys.readouterr() == ("", "[INFO] seen\n")


@pytest.mark.parametrize("debug", [False, True])
def test_an_error_passes_and_shows_its_traceback_to_those_who_debug(
    debug: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(TrajtrainerError, match="no disk"), console(debug=debug):
        raise TrajtrainerError("no disk")

    assert ("Traceback (most recent call last)" in capsys.readouterr().out) == debug
