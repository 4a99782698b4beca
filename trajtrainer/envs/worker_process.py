"""The program of a worker process: one environment, driven by the main process over a pipe and two shared blocks.

It never imports torch, which would cost hundreds of megabytes per environment.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

from trajtrainer.envs import worker_messages as messages
from trajtrainer.envs.protocol import Environment
from trajtrainer.envs.shared_block import BlockAddress, SharedBlock
from trajtrainer.envs.worker_batches import ActionBlock, EventBlock
from trajtrainer.printable import with_safe_arguments
from trajtrainer.spec import BehaviorSpec
from trajtrainer.steps import EnvironmentEvent

_PACKAGE = "trajtrainer"

EnvironmentMaker = Callable[[int], Environment]
"""Makes the one environment of the worker with this number; runs in the worker's process, so it must be picklable."""


@dataclass(frozen=True, slots=True)
class WorkerTask:
    """What a worker process is given at its start.

    Attributes:
        number: of the worker.
        make_environment: called for every START.
        pipe: to the main process.
        lifeline: a pipe on which nothing is ever sent. Its end tells that the main process is gone, or in a hurry.
        event_block, action_block: where they are.
        log_level: of this package.
    """

    number: int
    make_environment: EnvironmentMaker
    pipe: messages.Pipe
    lifeline: messages.Pipe
    event_block: BlockAddress
    action_block: BlockAddress
    log_level: int


def run_worker(task: WorkerTask) -> None:
    """Serves the main process until it says END or is gone."""
    # Ctrl-C reaches all processes of a terminal. The main process alone decides what follows from it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    worker = _Worker(task)
    threading.Thread(target=worker.watch_lifeline, name="lifeline", daemon=True).start()
    with contextlib.suppress(EOFError, OSError):  # the main process is gone
        worker.serve()
    worker.close()


class _Worker:
    """The state of a worker process."""

    def __init__(self, task: WorkerTask) -> None:
        self._number = task.number
        self._make_environment = task.make_environment
        self._lifeline = task.lifeline
        self._pipe = _LockedPipe(task.pipe)
        self._events = EventBlock(SharedBlock.open(task.event_block))
        self._actions = ActionBlock(SharedBlock.open(task.action_block))
        self._environment: Environment | None = None
        self._specs: dict[str, BehaviorSpec] = {}
        _forward_log(self._pipe, task.log_level)

    def serve(self) -> None:
        """Does what the main process says, until END.

        Raises:
            EOFError, OSError: the main process is gone.
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
        """Ends the environment."""
        self._end_environment()
        self._events.close()
        self._actions.close()

    def watch_lifeline(self) -> None:
        """Ends everything at once when the main process is gone, whatever the other threads wait for."""
        with contextlib.suppress(EOFError, OSError):
            self._lifeline.recv_bytes()
        self._abort()

    def _abort(self) -> NoReturn:
        environment = self._environment
        if environment is not None:
            with contextlib.suppress(Exception):
                environment.kill()
        # An environment that is just starting is not known yet; a player has a guard for that.
        os._exit(1)

    def _do(self, kind: bytes, content: bytes) -> None:
        if kind == messages.START:
            self._start()
        elif kind == messages.ACTION_BLOCK:
            self._actions.use(SharedBlock.open(messages.content_of(content)))
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

    def _start(self) -> None:
        self._end_environment()
        self._events.forget()
        self._actions.forget()
        self._specs = {}
        self._environment = self._make_environment(self._number)
        self._pipe.post(messages.CONNECTED)

    def _pass_on(self, environment: Environment) -> None:
        """Waits for what the environment sends next and hands it over."""
        event = environment.wait()[0]
        self._specs |= event.new_specs
        extras = messages.EventExtras(
            self._announce(event), event.new_specs, event.statistics, event.is_reset, event.misread_elsewhere
        )
        needed = self._events.room_for(event.steps)
        if needed > self._events.block.size:
            self._events.use(self._larger_block(needed))
        self._events.write(event.steps)
        if extras.layouts or extras.new_specs or extras.statistics or extras.is_reset:
            self._pipe.post(messages.EVENT_WITH_MORE, extras)
        else:
            self._pipe.post(messages.EVENT)

    def _announce(self, event: EnvironmentEvent) -> list[tuple[str, BehaviorSpec, tuple[str, ...]]]:
        """The behaviours whose agents come for the first time. Only their agents show what type a picture has."""
        new = [
            (name, self._specs[name], tuple(column.dtype.str for column in batch.obs))
            for name, batch in event.steps.items()
            if name not in self._events
        ]
        for name, spec, types in new:
            self._events.announce(name, spec, types)
            self._actions.announce(name, spec.action_spec)
        return new

    def _larger_block(self, size: int) -> SharedBlock:
        self._pipe.post(messages.NEED, size)
        kind, content = messages.read(self._pipe.connection)
        if kind == messages.END:
            raise _EndError
        return SharedBlock.open(messages.content_of(content))

    def _fail(self, error: Exception) -> None:
        """Tells the main process, and only then ends what is left of the environment, which may take seconds."""
        self._pipe.post(messages.FAULT, messages.portable(error))
        self._end_environment()

    def _end_environment(self) -> None:
        if self._environment is not None:
            try:
                self._environment.close()
            finally:
                self._environment = None


class _EndError(Exception):
    """The main process said END while it was asked for something else."""


class _LockedPipe:
    """Lets several threads send: any of them may write to the log."""

    def __init__(self, connection: messages.Pipe) -> None:
        self.connection = connection
        self._lock = threading.Lock()

    def post(self, kind: bytes, *content: object) -> None:
        """Sends a message. Raises ``OSError`` if the main process is gone."""
        with self._lock:
            messages.post(self.connection, kind, *content)


class _LogForwarder(logging.Handler):
    """Sends log records to the main process, which knows where they shall appear."""

    def __init__(self, pipe: _LockedPipe) -> None:
        super().__init__()
        self._pipe = pipe

    def emit(self, record: logging.LogRecord) -> None:
        record = with_safe_arguments(record)
        text = self.format(record)
        fields = {**record.__dict__, "msg": text, "message": text, "args": None, "exc_info": None, "exc_text": None}
        with contextlib.suppress(Exception):
            self._pipe.post(messages.LOG, fields)


def _forward_log(pipe: _LockedPipe, level: int) -> None:
    logger = logging.getLogger(_PACKAGE)
    logger.setLevel(level)
    logger.propagate = False
    logger.handlers = [_LogForwarder(pipe)]
