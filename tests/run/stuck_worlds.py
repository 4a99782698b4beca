"""An environment of Python whose calls do not return, and how the library of C does the same."""

from __future__ import annotations

import contextlib
import ctypes
import sys
import threading
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

EPISODE = 20


def loop() -> None:
    """Never return. Signal handlers of Python run meanwhile."""
    while True:
        time.sleep(0.1)


def lock() -> None:
    """Never return, in a function of C, so that no signal handler of Python runs in this thread."""
    mutex = ctypes.create_string_buffer(256)
    library = ctypes.CDLL(None)
    library.pthread_mutex_lock(mutex)
    library.pthread_mutex_lock(mutex)


WAYS = {"loop": loop, "lock": lock}


class StuckWorld(gymnasium.Env[Any, Any]):
    """Pays 1 for action 1. It writes what it does not return from into a file.

    Args:
        call: "make", "reset", "step" or "close"; each copy has calls of its own.
        at: number of this call.
        way: of ``WAYS``.
        told: the file.
        seconds: after which the call returns all the same; None for never.
    """

    observation_space = spaces.Box(-1, 1, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, call: str, told: str, at: int = 1, way: str = "lock", seconds: float | None = None) -> None:
        self._call, self._at, self._way, self._told, self._seconds = call, at, way, Path(told), seconds
        self._counts: dict[str, int] = {}
        self._pass("make")

    def _pass(self, call: str) -> None:
        self._counts[call] = self._counts.get(call, 0) + 1
        if (call, self._counts[call]) == (self._call, self._at):
            if self._seconds is None:
                threading.Thread(target=self._tell, args=(call, threading.get_ident()), daemon=True).start()
                WAYS[self._way]()
            else:
                self._told.write_text(call)
                time.sleep(self._seconds)

    def _tell(self, call: str, thread: int) -> None:
        """Write the file once the thread is stuck: a signal before that would interrupt it."""
        with contextlib.suppress(Exception):  # the program may end meanwhile
            seen = 0
            while seen < 5:
                frame = sys._current_frames().get(thread)
                seen = seen + 1 if frame is not None and frame.f_code.co_name in WAYS else 0
                time.sleep(0.02)
            self._told.write_text(call)

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self._pass("reset")
        self._steps = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._pass("step")
        self._steps += 1
        return np.full(2, action, np.float32), float(action), self._steps == EPISODE, False, {}

    def close(self) -> None:
        self._pass("close")
