"""The process of a trial, as the search sees it."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Iterator
from typing import Any, Protocol

from trajtrainer.commands.search.trial import TrialTask, run_trial
from trajtrainer.workers import messages
from trajtrainer.workers.process import ChildProcess

_LONGEST_LINE = 1 << 20
_TAIL_LINES = 20
_TAIL_S = 1.0


class TrialHandle(Protocol):
    """A trial that runs here or on another machine. Any thread may call ``stop`` and ``kill``, several times."""

    def messages(self) -> Iterator[dict[str, Any]]:
        """Yield its messages until it has ended."""

    def stop(self) -> None:
        """Ask it to save everything and end."""

    def kill(self) -> None:
        """End it at once."""

    def end(self) -> str:
        """Wait for its end, after all messages; return how it ended ("was ended by the signal SIGKILL")."""


class TrialProcess:
    """A trial in a process of its own on this machine. Implements ``TrialHandle``."""

    def __init__(self, task: TrialTask) -> None:
        self._output, output_of_child = multiprocessing.Pipe(duplex=False)
        self._process = ChildProcess(
            run_trial, (task, output_of_child), "trial", title="process of a trial", log_as="Trial"
        )
        output_of_child.close()
        self._lock = threading.Lock()  # of the pipe
        self._last_lines: deque[str] = deque(maxlen=_TAIL_LINES)
        self._reader = threading.Thread(target=self._read_output, name="output of a trial", daemon=True)
        self._reader.start()

    def messages(self) -> Iterator[dict[str, Any]]:
        with contextlib.suppress(EOFError, OSError):
            while True:
                message = self._process.read()
                if message is not None:
                    yield message[1]

    def stop(self) -> None:
        with self._lock:
            self._process.post(messages.END)

    def kill(self) -> None:
        pid = self._process.pid
        if sys.platform != "win32" and pid is not None:
            with contextlib.suppress(OSError):
                os.killpg(pid, signal.SIGKILL)
        self._process.kill()

    def end(self) -> str:
        pid = self._process.pid
        if sys.platform == "linux" and pid is not None:  # macOS has no waitid before Python 3.13
            # Kill what is left of its group before its id is free for another process.
            with contextlib.suppress(ChildProcessError):
                os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
            self.kill()
        with self._lock:
            how = self._process.bury()
        self._reader.join(_TAIL_S)
        return how + "".join(f"\n  {line}" for line in self._last_lines)

    def _read_output(self) -> None:
        if sys.platform != "win32":  # where the child cannot write to this pipe
            with open(self._output.fileno(), "rb", closefd=False) as stream, contextlib.suppress(OSError):
                for line in iter(lambda: stream.readline(_LONGEST_LINE), b""):
                    self._last_lines.append(line.decode(errors="replace").rstrip())
        self._output.close()
