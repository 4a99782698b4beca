"""Ending a run from outside: the first SIGINT or SIGTERM asks for an orderly end, a late further one ends at once.

A program that watches the run asks by a file in place of a signal.

The main thread may be deep in a gradient step, or wait on a lock where the system does not interrupt that (Windows),
so that its handler runs late. Python's wake-up descriptor tells a thread of ours at once.
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

# So long a run may take to save everything and end; further signals within that time do not cost it.
GRACE_S = 5.0

# Ctrl-C, kill, a closed terminal, Ctrl-Break of Windows; each where the system has it.
_NAMES = ("SIGINT", "SIGTERM", "SIGHUP", "SIGBREAK")
_STDERR = 2
_POLL_S = 0.1
_LOOK_S = 0.5  # pause between two looks for the file
# Of the grace what is left for the rest when the environment has to be gone, and how long that may take at least.
_LAST_S, _LEAST_S = 0.5, 1.0
_END = b"\0"  # is no signal's number


class StopInterrupt(BaseException):
    """A signal came while there was nothing to save yet. Not an ``Exception``, as KeyboardInterrupt is none."""


class StopRequest:
    """The request to end the run. Polled between steps, and in an update between gradient steps.

    Attributes:
        ends_process: whether the process is ours to end.
        is_urgent: somebody outside of the run waits for its end.
    """

    ends_process = True

    def __init__(self) -> None:
        self.requested = False
        self.signal: signal.Signals | None = None
        self.is_aborted = False  # a late further signal ends what was to end in good order
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
        """Seconds that are left to end in order after the first signal; not positive when they are over."""
        return self._signal_s + GRACE_S - time.monotonic()

    def request(self, by: signal.Signals | None = None) -> None:
        """Ask for the end. The first signal counts."""
        if by is not None and self.signal is None:
            self._signal_s = time.monotonic()
            self.signal = by
            self.is_urgent = True
        self.requested = True

    @property
    def is_saving(self) -> bool:
        """Return whether ``saving`` lasts."""
        return self._num_saving > 0

    @contextlib.contextmanager
    def saving(self) -> Iterator[None]:
        """Keep further signals from ending the process while this lasts: they would lose what is being written."""
        self._num_saving += 1
        try:
            yield
        finally:
            self._num_saving -= 1

    def leave_process(self, code: int) -> NoReturn:
        """End the process from another thread than the main one, which may be stuck."""
        self.emergency()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        os._exit(code)

    @contextlib.contextmanager
    def interrupting(self) -> Iterator[None]:
        """Let a signal raise ``StopInterrupt`` in the main thread while this lasts, instead of being polled for.

        For waiting at the start (for the Editor, say), where nothing has been trained.

        Raises:
            StopInterrupt: also at once, if the end was asked for before.
        """
        self._interrupts = True
        try:
            self.interrupt()  # behind the line above: a signal that comes in between is not lost
            yield
        finally:
            self._interrupts = False

    def request_politely(self) -> None:
        """Ask for the end from another thread, also where the main thread waits and nothing is polled."""
        self.is_urgent = True
        self.request()
        if self._interrupts and self.has_handlers:
            _thread.interrupt_main()  # runs our handler of SIGINT there

    def interrupt(self) -> None:
        """Interrupt a wait; called by the signal handler after ``request``.

        Raises:
            StopInterrupt: inside ``interrupting``.
        """
        if self._interrupts and self.requested:
            raise StopInterrupt

    def limiting(self, end: Callable[[], None]) -> AbstractContextManager[None]:
        """Call ``end`` once, from another thread, when this lasts longer than a signal's grace.

        It may last a second at least; exceptions of ``end`` are dropped.
        """
        least_s = time.monotonic() + _LEAST_S

        def is_over() -> bool:
            return self.signal is not None and self.grace_s < _LAST_S and time.monotonic() > least_s

        return _calling(end, is_over, _POLL_S, "time limit")

    def on_abort(self, callback: Callable[[], None]) -> None:
        """Have ``callback`` called before a further signal ends the process, perhaps twice and in a signal handler.

        Only what is quick and takes no lock, such as killing child processes.
        """
        self._emergency.append(callback)

    def emergency(self) -> None:
        """Call the callbacks of ``on_abort``; their exceptions are dropped."""
        for callback in list(self._emergency):
            with contextlib.suppress(Exception):
                callback()

    def abort(self, number: int) -> None:
        """End the process at once, without any saving.

        Called in the main thread's handler, and from another thread in case that one is busy, when a further signal
        comes after the grace.
        """
        self.emergency()
        with contextlib.suppress(OSError):
            os.write(_STDERR, b"\nAnother signal: ended at once, nothing more is saved.\n")
        os._exit(128 + number)


@contextlib.contextmanager
def stop_on_signals(stop: StopRequest, *, saves: bool = True) -> Iterator[StopRequest]:
    """Connect the signals with ``stop`` and put the former handlers back at the end.

    Does nothing outside of the main thread, which alone may set handlers. ``saves``: whether there is anything to be
    saved, for what is said.
    """
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    watcher = _Watcher(stop, saves=saves)
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
                continue  # nohup ignores SIGHUP, and means it
            former[which] = signal.signal(which, handle)
            watcher.numbers.add(int(which))
        stop.has_handlers = signal.SIGINT in former
        yield stop
    finally:
        stop.has_handlers = False
        for which, handler in former.items():
            # None: set by C code, which Python cannot put back.
            signal.signal(which, signal.SIG_DFL if handler is None else handler)
        watcher.close()


def stop_when_asked(stop: StopRequest, is_asked: Callable[[], bool]) -> AbstractContextManager[None]:
    """Ask for the end when ``is_asked`` says so, which a thread calls twice a second while this lasts."""

    def ask() -> None:
        logger.info("Stopping, as a page that watches the run asks: saving everything, then ending.")
        stop.request_politely()

    return _calling(ask, is_asked, _LOOK_S, "stop file")


@contextlib.contextmanager
def _calling(call: Callable[[], None], when: Callable[[], bool], pause_s: float, name: str) -> Iterator[None]:
    """Call ``call`` once, in a thread that looks ``when`` while this lasts; its exceptions are dropped."""
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


class _Watcher:
    """A thread that learns of every signal as it comes, whatever the main thread does, and answers it with a word.

    Attributes:
        numbers: of the signals that are meant.
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

    @property
    def _loss(self) -> str:
        return ", without saving" if self._saves else ""

    def _watch(self) -> None:
        came = 0
        while (byte := self._reader.recv(1)) != _END:
            if byte[0] in self.numbers:
                came += 1
                self._answer(byte[0], is_first=came == 1)

    def _answer(self, number: int, *, is_first: bool) -> None:
        self._stop.request(signal.Signals(number))
        if is_first:
            first = "saving everything, then ending" if self._saves else "ending"
            logger.info(
                "Stopping: %s. Ctrl-C (or another signal) after %g s ends at once%s.", first, GRACE_S, self._loss
            )
        elif self._stop.is_saving:
            logger.info("Still saving. The run ends by itself as soon as everything is written.")
        elif self._stop.grace_s > 0:
            logger.info("Still stopping. Press again in %.0f s to end at once%s.", self._stop.grace_s, self._loss)
        else:
            self._stop.abort(number)
