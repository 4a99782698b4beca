"""What is printed, and in what form."""

from __future__ import annotations

import io
import json
import logging
import math
import os
import re
import shutil
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from trajtrainer.cli.main import main
from trajtrainer.run.logs import LogFile, banner, console_logging, fields, log_file, shell_line

LOGGER = logging.getLogger("trajtrainer.run.something")


def test_lines_are_those_of_mlagents(capsys: pytest.CaptureFixture[str]) -> None:
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


def test_names_neither_steer_the_terminal_nor_forge_lines(capsys: pytest.CaptureFixture[str]) -> None:
    with console_logging(debug=False):
        LOGGER.info("Connected new brain: %s", "\x1b[31mBall\r\n[INFO] Saved.\u2028\u202e ボ")
        LOGGER.warning("%s", ValueError("Ball\n[INFO] Saved."))
        LOGGER.info("of %s:\n\ttab: %d", Path("a\nb"), 3)
    assert capsys.readouterr().out.splitlines() == [
        r"[INFO] Connected new brain: \x1b[31mBall\r\n[INFO] Saved.\u2028\u202e ボ",
        "[WARNING] Ball",
        "  [INFO] Saved.",
        r"[INFO] of a\nb:",
        "\ttab: 3",
    ]


def test_other_handlers_get_the_record_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    with console_logging(debug=False):
        LOGGER.addHandler(caplog.handler)
        LOGGER.info("%s", "a\nb")
        LOGGER.removeHandler(caplog.handler)
    assert caplog.records[-1].args == ("a\nb",)


def test_an_error_shows_names_safely(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text('"x\\n[INFO] Saved.\\e[2J": 1\nbehaviors: {A: {"\\e[31m\\nerror: ": 2}}\n')
    assert main(["config", str(path)]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert [line for line in lines if not line.startswith(("error: 2 problems", "  "))] == []
    assert len(lines) == 3
    assert r"x\n[INFO] Saved.\x1b[2J" in lines[1]
    assert r"behaviors.A.\x1b[31m\nerror: " in lines[2]


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


class TestJson:
    """One object per line, whatever is logged."""

    def test_lines(self, capsys: pytest.CaptureFixture[str]) -> None:
        with console_logging(debug=False, as_json=True) as handler:
            handler.say("a banner\nof two lines")
            LOGGER.debug("not shown")
            LOGGER.info("%d of %s", 3, "Ball\n[INFO] \x1b[31m\udc80", extra=fields("summary", step=7, mean_reward=0.5))
            LOGGER.warning("careful", extra=fields("result", mean_reward=math.nan, elo=math.inf, is_best=True))
        banner, info, warning = map(json.loads, capsys.readouterr().out.splitlines())
        assert banner["message"] == "a banner\nof two lines"
        assert info.pop("time").endswith("Z")
        assert info == {
            "level": "INFO",
            "message": "3 of Ball\n[INFO] \x1b[31m\udc80",
            "event": "summary",
            "step": 7,
            "mean_reward": 0.5,
            "logger": LOGGER.name,
        }
        assert {"elo", "mean_reward"}.isdisjoint(warning)
        assert (warning["level"], warning["event"], warning["is_best"]) == ("WARNING", "result", True)

    def test_times_are_in_utc(self, capsys: pytest.CaptureFixture[str]) -> None:
        before = datetime.now(UTC)
        with console_logging(debug=False, as_json=True):
            LOGGER.info("now")
        line = json.loads(capsys.readouterr().out)
        assert -0.001 <= (datetime.fromisoformat(line["time"]) - before).total_seconds() < 60

    def test_a_traceback_is_part_of_the_line(self, capsys: pytest.CaptureFixture[str]) -> None:
        with console_logging(debug=True, as_json=True):
            try:
                raise ValueError("of the test")
            except ValueError:
                LOGGER.exception("it failed")
        (line,) = map(json.loads, capsys.readouterr().out.splitlines())
        assert line["message"] == "it failed"
        assert line["exception"].startswith("Traceback")
        assert line["exception"].endswith("ValueError: of the test")

    def test_an_error_that_ends_a_command_is_a_line_and_a_message(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["learn", "nowhere.yaml", "--log-format=json"]) == 1
        out, err = capsys.readouterr()
        (line,) = map(json.loads, out.splitlines())
        assert line["level"] == "ERROR"
        assert err == f"error: {line['message']}\n"

    def test_the_file_has_the_usual_lines(self, tmp_path: Path) -> None:
        path = tmp_path / "trainer.log"
        with console_logging(debug=False, as_json=True) as handler, log_file(path, handler):
            LOGGER.info("hello", extra=fields("summary", step=7))
        assert path.read_text().endswith("] hello\n")


def test_the_banner_names_the_versions() -> None:
    text = banner()
    for word in ("trajtrainer 0.", "ml-agents: 1.1.0", "ml-agents-envs: ", "Communicator API: 1.5.0", "PyTorch: 2"):
        assert word in text
    assert "unknown" not in text


TIME = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d"


def test_a_quiet_console_shows_what_is_wrong_alone(capsys: pytest.CaptureFixture[str]) -> None:
    with console_logging(debug=True, quiet=True) as handler:
        handler.say("banner")
        LOGGER.info("all is well")
        LOGGER.warning("careful")
    assert capsys.readouterr().out.splitlines()[0].endswith("careful")


def test_the_file_has_everything_with_times(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "run_logs" / "trainer.log"
    with console_logging(debug=False, quiet=True) as handler:
        LOGGER.info("before the folder is known")
        with log_file(path, handler):
            LOGGER.debug("many hyperparameters")
            LOGGER.info("Connected new brain: %s", "\x1b[31mBall")
        LOGGER.info("after the run")
        with log_file(path, handler):
            LOGGER.info("resumed")
    assert capsys.readouterr().out == ""
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if not line.startswith(" ")]
    patterns = [
        r"INFO \[logs.py:0\] trajtrainer 0\..*",
        r"INFO \[test_logs.py:\d+\] before the folder is known",
        r"DEBUG \[test_logs.py:\d+\] many hyperparameters",
        r"INFO \[test_logs.py:\d+\] Connected new brain: \\x1b\[31mBall",
        r"INFO \[logs.py:0\] trajtrainer 0\..*",
        r"INFO \[test_logs.py:\d+\] resumed",
    ]
    assert len(lines) == len(patterns)
    for line, pattern in zip(lines, patterns, strict=True):
        assert re.fullmatch(f"{TIME} {pattern}", line), line


def test_the_file_tells_what_ended_the_run(tmp_path: Path) -> None:
    path = tmp_path / "trainer.log"
    with pytest.raises(ZeroDivisionError), log_file(path, None):
        print(1 / 0)
    text = path.read_text(encoding="utf-8")
    assert "The run ends: division by zero\n  Traceback (most recent call last):" in text
    assert logging.getLogger("trajtrainer").handlers == []


def test_a_run_that_writes_nothing_has_no_file(tmp_path: Path) -> None:
    with console_logging(debug=False) as handler, log_file(None, handler):
        LOGGER.info("watching")
        assert handler.early is None
    assert list(tmp_path.iterdir()) == []


def test_the_file_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trajtrainer.run.logs._FILE_BYTES", 3000)
    with console_logging(debug=False, quiet=True) as handler, log_file(tmp_path / "trainer.log", handler):
        for number in range(500):
            LOGGER.info("line %d", number)
    sizes = {path.name: path.stat().st_size for path in tmp_path.iterdir()}
    assert set(sizes) == {"trainer.log", "trainer.log.1", "trainer.log.2", "trainer.log.3"}
    assert max(sizes.values()) <= 3000
    assert "line 499" in (tmp_path / "trainer.log").read_text()


def test_a_file_that_cannot_be_rotated_grows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trajtrainer.run.logs._FILE_BYTES", 3000)

    def refuse(source: str, target: str) -> None:  # as Windows does while another program has it open
        raise PermissionError(13, "in use", source)

    monkeypatch.setattr(os, "rename", refuse)
    with console_logging(debug=False, quiet=True) as handler, log_file(tmp_path / "trainer.log", handler):
        for number in range(100):
            LOGGER.info("line %d", number)
    text = (tmp_path / "trainer.log").read_text()
    assert [f"line {number}" in text for number in range(100)] == [True] * 100


def test_losing_the_file_is_told_once_and_ends_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "logs" / "trainer.log"
    with console_logging(debug=False) as handler, log_file(path, handler):
        shutil.rmtree(path.parent)
        LOGGER.info("one")  # makes it again
        assert "one" in path.read_text()
        shutil.rmtree(path.parent)
        path.parent.write_text("a file where the folder was")
        LOGGER.info("two")
        LOGGER.info("three")
        path.parent.unlink()
        LOGGER.info("four")
        assert "four" in path.read_text()
    shown = capsys.readouterr()
    assert shown.out.splitlines()[:4] == [
        "[INFO] one",
        "[INFO] two",
        f"[WARNING] The log file {path} cannot be written.",
        "[INFO] three",
    ]
    assert shown.err == ""


def test_a_closed_pipe_is_told_once_in_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Closed(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    path = tmp_path / "trainer.log"
    with console_logging(debug=False) as handler, log_file(path, handler):
        monkeypatch.setattr(sys, "stdout", Closed())
        for number in range(3):
            LOGGER.info("line %d", number)
    text = path.read_text()
    assert text.count("The console output is no longer read") == 1
    assert text.index("line 0") < text.index("The console output is no longer read") < text.index("line 1")


def test_handling_a_failing_record_is_left_to_logging(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = LogFile(tmp_path / "trainer.log")
    file.handle(logging.LogRecord("trajtrainer", logging.INFO, __file__, 1, "%d", ("no number",), None))
    assert "--- Logging error ---" in capsys.readouterr().err


@pytest.mark.parametrize(("system", "line"), [("posix", "a 'b c' --d"), ("nt", 'a "b c" --d')])
def test_a_line_for_the_shell(system: str, line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trajtrainer.run.logs.os.name", system)
    assert shell_line(["a", "b c", "--d"]) == line
