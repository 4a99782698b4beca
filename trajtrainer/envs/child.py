"""The program of a child process: one environment, driven by the parent over a pipe and shared memory.

It never imports torch, which would cost hundreds of megabytes per environment.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from trajtrainer.core.image_order import RawImageOrder
from trajtrainer.core.spec import BehaviorSpec
from trajtrainer.core.steps import Statistic
from trajtrainer.envs.protocol import Environment
from trajtrainer.envs.shared_batches import SharedActions, SharedSteps
from trajtrainer.workers import messages
from trajtrainer.workers.process import begin_child
from trajtrainer.workers.shared_memory import MemoryAddress

# Messages besides those that all processes share. To the child:
START = b"S"  # start an environment, in place of the last one, with this order of raw images
PARAMETERS = b"P"  # Parameters; they go out with the next RESET or STEP
RESET = b"R"
STEP = b"A"  # the actions are in shared memory, whose address follows if it is new
# To the parent:
EVENT = b"e"  # the steps of an event are in shared memory; EventExtras follow if there are any

EnvironmentMaker = Callable[..., Environment]
"""Makes the one environment of the worker with this number; runs in the child, so it must be picklable.

``raw_image_order`` is given as a keyword as well once the other players of the run have shown it.
"""


@dataclass(slots=True)
class EventExtras:
    """The rare parts of an event.

    Attributes:
        memory: the address of the shared memory, if it is new.
        layouts: behaviors whose agents come for the first time: id, spec, numpy types of the observations.
        new_specs, statistics, is_reset, raw_images: see ``EnvironmentEvent``.
    """

    memory: MemoryAddress | None
    layouts: list[tuple[str, BehaviorSpec, tuple[str, ...]]]
    new_specs: dict[str, BehaviorSpec] = field(default_factory=dict)
    statistics: list[Statistic] = field(default_factory=list)
    is_reset: bool = False
    raw_images: dict[str, RawImageOrder] = field(default_factory=dict)


class ChildTask(NamedTuple):
    """The task that a child is given at its start."""

    number: int
    make_environment: EnvironmentMaker
    log_level: int


def start_environment(make_environment: EnvironmentMaker, number: int, order: RawImageOrder) -> Environment:
    """Return the environment of a worker."""
    return make_environment(number, **({} if order is RawImageOrder.AUTO else {"raw_image_order": order}))


def run_child(task: ChildTask, connection: messages.Pipe, lifeline: messages.Pipe) -> None:
    """Serve the parent until it says END or is gone."""
    child = _Child(task, messages.LockedPipe(connection))
    begin_child(child.pipe, lifeline, task.log_level, child.kill)
    with contextlib.suppress(EOFError, OSError):  # the parent is gone
        child.serve()
    child.end_environment()


class _Child:
    """The environment of a child, and the memory that it shares with its parent."""

    def __init__(self, task: ChildTask, pipe: messages.LockedPipe) -> None:
        self.pipe = pipe
        self._task = task
        self._steps = SharedSteps()
        self._actions = SharedActions()
        self._environment: Environment | None = None
        self._specs: dict[str, BehaviorSpec] = {}

    def serve(self) -> None:
        """Do what the parent says, until END.

        Raises:
            EOFError, OSError: the parent is gone.
        """
        while True:
            kind, content = messages.read(self.pipe.connection)
            if kind == messages.END:
                return
            self._steps.unlink()  # the parent has read the last event
            try:
                self._do(kind, content)
            except Exception as error:
                # First reported, and only then ended, which may take seconds.
                self.pipe.post(messages.FAULT, messages.portable(error))
                self.end_environment()

    def end_environment(self) -> None:
        if self._environment is not None:
            try:
                self._environment.close()  # ``kill`` may have to help
            finally:
                self._environment = None

    def kill(self) -> None:
        """End the environment at once, from another thread, whatever it waits for."""
        environment = self._environment
        if environment is not None:
            environment.kill()

    def _do(self, kind: bytes, content: Any) -> None:
        if kind == START:
            self.end_environment()
            self._steps.forget()
            self._actions.forget()
            self._specs = {}
            self._environment = start_environment(self._task.make_environment, self._task.number, content)
            self.pipe.post(messages.CONNECTED)
        elif self._environment is None:
            pass  # it failed while this was on its way
        elif kind == PARAMETERS:
            self._environment.set_parameters(content)
        elif kind == RESET:
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
        # Only the agents of a behavior show what type a picture has.
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
            self.pipe.post(
                EVENT,
                EventExtras(memory, layouts, event.new_specs, event.statistics, event.is_reset, event.raw_images),
            )
        else:
            self.pipe.post(EVENT)
