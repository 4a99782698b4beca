"""The program of a child process: one environment, driven by the parent over a pipe and two pieces of shared memory.

It never imports torch, which would cost hundreds of megabytes per environment.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from trajtrainer.core.image_order import RawImageOrder
from trajtrainer.core.printable import with_safe_arguments
from trajtrainer.core.spec import BehaviorSpec
from trajtrainer.core.steps import EnvironmentEvent
from trajtrainer.envs.protocol import Environment
from trajtrainer.envs.workers import messages
from trajtrainer.envs.workers.shared_batches import SharedActions, SharedSteps
from trajtrainer.envs.workers.shared_memory import MemoryAddress, SharedMemory
from trajtrainer.envs.workers.spawned import begin_child

_PACKAGE = "trajtrainer"

EnvironmentMaker = Callable[..., Environment]
"""Makes the one environment of the worker with this number; runs in the child, so it must be picklable.

``raw_image_order`` is given as a keyword as well once the other players of the run have shown it.
"""


def start_environment(make_environment: EnvironmentMaker, number: int, order: RawImageOrder) -> Environment:
    """Return the environment of a worker."""
    return make_environment(number, **({} if order is RawImageOrder.AUTO else {"raw_image_order": order}))


@dataclass(frozen=True, slots=True)
class ChildTask:
    """The task that a child is given at its start.

    Attributes:
        number: of the worker.
        make_environment: called for every START.
        events, actions: addresses of the shared memory for them.
        log_level: of this package.
    """

    number: int
    make_environment: EnvironmentMaker
    events: MemoryAddress
    actions: MemoryAddress
    log_level: int


def run_child(task: ChildTask, connection: messages.Pipe, lifeline: messages.Pipe) -> None:
    """Serve the parent until it says END or is gone."""
    child = _Child(task, LockedPipe(connection))
    begin_child(lifeline, child.kill)
    with contextlib.suppress(EOFError, OSError):  # the parent is gone
        child.serve()
    child.close()


class _Child:
    """The state of a child."""

    def __init__(self, task: ChildTask, pipe: LockedPipe) -> None:
        self._number = task.number
        self._make_environment = task.make_environment
        self._pipe = pipe
        self._events = SharedSteps(SharedMemory.open(task.events))
        self._actions = SharedActions(SharedMemory.open(task.actions))
        self._environment: Environment | None = None
        self._specs: dict[str, BehaviorSpec] = {}
        forward_log(self._pipe, task.log_level)

    def serve(self) -> None:
        """Do what the parent says, until END.

        Raises:
            EOFError, OSError: the parent is gone.
        """
        while True:
            kind, content = messages.read(self._pipe.connection)
            if kind == messages.END:
                return
            try:
                self._do(kind, content)
            except _EndError:
                return
            except Exception as error:
                self._fail(error)

    def close(self) -> None:
        """End the environment."""
        self._end_environment()
        self._events.close()
        self._actions.close()

    def kill(self) -> None:
        """End the environment at once, from another thread, whatever it waits for."""
        environment = self._environment
        if environment is not None:
            environment.kill()

    def _do(self, kind: bytes, content: bytes) -> None:
        if kind == messages.START:
            self._start(messages.content_of(content) if content else RawImageOrder.AUTO)
        elif kind == messages.ACTION_MEMORY:
            self._actions.use(SharedMemory.open(messages.content_of(content)))
        elif self._environment is None:
            pass  # it failed while this was on its way
        elif kind == messages.STEP:
            self._environment.send(self._number, self._actions.read())
            self._pass_on(self._environment)
        elif kind == messages.RESET:
            self._environment.reset({})
            self._pass_on(self._environment)
        elif kind == messages.PARAMETERS:
            self._environment.set_parameters(messages.content_of(content))

    def _start(self, order: RawImageOrder) -> None:
        self._end_environment()
        self._events.forget()
        self._actions.forget()
        self._specs = {}
        self._environment = start_environment(self._make_environment, self._number, order)
        self._pipe.post(messages.CONNECTED)

    def _pass_on(self, environment: Environment) -> None:
        """Wait for what the environment sends next and hand it over."""
        event = environment.wait()[0]
        self._specs |= event.new_specs
        extras = messages.EventExtras(
            self._announce(event), event.new_specs, event.statistics, event.is_reset, event.raw_images
        )
        needed = self._events.room_for(event.steps)
        if needed > self._events.memory.size:
            self._events.use(self._larger_memory(needed))
        self._events.write(event.steps)
        if extras.layouts or extras.new_specs or extras.statistics or extras.is_reset:
            self._pipe.post(messages.EVENT_WITH_MORE, extras)
        else:
            self._pipe.post(messages.EVENT)

    def _announce(self, event: EnvironmentEvent) -> list[tuple[str, BehaviorSpec, tuple[str, ...]]]:
        """Announce the behaviours whose agents come for the first time, and return them.

        Only their agents show what type a picture has.
        """
        new = [
            (name, self._specs[name], tuple(column.dtype.str for column in batch.obs))
            for name, batch in event.steps.items()
            if name not in self._events
        ]
        for name, spec, types in new:
            self._events.announce(name, spec, types)
            self._actions.announce(name, spec.action_spec)
        return new

    def _larger_memory(self, size: int) -> SharedMemory:
        self._pipe.post(messages.NEED, size)
        kind, content = messages.read(self._pipe.connection)
        if kind == messages.END:
            raise _EndError
        return SharedMemory.open(messages.content_of(content))

    def _fail(self, error: Exception) -> None:
        """Tell the parent, and only then end what is left of the environment, which may take seconds."""
        self._pipe.post(messages.FAULT, messages.portable(error))
        self._end_environment()

    def _end_environment(self) -> None:
        if self._environment is not None:
            try:
                self._environment.close()
            finally:
                self._environment = None


class _EndError(Exception):
    """The parent said END while it was asked for something else."""


class LockedPipe:
    """A pipe on which several threads send: any of them may write to the log."""

    def __init__(self, connection: messages.Pipe) -> None:
        self.connection = connection
        self._lock = threading.Lock()

    def post(self, kind: bytes, *content: object) -> None:
        """Send a message. Raises ``OSError`` if the parent is gone."""
        with self._lock:
            messages.post(self.connection, kind, *content)


class Posts(Protocol):
    """Sends messages to a parent, from any thread."""

    def post(self, kind: bytes, *content: object) -> None:
        """Send a message."""


class _LogForwarder(logging.Handler):
    """Sends log records to the parent, which knows where they shall appear."""

    def __init__(self, pipe: Posts) -> None:
        super().__init__()
        self._pipe = pipe

    def emit(self, record: logging.LogRecord) -> None:
        record = with_safe_arguments(record)
        text = self.format(record)
        fields = {**record.__dict__, "msg": text, "message": text, "args": None, "exc_info": None, "exc_text": None}
        with contextlib.suppress(Exception):
            self._pipe.post(messages.LOG, fields)


def forward_log(pipe: Posts, level: int) -> None:
    """Send what this package logs, from a level on, to the parent alone."""
    logger = logging.getLogger(_PACKAGE)
    logger.setLevel(level)
    logger.propagate = False
    logger.handlers = [_LogForwarder(pipe)]
