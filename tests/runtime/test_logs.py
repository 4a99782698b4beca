"""What is printed, and in what form."""

from __future__ import annotations

import io
import logging
import re
import sys

import pytest

from trajtrainer.runtime.logs import banner, console_logging, printable

LOGGER = logging.getLogger("trajtrainer.runtime.something")


def test_lines_are_the_peers(capsys: pytest.CaptureFixture[str]) -> None:
    with console_logging(debug=False):
        LOGGER.debug("not shown")
        LOGGER.info("Connected new brain: %s", "3DBall?team=0")
        LOGGER.warning("careful")
    assert capsys.readouterr().out == "[INFO] Connected new brain: 3DBall?team=0\n[WARNING] careful\n"


def test_debug_lines_tell_time_and_place(capsys: pytest.CaptureFixture[str]) -> None:
    with console_logging(debug=True):
        LOGGER.debug("shown")
    line = capsys.readouterr().out
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d DEBUG \[test_logs\.py:\d+\] shown\n", line)


def test_everything_is_put_back(capsys: pytest.CaptureFixture[str]) -> None:
    logger = logging.getLogger("trajtrainer")
    before = (list(logger.handlers), logger.level, logger.propagate)
    with console_logging(debug=True):
        assert logger.propagate is False
    assert (list(logger.handlers), logger.level, logger.propagate) == before
    LOGGER.info("nobody listens")
    assert capsys.readouterr().out == ""


def test_a_sink_takes_over_while_it_is_set(capsys: pytest.CaptureFixture[str]) -> None:
    lines: list[str] = []
    with console_logging(debug=False) as handler:
        handler.sink = lines.append
        LOGGER.info("above the view")
        handler.sink = None
        LOGGER.info("plain")
    assert lines == ["[INFO] above the view"]
    assert capsys.readouterr().out == "[INFO] plain\n"


def test_names_cannot_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert printable("a\x1b[2Jb\r\0\x9b\tc\nd ボ") == "a�[2Jb���\tc\nd ボ"
    with console_logging(debug=False):
        LOGGER.info("Connected new brain: %s", "\x1b[31mred")
    assert "\x1b" not in capsys.readouterr().out


def test_a_console_that_cannot_show_a_character(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    with console_logging(debug=False):
        LOGGER.info("Läufer")
    assert raw.getvalue() == b"[INFO] L\\xe4ufer\n"


def test_a_closed_pipe_ends_nothing(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    class Closed(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stdout", Closed())
    with console_logging(debug=False):
        LOGGER.info("to nobody")
    monkeypatch.setattr(sys, "stdout", None)
    with console_logging(debug=False):
        LOGGER.info("to nobody")
    assert capsys.readouterr().err == ""


def test_the_banner_names_the_versions() -> None:
    text = banner("1.5.0")
    for word in ("trajtrainer 0.", "ml-agents: 1.1.0", "ml-agents-envs: ", "Communicator API: 1.5.0", "PyTorch: 2"):
        assert word in text
    assert "unknown" not in text
