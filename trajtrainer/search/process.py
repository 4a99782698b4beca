"""The process of a trial, as the search sees it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator
from typing import Any, Protocol

from trajtrainer.search.trial import TrialTask
from trajtrainer.workers.process import how_it_ended

_LONGEST_LINE = 1 << 20
_TAIL_LINES = 20
_TAIL_S = 1.0


class TrialHandle(Protocol):
    """A run under way, here or elsewhere."""

    def messages(self) -> Iterator[dict[str, Any]]:
        """Yield what it tells, until it has ended."""

    def stop(self) -> None:
        """Let it end in good order. May be called again, from any thread."""

    def kill(self) -> None:
        """End it at once. May be called again, from any thread."""

    def end(self) -> str:
        """Wait for its end, once all messages are read, and return how it ended ("was killed by signal 9")."""


class TrialProcess:
    """A run in a process of its own on this machine. Implements ``TrialHandle``.

    Args:
        task: of the run.
    """

    def __init__(self, task: TrialTask) -> None:
        # In a session of its own Ctrl-C does not reach it: the search decides what follows from that.
        apart: dict[str, Any] = {"start_new_session": True}
        if sys.platform == "win32":
            apart = {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP}
        command = [sys.executable, "-m", "trajtrainer.search.trial"]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, **apart)  # noqa: S603
        self._last_lines: deque[str] = deque(maxlen=_TAIL_LINES)
        self._reader = threading.Thread(target=self._read_errors, name="output of a trial", daemon=True)
        self._reader.start()
        self._input = threading.Lock()
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # its death is told when it is asked for
            self._process.stdin.write(f"{task.to_json()}\n".encode())
            self._process.stdin.flush()

    def messages(self) -> Iterator[dict[str, Any]]:
        """See ``TrialHandle``."""
        assert self._process.stdout is not None
        while line := self._process.stdout.readline(_LONGEST_LINE):
            with contextlib.suppress(ValueError):
                message = json.loads(line)
                if isinstance(message, dict):
                    yield message

    def stop(self) -> None:
        """See ``TrialHandle``."""
        assert self._process.stdin is not None
        with self._input, contextlib.suppress(OSError):
            self._process.stdin.close()

    def kill(self) -> None:
        """See ``TrialHandle``. Also what it has started goes."""
        with contextlib.suppress(OSError):
            if sys.platform == "win32":
                self._process.kill()  # its players are in a job that ends with it
            elif self._process.returncode is None:
                os.killpg(self._process.pid, signal.SIGKILL)

    def end(self) -> str:
        """See ``TrialHandle``."""
        if sys.platform == "linux":  # macOS has no waitid before Python 3.13
            # Not yet buried, so that its number still is its own: whoever is left in its group goes, too.
            os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)
            self.kill()
        code = self._process.wait()
        self.stop()
        self._reader.join(_TAIL_S)
        assert self._process.stdout is not None
        self._process.stdout.close()
        return how_it_ended(code) + "".join(f"\n  {line}" for line in self._last_lines)

    def _read_errors(self) -> None:
        assert self._process.stderr is not None
        with self._process.stderr as stream, contextlib.suppress(OSError, ValueError):
            for line in iter(lambda: stream.readline(_LONGEST_LINE), b""):
                self._last_lines.append(line.decode(errors="replace").rstrip())
