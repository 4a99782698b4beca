"""Ending a run from outside: the first SIGINT or SIGTERM asks for an orderly end, the second ends at once."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType

# Ctrl-C, kill, a closed terminal, Ctrl-Break of Windows; each where the system has it.
_NAMES = ("SIGINT", "SIGTERM", "SIGHUP", "SIGBREAK")
_STDERR = 2


class StopInterrupt(BaseException):
    """A signal came while there was nothing to save yet. Not an ``Exception``, as KeyboardInterrupt is none."""


class StopRequest:
    """Whether the run shall end. Polled between steps; ``callbacks`` wake those who wait for something else.

    Callbacks run in a thread of their own, never inside the signal handler, so that they may take locks (a handler
    that takes a lock which the interrupted code holds would wait forever).
    """

    def __init__(self) -> None:
        self.requested = False
        self.signal: signal.Signals | None = None
        self._callbacks: list[Callable[[], None]] = []
        self._emergency: list[Callable[[], None]] = []
        self._interrupts = False

    @property
    def exit_code(self) -> int:
        """0 after SIGINT or without a signal, 128 + its number after another (SIGTERM: 143)."""
        return 0 if self.signal in (None, signal.SIGINT) else 128 + int(self.signal)

    def request(self, by: signal.Signals | None = None) -> None:
        """Asks for the end. The first call counts."""
        if not self.requested:
            self.signal = by
            self.requested = True

    @contextlib.contextmanager
    def interrupting(self) -> Iterator[None]:
        """While this lasts, a signal raises ``StopInterrupt`` in the main thread instead of being polled for: for
        waiting at the start (for the Editor, say), where nothing has been trained."""
        self._interrupts = True
        try:
            yield
        finally:
            self._interrupts = False

    def interrupt(self) -> None:
        """Called by the signal handler after ``request``.

        Raises:
            StopInterrupt: inside ``interrupting``.
        """
        if self._interrupts:
            raise StopInterrupt

    def on_request(self, callback: Callable[[], None]) -> None:
        """``callback`` is called once, from another thread, when a signal asks for the end."""
        self._callbacks.append(callback)

    def on_abort(self, callback: Callable[[], None]) -> None:
        """``callback`` is called in the signal handler before a second signal ends the process: only what is quick
        and takes no lock, such as killing child processes."""
        self._emergency.append(callback)

    def wake(self) -> None:
        """Calls the callbacks of ``on_request``; their exceptions are dropped."""
        for callback in list(self._callbacks):
            with contextlib.suppress(Exception):
                callback()

    def emergency(self) -> None:
        """Calls the callbacks of ``on_abort``; their exceptions are dropped."""
        for callback in list(self._emergency):
            with contextlib.suppress(Exception):
                callback()

    def abort(self, number: int) -> None:
        """Called by the handler of a second signal: ends the process at once, without any saving."""
        self.emergency()
        with contextlib.suppress(OSError):
            os.write(_STDERR, b"\nSecond signal: ended at once, nothing more is saved.\n")
        os._exit(128 + number)


@contextlib.contextmanager
def stop_on_signals(stop: StopRequest) -> Iterator[StopRequest]:
    """Connects the signals with ``stop`` and puts the former handlers back at the end.

    Does nothing outside of the main thread, which alone may set handlers.
    """
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    waker = _Waker(stop)

    def handle(number: int, _frame: FrameType | None) -> None:
        if stop.requested:
            stop.abort(number)
        stop.request(signal.Signals(number))
        waker.wake()
        stop.interrupt()

    former = {}
    try:
        for name in _NAMES:
            which = getattr(signal, name, None)
            if which is None or (name == "SIGHUP" and signal.getsignal(which) is signal.SIG_IGN):
                continue  # nohup ignores SIGHUP, and means it
            former[which] = signal.signal(which, handle)
        yield stop
    finally:
        for which, handler in former.items():
            # None: set by C code, which Python cannot put back.
            signal.signal(which, signal.SIG_DFL if handler is None else handler)
        waker.close()


class _Waker:
    """A thread that sleeps on a pipe. Writing a byte is all that the signal handler has to do."""

    def __init__(self, stop: StopRequest) -> None:
        self._stop = stop
        self._reader, self._writer = os.pipe()
        self._thread = threading.Thread(target=self._wait, name="stop request", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        os.write(self._writer, b"w")

    def close(self) -> None:
        os.write(self._writer, b"e")
        self._thread.join()
        os.close(self._reader)
        os.close(self._writer)

    def _wait(self) -> None:
        while os.read(self._reader, 1) == b"w":
            self._stop.wake()
