"""A run as a guest in a program that is not ours: signals, and what belongs to the whole process."""

from __future__ import annotations

import random
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from trajtrainer.run.signals import StopRequest


class GuestStop(StopRequest):
    """In a program that is not ours a further signal must not end the process (a notebook's kernel, say).

    Attributes:
        raises: a signal raises at once, as the program itself is at work and the run at rest.
    """

    ends_process = False

    def __init__(self) -> None:
        super().__init__()
        self.raises = False

    def interrupt(self) -> None:
        """See ``StopRequest``; outside of our work raise what the signal would have raised without us."""
        super().interrupt()
        if self.raises and self.signal is not None:
            self.raises = False
            self.raise_signal()

    def abort(self, number: int) -> None:
        """See ``StopRequest``: leave the run without saving, but not the program."""
        self.is_aborted = True
        self.emergency()
        if threading.current_thread() is threading.main_thread():
            self.signal = signal.Signals(number)
            self.raise_signal()

    def raise_signal(self) -> None:
        """Raise what the signal that came would have raised without us; nothing if none came.

        Raises:
            KeyboardInterrupt: after SIGINT.
            SystemExit: after another one.
        """
        if self.signal is signal.SIGINT:
            raise KeyboardInterrupt
        if self.signal is not None:
            sys.exit(self.exit_code)


class ProcessState:
    """What belongs to the whole process and differs between a run and the program around it.

    These are torch's number of threads and the states of the global random generators (the networks have generators of
    their own, but environments may use the global ones). The run's are those of the program when it began.
    """

    def __init__(self) -> None:
        self._other = _state()

    @contextmanager
    def exchanged(self) -> Iterator[None]:
        """Exchange the run's state and the program's while this lasts. Within itself it exchanges them back."""
        self._exchange()
        try:
            yield
        finally:
            self._exchange()

    def _exchange(self) -> None:
        other, self._other = self._other, _state()
        threads, torch_state, numpy_state, python_state = other
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)
        torch.set_rng_state(torch_state)
        np.random.set_state(numpy_state)
        random.setstate(python_state)


def _state() -> tuple[int, torch.Tensor, Any, Any]:
    # The device's generators are never used: all of ours are objects of their own.
    return torch.get_num_threads(), torch.get_rng_state(), np.random.get_state(), random.getstate()
