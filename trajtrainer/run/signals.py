"""Stops a run on request.

The first SIGINT or SIGTERM stops the run after saving, a later one exits immediately. Instead of sending a signal,
other programs can create a file.

The signal handler may run late: the main thread may be computing a gradient step or, on Windows, waiting for a lock. So
a separate thread is notified through Python's wakeup file descriptor without delay.
"""

from __future__ import annotations

import _thread
import contextlib
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from types import FrameType
from typing import NoReturn

logger = logging.getLogger(__name__)

# Time for a run to save everything and exit. Further signals are ignored during this time.
GRACE_S = 5.0

# Ctrl-C, kill, a closed terminal, and Ctrl-Break on Windows. Not all of them exist on every system.
_NAMES = ("SIGINT", "SIGTERM", "SIGHUP", "SIGBREAK")
_STDERR = 2
_POLL_S = 0.1
_FILE_POLL_S = 0.5  # time between two checks for the file
# ``limiting`` ends the environment this long before the end of the grace period, but not before the second time.
_LAST_S, _LEAST_S = 0.5, 1.0
_END = b"\0"  # not a signal number


class StopInterrupt(BaseException):
    """A signal arrived before there was anything to save. Not an ``Exception``, like KeyboardInterrupt."""


class StopRequest:
    """A request to stop the run. The loop polls it in every iteration, and updates in every gradient step.

    Attributes:
        ends_process: True if the run may end the process.
        is_urgent: True if a signal or another program has requested the stop, and is waiting for the run to end.
    """

    ends_process = True

    def __init__(self) -> None:
        self.requested = False
        self.signal: signal.Signals | None = None
        self.is_aborted = False  # True once a signal after the grace period has aborted the run
        self._signal_s = 0.0
        self.has_handlers = False  # set by ``stop_on_signals``
        self._emergency: list[Callable[[], None]] = []
        self._interrupts = False
        self._num_saving = 0
        self.is_urgent = False

    @property
    def exit_code(self) -> int:
        """0 after SIGINT or without a signal, otherwise 128 plus the signal number (SIGTERM: 143)."""
        return 0 if self.signal in (None, signal.SIGINT) else 128 + int(self.signal)

    @property
    def grace_s(self) -> float:
        """Seconds left to stop after the first signal; zero or negative after the grace period."""
        return self._signal_s + GRACE_S - time.monotonic()

    def request(self, by: signal.Signals | None = None) -> None:
        """Request a stop. Only the first signal is recorded."""
        if by is not None and self.signal is None:
            self._signal_s = time.monotonic()
            self.signal = by
            self.is_urgent = True
        self.requested = True

    @property
    def is_saving(self) -> bool:
        return self._num_saving > 0

    @contextlib.contextmanager
    def saving(self) -> Iterator[None]:
        """Keep further signals from ending the process while files are being written in the ``with`` block."""
        self._num_saving += 1
        try:
            yield
        finally:
            self._num_saving -= 1

    def leave_process(self, code: int) -> NoReturn:
        """Exit the process from any thread, even if the main thread is stuck."""
        self.emergency()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        os._exit(code)

    @contextlib.contextmanager
    def interrupting(self) -> Iterator[None]:
        """Let signals raise ``StopInterrupt`` in the main thread inside the ``with`` block.

        Used at startup, when nothing polls for stop requests (such as while waiting for the Editor).

        Raises:
            StopInterrupt: a signal arrived, or a stop was requested earlier.
        """
        self._interrupts = True
        try:
            self.interrupt()  # after setting the flag, so that no signal is missed
            yield
        finally:
            self._interrupts = False

    def request_politely(self) -> None:
        """Request a stop from another thread. Also works while the main thread waits without polling."""
        self.is_urgent = True
        self.request()
        if self._interrupts and self.has_handlers:
            _thread.interrupt_main()  # runs the SIGINT handler in the main thread

    def interrupt(self) -> None:
        """Interrupt a wait inside ``interrupting``. The signal handler calls this after ``request``.

        Raises:
            StopInterrupt: inside ``interrupting``, if a stop was requested.
        """
        if self._interrupts and self.requested:
            raise StopInterrupt

    def limiting(self, end: Callable[[], None]) -> AbstractContextManager[None]:
        """Call ``end`` in another thread if the ``with`` block exceeds the grace period after a signal.

        The block is always given at least a second. Exceptions raised by ``end`` are ignored.
        """
        least_s = time.monotonic() + _LEAST_S

        def is_over() -> bool:
            return self.signal is not None and self.grace_s < _LAST_S and time.monotonic() > least_s

        return _calling(end, is_over, _POLL_S, "time limit")

    def on_abort(self, callback: Callable[[], None]) -> None:
        """Register a callback that is called right before a further signal ends the process.

        The callback can be used to kill processes. It may be called twice, and from a signal handler, so it must be
        fast and must not acquire locks.
        """
        self._emergency.append(callback)

    def emergency(self) -> None:
        """Call the callbacks registered with ``on_abort``. Their exceptions are ignored."""
        for callback in list(self._emergency):
            with contextlib.suppress(Exception):
                callback()

    def abort(self, number: int) -> None:
        """Exit immediately, without saving.

        Called when another signal arrives after the grace period: by the main thread's handler or, if that thread is
        busy, by the signal thread.
        """
        self.emergency()
        with contextlib.suppress(OSError):
            os.write(_STDERR, b"\nReceived another signal: exiting at once, nothing more is saved.\n")
        os._exit(128 + number)


@contextlib.contextmanager
def stop_on_signals(stop: StopRequest, *, saves: bool = True) -> Iterator[StopRequest]:
    """Let signals request a stop, and restore the previous handlers at the end.

    Does nothing outside the main thread, because only the main thread may set handlers. If ``saves`` is True, log lines
    mention that the run is saved.
    """
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    thread = _SignalThread(stop, saves=saves)
    came = []

    def handle(number: int, _frame: FrameType | None) -> None:
        came.append(number)
        stop.request(signal.Signals(number))
        if len(came) > 1 and stop.grace_s <= 0 and not stop.is_saving:
            stop.abort(number)
        stop.interrupt()

    former = {}
    try:
        for name in _NAMES:
            which = getattr(signal, name, None)
            if which is None or (name == "SIGHUP" and signal.getsignal(which) is signal.SIG_IGN):
                continue  # keep ignoring SIGHUP under nohup
            former[which] = signal.signal(which, handle)
            thread.numbers.add(int(which))
        stop.has_handlers = signal.SIGINT in former
        yield stop
    finally:
        stop.has_handlers = False
        for which, handler in former.items():
            # None: the handler was set by C code, and Python cannot restore it.
            signal.signal(which, signal.SIG_DFL if handler is None else handler)
        thread.close()


def stop_when_asked(stop: StopRequest, is_asked: Callable[[], bool]) -> AbstractContextManager[None]:
    """Request a stop when ``is_asked``, which a thread polls twice a second inside the ``with`` block, returns True."""

    def ask() -> None:
        logger.info("Stopping, as requested on the web page: saving everything, then exiting.")
        stop.request_politely()

    return _calling(ask, is_asked, _FILE_POLL_S, "stop file")


@contextlib.contextmanager
def _calling(call: Callable[[], None], when: Callable[[], bool], pause_s: float, name: str) -> Iterator[None]:
    """Poll ``when`` in a thread, and call ``call`` once when it returns True. Exceptions of ``call`` are ignored."""
    over = threading.Event()

    def watch() -> None:
        while not over.wait(pause_s):
            if when():
                with contextlib.suppress(Exception):
                    call()
                return

    watcher = threading.Thread(target=watch, name=name, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()


class _SignalThread:
    """A thread that handles every signal immediately, even if the main thread is busy, and logs how the run will stop.

    Attributes:
        numbers: numbers of the signals that stop the run.
    """

    def __init__(self, stop: StopRequest, *, saves: bool) -> None:
        self.numbers: set[int] = set()
        self._stop = stop
        self._saves = saves
        self._reader, self._writer = socket.socketpair()
        self._writer.setblocking(False)
        self._former = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        self._thread = threading.Thread(target=self._watch, name="stop request", daemon=True)
        self._thread.start()

    def close(self) -> None:
        signal.set_wakeup_fd(self._former)
        self._writer.setblocking(True)
        self._writer.sendall(_END)
        self._thread.join()
        self._reader.close()
        self._writer.close()

    def _watch(self) -> None:
        stop, is_first = self._stop, True
        loss = ", without saving" if self._saves else ""
        while (byte := self._reader.recv(1)) != _END:
            if byte[0] not in self.numbers:
                continue
            stop.request(signal.Signals(byte[0]))
            if is_first:
                is_first = False
                what = "saving everything, then exiting" if self._saves else "exiting"
                logger.info(
                    "Stopping: %s. Press Ctrl-C (or send another signal) after %g s to exit at once%s.",
                    what,
                    GRACE_S,
                    loss,
                )
            elif stop.is_saving:
                logger.info("Still saving. The run exits as soon as everything is written.")
            elif stop.grace_s > 0:
                logger.info("Still stopping. Press Ctrl-C again in %.0f s to exit at once%s.", stop.grace_s, loss)
            else:
                stop.abort(byte[0])
