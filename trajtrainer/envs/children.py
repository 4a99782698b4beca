"""Environments in child processes, as their parent holds them."""

from __future__ import annotations

import contextlib
import logging
import sys
import time
from collections.abc import Mapping, Sequence

from trajtrainer.core.errors import EnvironmentFaultError, TrajtrainerError
from trajtrainer.core.image_order import RawImageOrder
from trajtrainer.core.steps import ActionBatch, EnvironmentEvent
from trajtrainer.envs.child import (
    EVENT,
    PARAMETERS,
    RESET,
    START,
    STEP,
    ChildTask,
    EnvironmentMaker,
    EventExtras,
    run_child,
)
from trajtrainer.envs.protocol import Parameters
from trajtrainer.envs.shared_batches import SharedActions, SharedSteps
from trajtrainer.unity.faults import LaunchError
from trajtrainer.workers import messages
from trajtrainer.workers.process import ChildProcess, wait_for_any

_PACKAGE = "trajtrainer"
_JOIN_S = 5.0
_LONGEST_WAIT_S = 1.0
# For players to quit by themselves, and for children to end those that do not.
_CLOSE_GRACE_S = 16.0
# Pipes, the process's end, shared memory, and what is open for a moment at the start.
_FILES_PER_CHILD = 8
_OTHER_FILES = 64


class Connected:
    """The report of a child whose environment is there and waits for its first reset."""


CONNECTED = Connected()
Report = Connected | EnvironmentEvent | EnvironmentFaultError
"""What comes from a child. After a fault its environment is gone, and ``start`` makes another."""


class Child:
    """One environment in a child process. Nothing here waits but ``bury``.

    After ``start`` it reports ``CONNECTED``, after ``reset`` and ``send`` an event, and at any time a fault.

    Args:
        number: of the worker.
        make_environment: runs in the child.

    Attributes:
        process: None before the first start, and after its end.
    """

    def __init__(self, number: int, make_environment: EnvironmentMaker) -> None:
        self.number = number
        self.process: ChildProcess | None = None
        self._make_environment = make_environment
        self._steps = SharedSteps()
        self._actions = SharedActions()

    def start(self, order: RawImageOrder = RawImageOrder.AUTO) -> None:
        """Start an environment, in place of the last one. It reads raw images in this order, if the run knows it."""
        if self.process is None:
            self.process = ChildProcess(
                run_child,
                ChildTask(self.number, self._make_environment, _log_level(self.number)),
                f"environment-{self.number}",
                title=f"worker process of environment {self.number}",
                log_as=f"Environment {self.number}",
                daemon=True,
            )
        self._forget()
        self.post(START, order)

    def set_parameters(self, parameters: Parameters) -> None:
        """Change parameters. They go out with the next reset or actions."""
        if parameters:
            self.post(PARAMETERS, dict(parameters))

    def reset(self) -> None:
        """Let the environment begin all episodes again."""
        self.post(RESET)

    def send(self, actions: Mapping[str, ActionBatch]) -> None:
        """Answer the last event and let the environment go on."""
        address = self._actions.write(actions)
        self.post(STEP, *(() if address is None else (address,)))

    @property
    def has_unread(self) -> bool:
        """Whether it has sent something that was not read yet."""
        return self.process is not None and self.process.has_unread()

    def post(self, kind: bytes, *content: object) -> None:
        """Send a message, if there is a process."""
        if self.process is not None:
            self.process.post(kind, *content)

    def report(self) -> Report | None:
        """Read the next message, which is there; None for a record of the log."""
        process = self.process
        assert process is not None
        try:
            message = process.read()
            if message is None:
                return None
            kind, content = message
            self._actions.unlink()  # the child has opened the memory
            if kind == EVENT:
                return self._event(content)
        except (EOFError, OSError):  # it is gone, and so is memory that it has made
            death = process.death()
            self.bury(0.0)
            return death
        if kind == messages.CONNECTED:
            return CONNECTED
        if not isinstance(content, EnvironmentFaultError):
            raise content
        return content

    def _event(self, extras: EventExtras | None) -> EnvironmentEvent:
        if extras is None:
            return EnvironmentEvent(self.number, self._steps.read())
        if extras.memory is not None:
            self._steps.open(extras.memory)
        for behavior_id, spec, types in extras.layouts:
            self._steps.announce(behavior_id, spec, types)
            self._actions.announce(behavior_id, spec.action_spec)
        return EnvironmentEvent(
            self.number, self._steps.read(), extras.new_specs, extras.statistics, extras.is_reset, extras.raw_images
        )

    def bury(self, timeout_s: float) -> None:
        """Wait for the child to end, end it after ``timeout_s`` seconds, free what belonged to it."""
        process, self.process = self.process, None
        if process is not None:
            process.bury(timeout_s)
        self._forget()

    def _forget(self) -> None:
        self._steps.forget()
        self._actions.forget()


class Children:
    """The children of a run, numbered from 0. None is started here.

    Raises:
        LaunchError: the system does not allow this process as many open files as they need.
    """

    def __init__(self, count: int, make_environment: EnvironmentMaker) -> None:
        _allow_open_files(_OTHER_FILES + count * _FILES_PER_CHILD)
        self._children = [Child(number, make_environment) for number in range(count)]

    def __getitem__(self, number: int) -> Child:
        return self._children[number]

    def __len__(self) -> int:
        return len(self._children)

    def reports(self, timeout_s: float | None) -> Sequence[tuple[int, Report]]:
        """Wait until something comes from any child; return it with its number, at most one report per child.

        May return nothing before the time is over.

        Raises:
            TrajtrainerError: what was sent to an environment cannot be.
        """
        # A child may fall silent, which shows to the caller only.
        ready = self._ready(_LONGEST_WAIT_S if timeout_s is None else timeout_s)
        reports = [(child.number, child.report()) for child in ready]
        return [(number, report) for number, report in reports if report is not None]

    def close(self) -> None:
        """End all environments and wait for their end. May be called again."""
        for child in self._children:
            child.post(messages.END)
        deadline_s = time.monotonic() + _CLOSE_GRACE_S
        while any(child.process for child in self._children) and (remaining_s := deadline_s - time.monotonic()) > 0:
            for child in self._ready(remaining_s):
                with contextlib.suppress(TrajtrainerError, messages.ChildBugError):
                    child.report()  # for the log, and the end of the pipe
        self.kill()
        deadline_s = time.monotonic() + _JOIN_S
        for child in self._children:
            child.bury(max(0.0, deadline_s - time.monotonic()))

    def kill(self) -> None:
        """End all environments at once and do not wait. For signal handlers: quick, and takes no lock."""
        for child in self._children:
            if child.process is not None:
                child.process.kill()

    def _ready(self, timeout_s: float) -> list[Child]:
        pipes = {child.process.pipe: child for child in self._children if child.process is not None}
        return wait_for_any(pipes, timeout_s)


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
