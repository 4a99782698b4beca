"""Stops a run from outside: the first SIGINT or SIGTERM requests an orderly end, a later one exits at once.

A program that watches the run uses a file instead of a signal.

The main thread may be deep in a gradient step, or wait for a lock that the system does not interrupt (Windows), and
then its signal handler runs late. Python's wake-up file descriptor informs a thread of ours without delay.
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

# How long a run may take to save everything and exit. Further signals within that time do not interrupt it.
GRACE_S = 5.0

# Ctrl-C, kill, a closed terminal, and Ctrl-Break on Windows; a system may not have all of them.
_NAMES = ("SIGINT", "SIGTERM", "SIGHUP", "SIGBREAK")
_STDERR = 2
_POLL_S = 0.1
_FILE_POLL_S = 0.5  # pause between two looks for the file
# ``limiting`` ends the environment this long before the grace is over, but always gives it the second time to close.
_LAST_S, _LEAST_S = 0.5, 1.0
_END = b"\0"  # not the number of a signal


class StopInterrupt(BaseException):
    """A signal arrived before there was anything to save. Not an ``Exception``, just like KeyboardInterrupt."""


class StopRequest:
    """A request to stop the run. The loop polls it once per pass, and an update once per gradient step.

    Attributes:
        ends_process: whether we may end the process.
        is_urgent: someone outside the run waits for its end.
    """

    ends_process = True

    def __init__(self) -> None:
        self.requested = False
        self.signal: signal.Signals | None = None
        self.is_aborted = False  # a late signal has cut the orderly end short
        self._signal_s = 0.0
        self.has_handlers = False  # those of ``stop_on_signals``
        self._emergency: list[Callable[[], None]] = []
        self._interrupts = False
        self._num_saving = 0
        self.is_urgent = False

    @property
    def exit_code(self) -> int:
        """0 after SIGINT or without a signal, 128 + its number after another (SIGTERM: 143)."""
        return 0 if self.signal in (None, signal.SIGINT) else 128 + int(self.signal)

    @property
    def grace_s(self) -> float:
        """Seconds that are left for an orderly end after the first signal; not positive once they are over."""
        return self._signal_s + GRACE_S - time.monotonic()

    def request(self, by: signal.Signals | None = None) -> None:
        """Request the end. Only the first signal counts."""
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
        """Keep further signals from ending the process in the meantime: what is being written would be lost."""
        self._num_saving += 1
        try:
            yield
        finally:
            self._num_saving -= 1

    def leave_process(self, code: int) -> NoReturn:
        """Exit from a thread other than the main one, which may be stuck."""
        self.emergency()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        os._exit(code)

    @contextlib.contextmanager
    def interrupting(self) -> Iterator[None]:
        """Let a signal raise ``StopInterrupt`` in the main thread in the meantime, instead of being polled.

        For waits at the start (such as for the Editor), when nothing has been trained yet.

        Raises:
            StopInterrupt: also at once, if the end was requested before.
        """
        self._interrupts = True
        try:
            self.interrupt()  # after the line above, so that no signal is lost
            yield
        finally:
            self._interrupts = False

    def request_politely(self) -> None:
        """Request the end from another thread, even while the main thread waits and polls nothing."""
        self.is_urgent = True
        self.request()
        if self._interrupts and self.has_handlers:
            _thread.interrupt_main()  # runs our handler of SIGINT in the main thread

    def interrupt(self) -> None:
        """Interrupt a wait. The signal handler calls this after ``request``.

        Raises:
            StopInterrupt: inside ``interrupting``.
        """
        if self._interrupts and self.requested:
            raise StopInterrupt

    def limiting(self, end: Callable[[], None]) -> AbstractContextManager[None]:
        """Call ``end`` once, from another thread, if this takes longer than the grace after a signal.

        It always has at least a second. Exceptions raised by ``end`` are ignored.
        """
        least_s = time.monotonic() + _LEAST_S

        def is_over() -> bool:
            return self.signal is not None and self.grace_s < _LAST_S and time.monotonic() > least_s

        return _calling(end, is_over, _POLL_S, "time limit")

    def on_abort(self, callback: Callable[[], None]) -> None:
        """Register a callback for the moment before a further signal ends the process.

        It may be called twice, and in a signal handler, so it must be quick and take no lock, like killing processes.
        """
        self._emergency.append(callback)

    def emergency(self) -> None:
        """Call the callbacks of ``on_abort``, and ignore their exceptions."""
        for callback in list(self._emergency):
            with contextlib.suppress(Exception):
                callback()

    def abort(self, number: int) -> None:
        """Exit at once, without saving anything.

        Called when another signal arrives after the grace: by the main thread's handler or, in case that thread is
        busy, by the thread that learns of signals first.
        """
        self.emergency()
        with contextlib.suppress(OSError):
            os.write(_STDERR, b"\nReceived another signal: exiting at once, nothing more is saved.\n")
        os._exit(128 + number)


@contextlib.contextmanager
def stop_on_signals(stop: StopRequest, *, saves: bool = True) -> Iterator[StopRequest]:
    """Let signals request a stop, and restore the previous handlers at the end.

    Does nothing outside the main thread, because only that may set handlers. ``saves``: the run has something to save,
    which the log lines mention.
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
                continue  # Under nohup, SIGHUP must stay ignored.
            former[which] = signal.signal(which, handle)
            thread.numbers.add(int(which))
        stop.has_handlers = signal.SIGINT in former
        yield stop
    finally:
        stop.has_handlers = False
        for which, handler in former.items():
            # None means that C code had set it, which Python cannot restore.
            signal.signal(which, signal.SIG_DFL if handler is None else handler)
        thread.close()


def stop_when_asked(stop: StopRequest, is_asked: Callable[[], bool]) -> AbstractContextManager[None]:
    """Request a stop when ``is_asked`` returns True. A thread calls it twice a second in the meantime."""

    def ask() -> None:
        logger.info("Stopping, as requested on the page that watches the run: saving everything, then exiting.")
        stop.request_politely()

    return _calling(ask, is_asked, _FILE_POLL_S, "stop file")


@contextlib.contextmanager
def _calling(call: Callable[[], None], when: Callable[[], bool], pause_s: float, name: str) -> Iterator[None]:
    """Call ``call`` once, in a thread that polls ``when`` in the meantime. Its exceptions are ignored."""
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
    """A thread that learns of every signal at once, even if the main thread is busy, and logs what happens next.

    Attributes:
        numbers: of the signals that stop the run.
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
