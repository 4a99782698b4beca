"""Ending a run from outside."""

from __future__ import annotations

import logging
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from trajtrainer.run import signals
from trajtrainer.run.signals import StopInterrupt, StopRequest, stop_on_signals, stop_when_asked

WATCHED = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]

pytestmark = pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="sends POSIX signals")


@pytest.fixture(autouse=True)
def _heard() -> Iterator[None]:
    """Signals are heard, although the tests may have been started with nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize(("number", "code"), [("SIGINT", 0), ("SIGTERM", 143), ("SIGHUP", 129)])
def test_the_first_signal_asks(number: str, code: int) -> None:
    before = [signal.getsignal(which) for which in WATCHED]
    which = signal.Signals[number]
    with stop_on_signals(StopRequest()) as stop:
        signal.raise_signal(which)
        assert stop.requested
        assert stop.signal is which
        assert stop.exit_code == code
    assert [signal.getsignal(which) for which in WATCHED] == before
    assert "stop request" not in [thread.name for thread in threading.enumerate()]


def test_without_a_signal_nothing_is_asked() -> None:
    with stop_on_signals(StopRequest()) as stop:
        pass
    assert (stop.requested, stop.signal, stop.exit_code) == (False, None, 0)
    stop.request()
    assert (stop.requested, stop.exit_code) == (True, 0)


class Told(logging.Handler):
    """Needs a plain lock, as a log may; handling inside of the signal handler would wait for ever for it."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.held = threading.Lock()
        self.messages: list[str] = []
        self._new = threading.Condition()

    def emit(self, record: logging.LogRecord) -> None:
        with self.held, self._new:
            self.messages.append(record.getMessage())
            self._new.notify_all()

    def wait_for(self, count: int) -> None:
        with self._new:
            assert self._new.wait_for(lambda: len(self.messages) >= count, 30)


@pytest.fixture
def told() -> Iterator[Told]:
    handler, logger = Told(), logging.getLogger("trajtrainer")
    level = logger.level
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    yield handler
    logger.removeHandler(handler)
    logger.setLevel(level)


def test_a_signal_is_answered_with_a_word_even_with_the_logs_lock_held_by_the_main_thread(told: Told) -> None:
    with stop_on_signals(StopRequest()):
        with told.held:
            signal.raise_signal(signal.SIGTERM)
            assert told.messages == []
        told.wait_for(1)
    assert "saving everything" in told.messages[0]


def test_further_signals_within_the_grace_are_only_answered(told: Told) -> None:
    with stop_on_signals(StopRequest(), saves=False) as stop:
        for count, number in enumerate((signal.SIGINT, signal.SIGINT, signal.SIGTERM), 1):
            signal.raise_signal(number)
            told.wait_for(count)
    assert [message.split(":")[0].split(".")[0] for message in told.messages] == ["Stopping"] + 2 * ["Still stopping"]
    assert not any("saving" in message for message in told.messages)
    assert stop.exit_code == 0, "the first one counts"


def test_a_request_is_seen_while_the_main_thread_is_deep_in_something() -> None:
    """As in a gradient step: no handler of Python runs before it is over."""
    seen: list[bool] = []

    def look() -> None:
        until = time.monotonic() + 30
        while not stop.requested and time.monotonic() < until:
            time.sleep(0.001)
        seen.append(stop.requested)

    with stop_on_signals(StopRequest()) as stop:
        watcher = threading.Thread(target=look)
        watcher.start()
        signal.signal(signal.SIGINT, lambda *_: None)  # ours never runs
        signal.raise_signal(signal.SIGINT)
        watcher.join()
    assert seen == [True]


def test_other_signals_are_none_of_ours() -> None:
    before = signal.signal(signal.SIGUSR1, lambda *_: None)
    try:
        with stop_on_signals(StopRequest()) as stop:
            signal.raise_signal(signal.SIGUSR1)
            signal.raise_signal(signal.SIGUSR1)
        assert not stop.requested
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_wakeup_descriptor_of_the_program_comes_back() -> None:
    reader, writer = socket.socketpair()
    with reader, writer:
        writer.setblocking(False)
        before = signal.set_wakeup_fd(writer.fileno())
        try:
            with stop_on_signals(StopRequest()):
                pass
        finally:
            assert signal.set_wakeup_fd(before) == writer.fileno()


def test_a_signal_interrupts_a_start_even_if_it_came_before() -> None:
    with stop_on_signals(StopRequest()) as stop:
        with stop.interrupting():
            pass
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(StopInterrupt), stop.interrupting():
            pytest.fail("nothing is begun any more")
    with stop_on_signals(StopRequest()) as stop, pytest.raises(StopInterrupt), stop.interrupting():
        signal.raise_signal(signal.SIGTERM)


@pytest.mark.parametrize("before", [False, True])
def test_what_lasts_longer_than_the_grace_is_ended(monkeypatch: pytest.MonkeyPatch, before: bool) -> None:
    monkeypatch.setattr(signals, "_LEAST_S", 0.0)
    monkeypatch.setattr(signals, "GRACE_S", 0.7)
    ended = threading.Event()

    def end() -> None:
        ended.set()
        raise ZeroDivisionError("somebody else's")

    stop = StopRequest()
    with stop.limiting(end):
        assert not ended.wait(1.0), "without a signal it may take as long as it takes"
    if before:
        stop.request(signal.SIGINT)
    with stop.limiting(end):
        stop.request(signal.SIGINT)
        assert ended.wait(30)


def test_handlers_come_back_after_an_error() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyError), stop_on_signals(StopRequest()):
        raise KeyError
    assert signal.getsignal(signal.SIGTERM) == before


def test_an_ignored_hangup_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stop_on_signals(StopRequest()) as stop:
            signal.raise_signal(signal.SIGHUP)
            assert not stop.requested
    finally:
        signal.signal(signal.SIGHUP, before)


def test_another_thread_leaves_the_handlers_alone() -> None:
    before = signal.getsignal(signal.SIGINT)
    seen = []

    def use() -> None:
        with stop_on_signals(StopRequest()) as stop:
            seen.append((stop.requested, signal.getsignal(signal.SIGINT) is before))

    thread = threading.Thread(target=use)
    thread.start()
    thread.join(30)
    assert seen == [(False, True)]


PROGRAM = """
import os, signal, sys
from trajtrainer.run import signals
from trajtrainer.run.signals import StopRequest, stop_on_signals
signals.GRACE_S = float(sys.argv[3])
with stop_on_signals(StopRequest()) as stop:
    stop.on_abort(lambda: 1 // 0)
    stop.on_abort(lambda: os.write(1, b"players killed\\n"))  # two threads may do so at once
    signal.raise_signal(getattr(signal, sys.argv[1]))
    print("asked", stop.requested, flush=True)
    signal.raise_signal(getattr(signal, sys.argv[2]))
    print("goes on", flush=True)
sys.exit(stop.exit_code)
"""


@pytest.mark.parametrize(("first", "second", "code"), [("SIGINT", "SIGINT", 130), ("SIGINT", "SIGTERM", 143)])
def test_a_further_signal_after_the_grace_ends_at_once(first: str, second: str, code: int) -> None:
    ended = _run(first, second, "0")
    assert ended.returncode == code, ended.stderr
    assert set(ended.stdout.splitlines()) == {"asked True", "players killed"}
    assert "exiting at once" in ended.stderr


def test_a_further_signal_within_the_grace_does_not() -> None:
    ended = _run("SIGTERM", "SIGINT", "60")
    assert (ended.returncode, ended.stdout, ended.stderr) == (143, "asked True\ngoes on\n", "")


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        cwd=Path(__file__).parents[2],
    )


@pytest.fixture
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signals, "_FILE_POLL_S", 0.01)


@pytest.mark.usefixtures("_quick")
def test_a_file_asks_for_the_end_as_ctrl_c_does(told: Told) -> None:
    asked = threading.Event()
    with stop_on_signals(StopRequest()) as stop, stop_when_asked(stop, asked.is_set):
        time.sleep(0.05)
        assert not stop.requested
        asked.set()
        told.wait_for(1)
        until = time.monotonic() + 30
        while not stop.requested and time.monotonic() < until:
            time.sleep(0.001)
    assert (stop.requested, stop.signal, stop.exit_code) == (True, None, 0)
    assert "saving everything" in told.messages[0]
    assert "stop file" not in [thread.name for thread in threading.enumerate()]


def wait_long() -> None:
    for _ in range(3000):
        time.sleep(0.01)


@pytest.mark.usefixtures("_quick")
def test_a_file_interrupts_the_wait_for_the_environment() -> None:
    with stop_on_signals(StopRequest()) as stop, stop_when_asked(stop, lambda: True):
        with pytest.raises(StopInterrupt), stop.interrupting():
            wait_long()
        assert stop.exit_code == 0


@pytest.mark.usefixtures("_quick")
def test_a_file_interrupts_no_program_whose_signals_are_not_ours() -> None:
    """As in a thread of a notebook, where nobody has put a handler in place."""
    stop, asks = StopRequest(), threading.Event()
    with stop_when_asked(stop, asks.is_set), stop.interrupting():
        asks.set()
        until = time.monotonic() + 30
        while not stop.requested and time.monotonic() < until:
            time.sleep(0.001)
        time.sleep(0.05)
    assert stop.requested
