"""Environments in child processes: the code that a child runs, and the parent's handle to the child.

Messages go over a pipe; step batches and actions go through shared memory. Nothing here imports torch, which would cost
hundreds of megabytes per child.
"""

import contextlib
import logging
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from trajtrainer.core.errors import EnvironmentFaultError, TrajtrainerError
from trajtrainer.core.image_order import RawImageOrder
from trajtrainer.core.spec import BehaviorSpec
from trajtrainer.core.steps import ActionBatch, EnvironmentEvent
from trajtrainer.envs.protocol import Environment, Parameters, connect, report_device
from trajtrainer.envs.shared_batches import SharedActions, SharedSteps
from trajtrainer.envs.unity.faults import LaunchError
from trajtrainer.envs.workers import messages
from trajtrainer.envs.workers.process import ChildProcess, begin_child, wait_for_any
from trajtrainer.envs.workers.shared_memory import MemoryAddress

# Message kinds in addition to the common ones in ``messages``. Sent to the child:
START = b"S"  # start an environment, replacing the previous environment; content: the raw image order
PARAMETERS = b"P"  # content: parameters to send with the next RESET or STEP
RESET = b"R"  # content: the torch device to report, or None
STEP = b"A"  # the actions are in shared memory; content: the address of the memory if it is new
# Sent to the parent:
RUNNING = b"r"  # the interpreter of a new process has started
EVENT = b"e"  # the steps are in shared memory; content: an EventRest, unless it would be empty

_JOIN_S = 5.0
_LONGEST_WAIT_S = 1.0
_CLOSE_GRACE_S = 16.0  # time for players to quit on their own, and for children to terminate players that do not
_FILES_PER_CHILD = 9  # pipes, process sentinel, guard, shared memory, and a few that are open only during startup
_OTHER_FILES = 64

EnvironmentMaker = Callable[..., Environment]
"""Makes or launches the environment of the worker with a given number. Picklable if it is called in a child.

The keyword ``raw_image_order`` is passed once the order of the run's raw images is known.
"""


class EventRest(NamedTuple):
    """The content of an event other than its steps, which are in shared memory.

    Attributes:
        memory: address of the shared memory if it is new, otherwise None.
        layouts: id, spec and numpy observation types of each behavior whose agents appear for the first time.
        event: the event without its steps.
    """

    memory: MemoryAddress | None
    layouts: list[tuple[str, BehaviorSpec, tuple[str, ...]]]
    event: EnvironmentEvent


class ChildTask(NamedTuple):
    """The arguments that a child process starts with."""

    number: int
    make_environment: EnvironmentMaker
    log_level: int


def launch_environment(make_environment: EnvironmentMaker, number: int, order: RawImageOrder) -> Environment:
    """Make or launch a worker's environment, passing the raw image order if it is known."""
    return make_environment(number, **({} if order is RawImageOrder.AUTO else {"raw_image_order": order}))


def run_child(task: ChildTask, connection: messages.Pipe, lifeline: messages.Pipe) -> None:
    """Serve the parent until it sends END or dies."""
    server = _Server(task, messages.LockedPipe(connection))
    begin_child(server.pipe, lifeline, task.log_level, server.kill)
    with contextlib.suppress(EOFError, OSError):  # raised if the parent is gone
        server.pipe.post(RUNNING)
        server.serve()
    server.end_environment()


class _Server:
    """The child's side: its environment and the memory shared with its parent."""

    def __init__(self, task: ChildTask, pipe: messages.LockedPipe) -> None:
        self.pipe = pipe
        self._task = task
        self._steps = SharedSteps()
        self._actions = SharedActions()
        self._environment: Environment | None = None
        self._specs: dict[str, BehaviorSpec] = {}

    def serve(self) -> None:
        while (message := messages.read(self.pipe.connection))[0] != messages.END:
            self._steps.unlink()  # the parent has read the last event
            try:
                self._handle(*message)
            except Exception as error:
                # Report the error first, because closing the environment may take seconds.
                self.pipe.post(messages.FAULT, messages.portable(error))
                self.end_environment()

    def end_environment(self) -> None:
        if self._environment is not None:
            try:
                self._environment.close()  # may be interrupted by ``kill``
            finally:
                self._environment = None

    def kill(self) -> None:
        environment = self._environment  # a local copy, because another thread may set the attribute to None
        if environment is not None:
            environment.kill()

    def _handle(self, kind: bytes, content: Any) -> None:
        if kind == START:
            self.end_environment()
            self._steps.clear()
            self._actions.clear()
            self._specs = {}
            self._environment = launch_environment(self._task.make_environment, self._task.number, content)
            connect(self._environment)
            self.pipe.post(messages.CONNECTED)
        elif self._environment is None:
            pass  # The environment failed before this message arrived.
        elif kind == PARAMETERS:
            self._environment.set_parameters(content)
        elif kind == RESET:
            report_device(self._environment, content)
            self._environment.reset({})
            self._report_event(self._environment)
        elif kind == STEP:
            if content is not None:
                self._actions.open(content)
            self._environment.send(self._task.number, self._actions.read())
            self._report_event(self._environment)

    def _report_event(self, environment: Environment) -> None:
        event = environment.wait()[0]
        self._specs |= event.new_specs
        # The dtype of pictures is known only once a behavior has agents.
        layouts = [
            (name, self._specs[name], tuple(column.dtype.str for column in batch.obs))
            for name, batch in event.steps.items()
            if name not in self._steps
        ]
        for name, spec, types in layouts:
            self._steps.announce(name, spec, types)
            self._actions.announce(name, spec.action_spec)
        memory = self._steps.write(event.steps)
        if memory or layouts or event.new_specs or event.statistics or event.is_reset:
            event.steps = {}
            self.pipe.post(EVENT, EventRest(memory, layouts, event))
        else:
            self.pipe.post(EVENT)


class Running:
    """A child's report that its process has started, which can take a while on a busy machine."""


class Connected:
    """A child's report that its environment has started and waits for its first reset."""


Report = Running | Connected | EnvironmentEvent | EnvironmentFaultError
"""The reports that a child can send. After a fault, it has no environment until ``start`` is called again."""


class Child:
    """The parent's handle to one environment in a child process. Only ``bury`` blocks.

    The child reports ``Running`` once per process, ``Connected`` after ``start``, an event after ``reset`` and
    ``send``, and a fault at any time.

    Attributes:
        process: the child process; None before the first start and after the process has ended.
    """

    def __init__(self, number: int, make_environment: EnvironmentMaker) -> None:
        self.number = number
        self.process: ChildProcess | None = None
        self._make_environment = make_environment
        self._steps = SharedSteps()
        self._actions = SharedActions()

    def start(self, order: RawImageOrder = RawImageOrder.AUTO) -> None:
        """Start an environment that reads raw images in this order, replacing the previous environment."""
        if self.process is None:
            # All children log the same lines at startup, so only the first child logs all of them. The others only log
            # warnings.
            level = logging.getLogger("trajtrainer").getEffectiveLevel()
            if self.number and level >= logging.INFO:
                level = max(level, logging.WARNING)
            task = ChildTask(self.number, self._make_environment, level)
            name, title = f"environment-{self.number}", f"worker process of environment {self.number}"
            log_as = f"Environment {self.number}"
            self.process = ChildProcess(run_child, task, name, title=title, log_as=log_as, daemon=True)
        self._reset_memory()
        self.post(START, order)

    def set_parameters(self, parameters: Parameters) -> None:
        """Change parameters. They are sent with the next reset or actions."""
        if parameters:
            self.post(PARAMETERS, dict(parameters))

    def reset(self, device: str | None = None) -> None:
        """Start new episodes. For ``device``, see ``Launched.report_device``."""
        self.post(RESET, device)

    def send(self, actions: Mapping[str, ActionBatch]) -> None:
        """Answer the last event with actions."""
        address = self._actions.write(actions)
        self.post(STEP, *(() if address is None else (address,)))

    @property
    def has_unread(self) -> bool:
        return self.process is not None and self.process.has_unread()

    def post(self, kind: bytes, *content: object) -> None:
        """Send a message if there is a process."""
        if self.process is not None:
            self.process.post(kind, *content)

    def report(self) -> Report | None:
        """Read the next message, which must have arrived. Return None for a log record."""
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
        except (EOFError, OSError):  # the child has died, or its shared memory is gone
            death = process.death()
            self.bury(0.0)
            return death
        if kind == RUNNING:
            return Running()
        if kind == messages.CONNECTED:
            return Connected()
        if not isinstance(content, EnvironmentFaultError):
            raise content
        return content

    def _event(self, rest: EventRest | None) -> EnvironmentEvent:
        if rest is None:
            return EnvironmentEvent(self.number, self._steps.read())
        if rest.memory is not None:
            self._steps.open(rest.memory)
        for behavior_id, spec, types in rest.layouts:
            self._steps.announce(behavior_id, spec, types)
            self._actions.announce(behavior_id, spec.action_spec)
        rest.event.steps = self._steps.read()
        return rest.event

    def bury(self, timeout_s: float) -> None:
        """Wait for the process to end, kill it after ``timeout_s`` seconds, and free its resources."""
        process, self.process = self.process, None
        if process is not None:
            process.bury(timeout_s)
        self._reset_memory()

    def _reset_memory(self) -> None:
        self._steps.clear()
        self._actions.clear()


class Children:
    """The children of a run, numbered from 0. The constructor does not start them.

    Raises:
        LaunchError: this process may not open enough files for this many children.
    """

    def __init__(self, count: int, make_environment: EnvironmentMaker) -> None:
        _allow_open_files(_OTHER_FILES + count * _FILES_PER_CHILD)
        self._children = [Child(number, make_environment) for number in range(count)]

    def __getitem__(self, number: int) -> Child:
        return self._children[number]

    def __len__(self) -> int:
        return len(self._children)

    def reports(self, timeout_s: float | None) -> Sequence[tuple[int, Report]]:
        """Wait until a child reports. Return at most one report per child, each with the child's number.

        May return an empty list before ``timeout_s`` seconds have passed, so that the caller can look for silent
        children.

        Raises:
            TrajtrainerError: an environment rejected what was sent to it.
        """
        ready = self._ready(_LONGEST_WAIT_S if timeout_s is None else timeout_s)
        reports = [(child.number, child.report()) for child in ready]
        return [(number, report) for number, report in reports if report is not None]

    def close(self) -> None:
        """Shut down all environments and wait for their processes to exit. May be called more than once."""
        for child in self._children:
            child.post(messages.END)
        deadline_s = time.monotonic() + _CLOSE_GRACE_S
        while any(child.process for child in self._children) and (remaining_s := deadline_s - time.monotonic()) > 0:
            for child in self._ready(remaining_s):
                with contextlib.suppress(TrajtrainerError, messages.ChildBugError):
                    child.report()  # relays log records, and detects the end of the process
        self.kill()
        deadline_s = time.monotonic() + _JOIN_S
        for child in self._children:
            child.bury(max(0.0, deadline_s - time.monotonic()))

    def kill(self) -> None:
        """Kill all environments without waiting. Safe in signal handlers: it is fast and takes no lock."""
        for child in self._children:
            if child.process is not None:
                child.process.kill()

    def _ready(self, timeout_s: float) -> list[Child]:
        pipes = {child.process.pipe: child for child in self._children if child.process is not None}
        return wait_for_any(pipes, timeout_s)


def _allow_open_files(needed: int) -> None:
    """Raise this process's limit on open files if it is too low, so that no child fails halfway through its start."""
    if sys.platform != "win32":
        import resource  # this module does not exist on Windows

        allowed, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        if allowed == resource.RLIM_INFINITY or allowed >= needed:
            return
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (needed, most))
        except (ValueError, OSError) as error:
            raise LaunchError(
                f"This many environments need about {needed} open files, but this process may open only {allowed}. "
                f"Raise the limit (ulimit -n {needed}) or use fewer environments (--num-envs)."
            ) from error
