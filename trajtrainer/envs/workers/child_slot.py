"""The parent's end of a child process: slots whose environments run in children."""

from __future__ import annotations

import contextlib
import logging
import sys
import time
from collections.abc import Mapping, Sequence
from multiprocessing.connection import wait
from typing import Any

from trajtrainer.core.errors import EnvironmentFaultError, TrajtrainerError
from trajtrainer.core.image_order import RawImageOrder
from trajtrainer.core.steps import ActionBatch
from trajtrainer.envs.protocol import Parameters
from trajtrainer.envs.workers import messages
from trajtrainer.envs.workers.child import EnvironmentMaker
from trajtrainer.envs.workers.child_process import ChildProcess
from trajtrainer.envs.workers.slot import CONNECTED, ChildDiedError, Report
from trajtrainer.unity.faults import LaunchError

_LOGGER = logging.getLogger(__name__)
_PACKAGE = "trajtrainer"
_JOIN_S = 5.0
_LONGEST_WAIT_S = 1.0
# For players to quit by themselves, and for children to end those that do not.
_CLOSE_GRACE_S = 16.0
# Pipes, the process's end, shared memory, and what is open for a moment at the start.
_FILES_PER_CHILD = 8
_OTHER_FILES = 64


class ChildSlot:
    """A slot whose environment runs in a child process.

    Args:
        number: of the worker.
        make_environment: runs in the child.
        patience_s: how long the child may be silent when it is its turn. Environments have limits of their own; this is
            for a child that itself is stuck.
    """

    def __init__(self, number: int, make_environment: EnvironmentMaker, patience_s: float) -> None:
        self.number = number
        self._make_environment = make_environment
        self._patience_s = patience_s
        self._child: ChildProcess | None = None
        self._due_s = float("inf")

    @property
    def pipe(self) -> messages.Pipe | None:
        """The pipe to wait on; None while there is no child."""
        return None if self._child is None else self._child.pipe

    @property
    def process_id(self) -> int | None:
        """The process id; None where there is no child."""
        return None if self._child is None else self._child.pid

    def is_late(self) -> bool:
        """Return whether the child has been silent too long.

        What it has sent may not have been read yet, because it was other things' turn: a log record, say, and its
        answer behind it.
        """
        if self._due_s >= time.monotonic():
            return False
        return self._child is None or not self._child.pipe.poll()

    def start(self, order: RawImageOrder = RawImageOrder.AUTO) -> None:
        """See ``Slot``."""
        if self._child is None:
            self._child = ChildProcess(self.number, self._make_environment, _log_level(self.number))
        self._child.forget_behaviors()
        self._post(messages.START, order)

    def reset(self, parameters: Parameters) -> None:
        """See ``Slot``."""
        self._send_parameters(parameters)
        self._post(messages.RESET)

    def send(self, actions: Mapping[str, ActionBatch], parameters: Parameters) -> None:
        """See ``Slot``."""
        if self._child is None:
            return
        self._send_parameters(parameters)
        larger = self._child.write_actions(actions)
        if larger is not None:
            self._post(messages.ACTION_MEMORY, larger)
        self._post(messages.STEP)

    def report(self) -> Report | None:
        """Read the next message; None if it is of no interest to the supervisor. Called when the pipe has something."""
        child = self._child
        if child is None:
            return None
        try:
            kind, content = messages.read(child.pipe)
        except (EOFError, OSError):
            return ChildDiedError(f"The worker process of environment {self.number} {self.bury(_JOIN_S)}.")
        if kind == messages.LOG:
            relay_log(messages.content_of(content), f"Environment {self.number}")
            return None
        if kind == messages.NEED:
            self._post(messages.EVENT_MEMORY, child.enlarge_events(messages.content_of(content)))
            return None
        self._due_s = float("inf")
        child.unlink_memory()  # a child that sends one of the following has opened it
        if kind == messages.FAULT:
            return _fault(messages.content_of(content))
        if kind == messages.CONNECTED:
            return CONNECTED
        extras = messages.content_of(content) if kind == messages.EVENT_WITH_MORE else None
        return child.event(extras)

    def give_up(self) -> EnvironmentFaultError:
        """End a child that is late."""
        self.bury(0.0)
        _LOGGER.debug("Ended the process of worker %d, which was silent.", self.number)
        return ChildDiedError(f"The worker process of environment {self.number} stopped answering.")

    def ask_to_end(self) -> None:
        """Let the child end in order."""
        self._post(messages.END)

    def kill(self) -> None:
        """See ``Slot``."""
        if self._child is not None:
            self._child.kill()

    def bury(self, timeout_s: float) -> str:
        """Wait for the child to end, end it after ``timeout_s`` seconds, free what belonged to it.

        Returns:
            how it ended.
        """
        child, self._child = self._child, None
        self._due_s = float("inf")
        return "is gone" if child is None else child.bury(timeout_s)

    def _send_parameters(self, parameters: Parameters) -> None:
        if parameters:
            self._post(messages.PARAMETERS, dict(parameters))

    def _post(self, kind: bytes, *content: Any) -> None:
        self._due_s = time.monotonic() + self._patience_s
        if self._child is not None:
            self._child.post(kind, *content)


class ChildSlots:
    """The slots of a run whose environments run in children. None is started here.

    Raises:
        LaunchError: the system does not allow this process as many open files as they need.
    """

    def __init__(self, count: int, make_environment: EnvironmentMaker, patience_s: float) -> None:
        _allow_open_files(_OTHER_FILES + count * _FILES_PER_CHILD)
        self._slots = [ChildSlot(number, make_environment, patience_s) for number in range(count)]

    def __getitem__(self, number: int) -> ChildSlot:
        return self._slots[number]

    def __len__(self) -> int:
        return len(self._slots)

    def reports(self, timeout_s: float | None) -> Sequence[tuple[int, Report]]:
        """See ``Slots``."""
        found: list[tuple[int, Report]] = []
        if timeout_s is None:
            timeout_s = _LONGEST_WAIT_S  # somebody may be late without a word
        for slot in self._ready(timeout_s):
            report = slot.report()
            if report is not None:
                found.append((slot.number, report))
        found += [(slot.number, slot.give_up()) for slot in self._slots if slot.is_late()]
        return found

    def close(self) -> None:
        """See ``Slots``."""
        for slot in self._slots:
            slot.ask_to_end()
        deadline_s = time.monotonic() + _CLOSE_GRACE_S
        while any(slot.pipe for slot in self._slots) and (remaining_s := deadline_s - time.monotonic()) > 0:
            for slot in self._ready(remaining_s):
                with contextlib.suppress(TrajtrainerError, messages.ChildBugError):
                    slot.report()  # for the log, and the end of the pipe
        for slot in self._slots:
            slot.kill()
        deadline_s = time.monotonic() + _JOIN_S
        for slot in self._slots:
            slot.bury(max(0.0, deadline_s - time.monotonic()))

    def _ready(self, timeout_s: float | None) -> list[ChildSlot]:
        """Return the slots of whose pipe there is something to read.

        The end of a child is the end of its pipe, for nobody else holds the pipe's other end.
        """
        by_pipe: dict[Any, ChildSlot] = {slot.pipe: slot for slot in self._slots if slot.pipe is not None}
        if not by_pipe:
            time.sleep(timeout_s or 0.0)  # until somebody is started again; there is nothing to wait on
            return []
        try:
            return [by_pipe[pipe] for pipe in wait(list(by_pipe), timeout_s)]
        except InterruptedError:  # by a signal, on Windows; it has been handled
            return []


if sys.platform == "win32":

    def _allow_open_files(_needed: int) -> None:
        """Do nothing: Windows has no such limit."""

else:
    import resource

    def _allow_open_files(needed: int) -> None:
        """Raise this process's limit where that is low, before a child finds out halfway through its start."""
        allowed, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        if allowed == resource.RLIM_INFINITY or allowed >= needed:
            return
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (needed, most))
        except (ValueError, OSError) as error:
            raise LaunchError(
                f"So many environments need about {needed} open files, and this process may have {allowed} at most. "
                f"Raise the limit (ulimit -n {needed}) or use fewer environments (--num-envs)."
            ) from error


def _log_level(number: int) -> int:
    """Return the level of one child's log: all say the same as they start, so one is enough. Warnings come from all."""
    level = logging.getLogger(_PACKAGE).getEffectiveLevel()
    return level if number == 0 or level < logging.INFO else max(level, logging.WARNING)


def relay_log(fields: dict[str, Any], whose: str, least: int = logging.WARNING) -> None:
    """Log a record of another process here, as ``forward_log`` sent it; of level ``least`` and more with ``whose``."""
    if fields["levelno"] >= least:
        fields["msg"] = f"{whose}: {fields['msg']}"
    record = logging.makeLogRecord(fields)
    logger = logging.getLogger(record.name)
    if logger.isEnabledFor(record.levelno):
        logger.handle(record)


def _fault(error: Exception) -> EnvironmentFaultError:
    if isinstance(error, EnvironmentFaultError):
        return error
    raise error
