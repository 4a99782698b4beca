"""The main process's end of a worker process."""

from __future__ import annotations

import contextlib
import logging
import sys
import time
from collections.abc import Mapping, Sequence
from multiprocessing.connection import wait
from typing import Any

from trajtrainer.envs import worker_messages as messages
from trajtrainer.envs.protocol import Parameters
from trajtrainer.envs.seat import CONNECTED, Report, WorkerDiedError
from trajtrainer.envs.worker_handle import WorkerProcess
from trajtrainer.envs.worker_process import EnvironmentMaker
from trajtrainer.errors import EnvironmentFaultError, TrajtrainerError
from trajtrainer.steps import ActionBatch
from trajtrainer.unity.faults import LaunchError

_LOGGER = logging.getLogger(__name__)
_PACKAGE = "trajtrainer"
_JOIN_S = 5.0
_LONGEST_WAIT_S = 1.0
# For players to quit by themselves, and for workers to end those that do not.
_CLOSE_GRACE_S = 16.0
# Pipes, the process's end, shared blocks, and what is open for a moment at the start.
_FILES_PER_WORKER = 8
_OTHER_FILES = 64


class WorkerSeat:
    """One worker process and the environment in it.

    Args:
        number: of the worker.
        make_environment: runs in the worker.
        patience_s: how long the process may be silent when it is its turn. Environments have limits of their own; this
            is for a process that itself is stuck.
    """

    def __init__(self, number: int, make_environment: EnvironmentMaker, patience_s: float) -> None:
        self.number = number
        self._make_environment = make_environment
        self._patience_s = patience_s
        self._process: WorkerProcess | None = None
        self._due_s = float("inf")

    @property
    def pipe(self) -> messages.Pipe | None:
        """To wait on; None while there is no process."""
        return None if self._process is None else self._process.pipe

    @property
    def process_id(self) -> int | None:
        return None if self._process is None else self._process.pid

    def is_late(self) -> bool:
        """Whether the process has been silent too long. What it has sent may not have been read yet, because it was
        other things' turn: a log record, say, and its answer behind it."""
        if self._due_s >= time.monotonic():
            return False
        return self._process is None or not self._process.pipe.poll()

    def start(self) -> None:
        """See ``Seat``."""
        if self._process is None:
            self._process = WorkerProcess(self.number, self._make_environment, _log_level(self.number))
        self._process.forget_behaviors()
        self._post(messages.START)

    def reset(self, parameters: Parameters) -> None:
        """See ``Seat``."""
        self._send_parameters(parameters)
        self._post(messages.RESET)

    def send(self, actions: Mapping[str, ActionBatch], parameters: Parameters) -> None:
        """See ``Seat``."""
        if self._process is None:
            return
        self._send_parameters(parameters)
        larger = self._process.write_actions(actions)
        if larger is not None:
            self._post(messages.ACTION_BLOCK, larger)
        self._post(messages.STEP)

    def report(self) -> Report | None:
        """The next thing that came, or None if it is nothing of interest. Called when the pipe has something."""
        process = self._process
        if process is None:
            return None
        try:
            kind, content = messages.read(process.pipe)
        except (EOFError, OSError):
            return self._bury()
        if kind == messages.LOG:
            _log(messages.content_of(content), self.number)
            return None
        if kind == messages.NEED:
            self._post(messages.EVENT_BLOCK, process.enlarge_events(messages.content_of(content)))
            return None
        self._due_s = float("inf")
        process.unlink_blocks()  # whoever sends one of the following has opened them
        if kind == messages.FAULT:
            return _fault(messages.content_of(content))
        if kind == messages.CONNECTED:
            return CONNECTED
        extras = messages.content_of(content) if kind == messages.EVENT_WITH_MORE else None
        return process.event(extras)

    def give_up(self) -> EnvironmentFaultError:
        """Ends a process that is late."""
        if self._process is not None:
            self._process.kill()
            _LOGGER.debug("Ended the process of worker %d, which was silent.", self.number)
        self._bury()
        return WorkerDiedError(f"The worker process of environment {self.number} stopped answering.")

    def ask_to_end(self) -> None:
        """Lets the process end in order."""
        self._post(messages.END)

    def kill(self) -> None:
        """See ``Seat``."""
        if self._process is not None:
            self._process.cut_lifeline()

    def bury(self, timeout_s: float) -> None:
        """Waits for the process to end, ends it after ``timeout_s`` seconds, and frees what belonged to it."""
        if self._process is not None:
            process, self._process = self._process, None
            process.finish(timeout_s)

    def _bury(self) -> WorkerDiedError:
        process = self._process
        self.bury(_JOIN_S)
        self._due_s = float("inf")
        how = "is gone" if process is None else process.how_it_ended
        return WorkerDiedError(f"The worker process of environment {self.number} {how}.")

    def _send_parameters(self, parameters: Parameters) -> None:
        if parameters:
            self._post(messages.PARAMETERS, dict(parameters))

    def _post(self, kind: bytes, *content: Any) -> None:
        self._due_s = time.monotonic() + self._patience_s
        if self._process is not None:
            # A process that is gone is noticed when its pipe is read.
            with contextlib.suppress(OSError):
                messages.post(self._process.pipe, kind, *content)


class WorkerSeats:
    """The worker processes of a run. None is started here.

    Raises:
        LaunchError: the system does not allow this process as many open files as they need.
    """

    def __init__(self, count: int, make_environment: EnvironmentMaker, patience_s: float) -> None:
        _allow_open_files(_OTHER_FILES + count * _FILES_PER_WORKER)
        self._seats = [WorkerSeat(number, make_environment, patience_s) for number in range(count)]

    def __getitem__(self, number: int) -> WorkerSeat:
        return self._seats[number]

    def __len__(self) -> int:
        return len(self._seats)

    def reports(self, timeout_s: float | None) -> Sequence[tuple[int, Report]]:
        """See ``Seats``."""
        found: list[tuple[int, Report]] = []
        if timeout_s is None:
            timeout_s = _LONGEST_WAIT_S  # somebody may be late without a word
        for seat in self._ready(timeout_s):
            report = seat.report()
            if report is not None:
                found.append((seat.number, report))
        found += [(seat.number, seat.give_up()) for seat in self._seats if seat.is_late()]
        return found

    def close(self) -> None:
        """See ``Seats``."""
        for seat in self._seats:
            seat.ask_to_end()
        deadline_s = time.monotonic() + _CLOSE_GRACE_S
        while any(seat.pipe for seat in self._seats) and (remaining_s := deadline_s - time.monotonic()) > 0:
            for seat in self._ready(remaining_s):
                with contextlib.suppress(TrajtrainerError, messages.WorkerBugError):
                    seat.report()  # for the log, and the end of the pipe
        for seat in self._seats:
            seat.kill()
        deadline_s = time.monotonic() + _JOIN_S
        for seat in self._seats:
            seat.bury(max(0.0, deadline_s - time.monotonic()))

    def _ready(self, timeout_s: float | None) -> list[WorkerSeat]:
        """Those of whose pipe there is something to read.

        The end of a process is the end of its pipe, for nobody else holds the pipe's other end.
        """
        by_pipe: dict[Any, WorkerSeat] = {seat.pipe: seat for seat in self._seats if seat.pipe is not None}
        if not by_pipe:
            time.sleep(timeout_s or 0.0)  # until somebody is started again; there is nothing to wait on
            return []
        try:
            return [by_pipe[pipe] for pipe in wait(list(by_pipe), timeout_s)]
        except InterruptedError:  # by a signal, on Windows; it has been handled
            return []


def _allow_open_files(needed: int) -> None:
    """Raise this process's limit where that is low, before a worker finds out halfway through its start."""
    if sys.platform == "win32":
        return
    import resource

    allowed, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if allowed == resource.RLIM_INFINITY or allowed >= needed:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, most))
    except (ValueError, OSError) as error:
        raise LaunchError(
            f"So many environments need about {needed} open files, and this process may have {allowed} at most. Raise "
            f"the limit (ulimit -n {needed}) or use fewer environments (--num-envs)."
        ) from error


def _log_level(number: int) -> int:
    """All environments of a run say the same as they start: one is enough. Warnings come from all."""
    level = logging.getLogger(_PACKAGE).getEffectiveLevel()
    return level if number == 0 or level < logging.INFO else max(level, logging.WARNING)


def _log(fields: dict[str, Any], worker: int) -> None:
    if fields["levelno"] >= logging.WARNING:
        fields["msg"] = f"Environment {worker}: {fields['msg']}"
    record = logging.makeLogRecord(fields)
    logger = logging.getLogger(record.name)
    if logger.isEnabledFor(record.levelno):
        logger.handle(record)


def _fault(error: Exception) -> EnvironmentFaultError:
    if isinstance(error, EnvironmentFaultError):
        return error
    raise error
