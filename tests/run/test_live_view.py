"""The live view, rendered to a console that remembers."""

from __future__ import annotations

import io
import logging
import os
import re
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from rich.console import Console

from trajtrainer.core.stats import StatsReporter
from trajtrainer.run.live_view import LiveView, count, duration, make_view, render, sparkline
from trajtrainer.run.logs import ConsoleHandler, console_logging
from trajtrainer.run.progress import BehaviorProgress, ProgressView, RewardHistory, RunProgress

RUN = RunProgress(
    [
        BehaviorProgress("3DBall", 1_234_567, 2_000_000, [1, 5, 20, 60, 95, 99.2]),
        BehaviorProgress("Fresh", 0, 500_000),
        BehaviorProgress("Basic", 6022, 6000, [0.18, 0.93]),
        BehaviorProgress("Opponent", 60, 6000, [-1.5], training=False),
    ],
    {"mass": "Heavy", "scale": "Small"},
)
RATES = {"3DBall": 8123.4, "Fresh": None, "Basic": 0.0, "Opponent": 12.0}


def drawn(run: RunProgress, width: int = 100, *, encoding: str = "utf-8") -> str:
    console = Console(file=io.TextIOWrapper(io.BytesIO(), encoding=encoding), width=width, record=True)
    console.print(render(run, RATES, 754.0, console.options))
    return console.export_text()


def test_a_line_per_behavior_tells_all() -> None:
    lines = drawn(RUN).splitlines()
    assert [word for word in ("step", "left", "reward", "steps/s") if word not in lines[1]] == []
    ball, fresh, basic, opponent = (lines[number].split() for number in (2, 3, 4, 5))
    assert ball[0] == "3DBall"
    assert ball[2:] == ["61%", "1.23M/2M", "1m", "34s", "99.200", "▁▁▂▅██", "8,123"]
    assert fresh[1:] == ["0%", "0/500k", "-", "-", "-"]
    assert basic[2:] == ["100%", "6.02k/6k", "done", "0.930", "▁█", "0"]
    assert opponent[-5:] == ["1%", "60/6k", "acting", "-1.500", "12"]
    assert lines[6].split() == ["12m", "34s", "elapsed", "lessons", "mass:", "Heavy,", "scale:", "Small"]


def test_evaluation_and_best_are_shown_where_there_are_any() -> None:
    ball, fresh, *_ = RUN.behaviors
    judged = replace(RUN, behaviors=[replace(ball, evaluated=98.5, best=99.9), fresh], epoch="3 of 10")
    lines = drawn(judged).splitlines()
    assert lines[1].split() == ["step", "left", "reward", "evaluated", "best", "steps/s"]
    assert lines[2].split()[-3:] == ["98.500", "99.900", "8,123"]
    assert lines[3].split()[-3:] == ["-", "-", "-"]
    assert lines[4].split()[:6] == ["12m", "34s", "elapsed", "epoch", "3", "of"]
    assert "evaluated" not in drawn(judged, 80)
    assert "best" not in drawn(RUN, 200)


def test_a_behavior_that_has_trained_enough_is_done_before_its_last_step() -> None:
    (ball, *_) = RUN.behaviors
    line = drawn(replace(RUN, behaviors=[replace(ball, training=False, done=True)])).splitlines()[2]
    assert "done" in line
    assert "acting" not in line


@pytest.mark.parametrize("width", [56, 60, 70, 78, 80, 100, 200])
def test_every_width_shows_every_number(width: int) -> None:
    text = drawn(RUN, width)
    assert max(len(line.rstrip()) for line in text.splitlines()) <= width
    for number in ("61%", "1.23M/2M", "1m 34s", "99.200", "8,123", "acting", "12m 34s elapsed"):
        assert number in text
    assert ("━" in text) == (width >= 64)
    assert ("▂" in text) == (width >= 78)


@pytest.mark.parametrize("width", [20, 32, 40, 47])
def test_no_width_takes_the_name(width: int) -> None:
    lines = drawn(RUN, width).splitlines()
    assert max(len(line.rstrip()) for line in lines) <= width
    assert [line.split()[0][:5] for line in lines[2:6]] == ["3DBal", "Fresh", "Basic", "Oppon"]
    if width >= 40:
        assert [line.split()[-1] for line in lines[2:6]] == ["99.200", "-", "0.930", "-1.500"]


def test_an_ended_run_leaves_no_time() -> None:
    lines = drawn(replace(RUN, ended=True)).splitlines()
    assert [("stopped" in line, "done" in line) for line in lines[2:6]] == [
        (True, False),
        (True, False),
        (False, True),
        (True, False),
    ]
    assert "1m 34s" not in lines[2]


def test_ascii_terminals_get_ascii() -> None:
    assert drawn(RUN, encoding="ascii").isascii()


def test_before_the_first_agents() -> None:
    assert "Waiting for the environment" in drawn(RunProgress([]))


def test_hostile_names_are_shown_as_they_are() -> None:
    name = "[red]x\x1b[2J\n"
    text = drawn(RunProgress([BehaviorProgress(name, 1, 2)], {"[b]p": "\x1b[0ml"}), 160)
    assert r"[red]x\x1b[2J\n" in text
    assert r"[b]p: \x1b[0ml" in text
    assert "\x1b" not in text


class Terminal(io.StringIO):
    """Stands in for the terminal behind ``sys.stdout``. To be made inside the test: pytest sets ``sys.stdout`` anew
    between a fixture and its test."""

    encoding = "utf-8"

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.descriptor = -1
        for name in ("NO_COLOR", "CI", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("TERM", "xterm-256color")
        monkeypatch.setenv("COLUMNS", "100")
        monkeypatch.setattr(sys, "stdout", self)

    def isatty(self) -> bool:
        return True

    def fileno(self) -> int:
        return self.descriptor


def plain(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)


def test_the_view_stays_below_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal(monkeypatch)
    logger = logging.getLogger("trajtrainer.run.test")
    line = "3DBall. Step: 1000. Time Elapsed: 1.289 s. Mean Reward: 1.639. Std of Reward: 0.728. [b]Training[/b]. " * 2
    with console_logging(debug=False) as handler:
        view = make_view(handler, debug=False)
        assert isinstance(view, LiveView)
        view.update(RUN)
        logger.info(line)
        print("a stray print")
        view.update(RUN)
        view.close()
        logger.info("after the view")
    text = plain(terminal.getvalue())
    assert f"[INFO] {line}\n" in text, "whole, unwrapped, no markup read"
    assert "a stray print" in text
    assert text.rindex("3DBall  ") > text.index("[INFO] 3DBall."), "drawn again below"
    assert text.endswith("[INFO] after the view\n")
    assert "stopped" in text[text.rindex("3DBall  ") :]
    assert terminal.getvalue().count("\x1b[?25h") == 1, "the cursor is back"
    assert sys.stdout is terminal


def test_closing_twice_and_abandoning(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal(monkeypatch)
    reader, writer = os.pipe()
    terminal.descriptor = writer
    handler = ConsoleHandler()
    view = make_view(handler, debug=False)
    view.abandon()
    view.close()
    view.close()
    assert handler.sink is None
    os.close(writer)
    assert os.read(reader, 100) == b"\x1b[?25h"
    os.close(reader)


@pytest.mark.parametrize(
    ("debug", "environ"),
    [(True, {}), (False, {"CI": "true"}), (False, {"TERM": "dumb"})],
)
def test_no_view_where_a_machine_reads(monkeypatch: pytest.MonkeyPatch, debug: bool, environ: dict[str, str]) -> None:
    terminal = Terminal(monkeypatch)
    handler = ConsoleHandler()
    view = make_view(handler, debug=debug, environ=environ)
    assert type(view) is ProgressView
    assert not view.due()
    view.update(RUN)
    view.close()
    view.abandon()
    assert handler.sink is None
    assert terminal.getvalue() == ""


def test_no_view_on_a_quiet_console(monkeypatch: pytest.MonkeyPatch) -> None:
    Terminal(monkeypatch)
    assert type(make_view(ConsoleHandler(quiet=True), debug=False, environ={})) is ProgressView


def test_a_terminal_that_is_gone_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal(monkeypatch)
    view = make_view(ConsoleHandler(), debug=False)
    view.update(RUN)

    def fail(text: str) -> int:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(terminal, "write", fail)
    view.update(RUN)
    view.close()


def test_no_view_in_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    assert type(make_view(ConsoleHandler(), debug=False, environ={})) is ProgressView


def test_redraws_are_limited_and_give_the_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal(monkeypatch)
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    view = LiveView(Console())
    assert view.due()
    view.update(RunProgress([BehaviorProgress("Ball", 0, 100_000)]))
    assert not view.due()
    now += 0.6
    assert view.due()
    view.update(RunProgress([BehaviorProgress("Ball", 600, 100_000)]))
    now += 0.4
    view.update(RunProgress([BehaviorProgress("Ball", 2000, 100_000)]))
    view.close()
    last = plain(terminal.getvalue()).strip().splitlines()[-2].split()
    assert last[2:] == ["2%", "2k/100k", "stopped", "-", "2,000"]
    assert "49s" in plain(terminal.getvalue())


def test_a_summary_is_shown_however_slow_the_terminal_is(monkeypatch: pytest.MonkeyPatch) -> None:
    Terminal(monkeypatch)
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    view = LiveView(Console())
    monkeypatch.setattr("trajtrainer.run.live_view._PAUSE_PER_COST", 1e9)

    def slow(*_arguments: object) -> None:
        nonlocal now
        now += 0.1

    monkeypatch.setattr(view, "_show", slow)
    snapshot = RunProgress([BehaviorProgress("Ball", 0, 100_000)])
    assert view.due(0)
    view.update(snapshot)
    now += 1000
    assert not view.due(0), "a redraw costs too much to be made without a reason"
    assert view.due(1)
    view.update(snapshot)
    assert not view.due(2), "that was a moment ago"
    assert not view.due(2)
    now += 0.6
    assert view.due(2)
    view.update(snapshot)
    now += 1000
    assert not view.due(2)


def test_reward_history_remembers_each_summary() -> None:
    history = RewardHistory()
    reporter = StatsReporter("Ball", [history])
    for reward in (1.0, 2.0):
        reporter.add_many("Environment/Cumulative Reward", [reward, reward + 1])
        reporter.write(1)
        reporter.write(2)  # nothing ended
    assert history.of("Ball") == [1.5, 2.5]
    assert history.num_summaries == 4, "also those in which no episode ended"
    assert history.of("Other") == []


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([], ""),
        ([1.0], ""),
        ([0, 1], "▁█"),
        ([5, 5, 5], "▄▄▄"),
        (range(8), "▁▂▃▄▅▆▇█"),
        (range(80), "▁▂▃▄▅▆▇█"),
        ([0.0, float("nan"), float("inf"), 7.0], "▁█"),
    ],
)
def test_sparklines(values: Sequence[float], expected: str) -> None:
    assert sparkline(values, 8) == expected


@settings(deadline=None)
@example([4.6e303, -1.7976470484019193e308], 2)
@example([1.7e308, 1.7e308, 0.0, 0.0], 2)
@given(st.lists(st.floats(), max_size=50), st.integers(0, 20))
def test_sparklines_of_anything(values: list[float], width: int) -> None:
    assert len(sparkline(values, width)) <= width


@pytest.mark.parametrize(
    ("steps", "expected"),
    [(0, "0"), (999, "999"), (1000, "1k"), (12_549, "12.54k"), (1_999_999, "1.99M"), (2 * 10**9, "2G")],
)
def test_counts(steps: int, expected: str) -> None:
    assert count(steps) == expected


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(0.4, "0s"), (59.9, "59s"), (60, "1m 00s"), (3600, "1h 00m"), (86399, "23h 59m"), (187_200, "2d 04h")],
)
def test_durations(seconds: float, expected: str) -> None:
    assert duration(seconds) == expected


class Notebook:
    """What ``IPython.display`` does: ``display`` makes a place below the cell, ``update`` changes what stands there."""

    def __init__(self) -> None:
        self.places: list[list[dict[str, str]]] = []

    def display(self, content: dict[str, str], *, raw: bool, display_id: bool) -> SimpleNamespace:
        assert raw
        assert display_id
        shown = [content]
        self.places.append(shown)
        return SimpleNamespace(update=lambda content, raw: shown.append(content))


def test_below_a_cell_it_is_drawn_in_one_place(monkeypatch: pytest.MonkeyPatch) -> None:
    notebook = Notebook()
    shell = SimpleNamespace(kernel=object())
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    monkeypatch.setitem(sys.modules, "IPython.display", notebook)
    with console_logging(debug=False) as handler:
        view = make_view(handler, debug=False, environ={})
        assert view.due()
        evil = replace(RUN, behaviors=[replace(RUN.behaviors[0], name="<script>x</script>"), *RUN.behaviors[1:]])
        view.update(RUN)
        assert not view.due()
        view.update(evil)
        view.close()
        view.close()
    (shown,) = notebook.places
    assert len(shown) == 3
    assert "1.23M/2M" in shown[0]["text/plain"]
    assert "99.200" in shown[0]["text/html"]
    assert "▁▂▅██" in shown[0]["text/html"]
    assert "&lt;script" in shown[1]["text/html"]
    assert "<script" not in shown[1]["text/html"]
    assert "stopped" in shown[2]["text/plain"]


@pytest.mark.parametrize("environ", [{"CI": "true"}, {}])
def test_a_terminal_of_ipython_is_no_notebook(monkeypatch: pytest.MonkeyPatch, environ: dict[str, str]) -> None:
    shell = None if environ else SimpleNamespace()
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    with console_logging(debug=False) as handler:
        assert type(make_view(handler, debug=False, environ=environ)) is ProgressView
