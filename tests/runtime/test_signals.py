"""Ending a run from outside."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from trajtrainer.runtime.signals import StopRequest, stop_on_signals

WATCHED = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]

pytestmark = pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="sends POSIX signals")


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


def test_a_signal_wakes_who_waits_even_with_the_lock_held_by_the_main_thread() -> None:
    """A plain lock that the interrupted code holds: a callback inside the handler would wait for ever."""
    woken = threading.Event()
    lock = threading.Lock()

    def mistake() -> None:
        raise ZeroDivisionError("somebody else's")

    def wake() -> None:
        with lock:
            woken.set()

    with stop_on_signals(StopRequest()) as stop:
        stop.on_request(mistake)
        stop.on_request(wake)
        with lock:
            signal.raise_signal(signal.SIGTERM)
            assert not woken.is_set()
        assert woken.wait(30)


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
import signal, sys
from trajtrainer.runtime.signals import StopRequest, stop_on_signals
with stop_on_signals(StopRequest()) as stop:
    stop.on_abort(lambda: 1 // 0)
    stop.on_abort(lambda: print("players killed", flush=True))
    signal.raise_signal(getattr(signal, sys.argv[1]))
    print("asked", stop.requested, flush=True)
    signal.raise_signal(getattr(signal, sys.argv[2]))
    print("never printed", flush=True)
"""


@pytest.mark.parametrize(("first", "second", "code"), [("SIGINT", "SIGINT", 130), ("SIGINT", "SIGTERM", 143)])
def test_the_second_signal_ends_at_once(first: str, second: str, code: int) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, first, second],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=Path(__file__).parents[2],
    )
    assert ended.returncode == code, ended.stderr
    assert ended.stdout == "asked True\nplayers killed\n"
    assert "ended at once" in ended.stderr
