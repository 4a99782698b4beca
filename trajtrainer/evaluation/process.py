"""An evaluator in a process of its own: requests and results over a pipe that only the two processes hold.

It ends with the run: a pipe on which nothing is ever sent tells it that the run is gone, however that ended.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from trajtrainer.core.errors import EnvironmentFaultError
from trajtrainer.envs.protocol import Environment, Parameters
from trajtrainer.envs.workers import messages
from trajtrainer.envs.workers.child import LockedPipe, forward_log
from trajtrainer.envs.workers.child_slot import relay_log
from trajtrainer.envs.workers.spawned import SpawnedProcess, begin_child
from trajtrainer.evaluation.evaluator import Evaluator, Request
from trajtrainer.evaluation.result import EvaluationResult

# The training comes first; what it leaves of the cores is for the evaluation and its players.
_NICENESS = 10
# For players to quit by themselves.
_CLOSE_GRACE_S = 16.0

# Of the messages between environments' workers LOG, FAULT, CONNECTED and END are the same here.
REQUEST = b"q"
RESULT = b"r"


@dataclass(frozen=True, slots=True)
class EvaluatorTask:
    """The task that the process is given at its start.

    Attributes:
        make_environment, parameters, seed: see ``Evaluator``; the first must be picklable.
        log_level: of this package.
    """

    make_environment: Callable[[], Environment]
    parameters: Parameters
    seed: int
    log_level: int


def run_evaluator(task: EvaluatorTask, connection: messages.Pipe, lifeline: messages.Pipe) -> None:
    """Serve the run until it says END or is gone."""
    torch.set_num_threads(1)
    _take_what_is_left()
    pipe = LockedPipe(connection)
    forward_log(pipe, task.log_level)
    evaluator = Evaluator(task.make_environment, task.parameters, task.seed)
    begin_child(lifeline, evaluator.kill)
    with contextlib.suppress(EOFError, OSError):  # the run is gone
        _answer(pipe, messages.CONNECTED, evaluator.start)
        while True:
            kind, content = messages.read(pipe.connection)
            if kind == messages.END:
                break
            _answer(pipe, RESULT, partial(evaluator.evaluate, messages.content_of(content)))
    evaluator.close()


def _answer(pipe: LockedPipe, kind: bytes, do: Callable[[], object]) -> None:
    try:
        content = do()
    except Exception as error:
        kind, content = messages.FAULT, messages.portable(error)
    pipe.post(kind, content)


class EvaluatorProcess:
    """An evaluator in another process; one request at a time.

    Args:
        make_environment, parameters, seed: see ``Evaluator``; the first must be picklable.

    Attributes:
        is_ready: whether it has told that its environment is there, or is not.
    """

    def __init__(self, make_environment: Callable[[], Environment], parameters: Parameters, seed: int) -> None:
        self.is_ready = False
        # What else there is to say than warnings has the training said of its own environment.
        task = EvaluatorTask(make_environment, parameters, seed, logging.WARNING)
        self._process = SpawnedProcess(run_evaluator, task, "evaluation")
        self.kill = self._process.kill

    def begin(self, request: Request) -> None:
        """Let it evaluate; ``poll`` tells what came out."""
        self._process.post(REQUEST, request)

    def poll(self, timeout_s: float) -> EvaluationResult | Exception | None:
        """Return a result or why there is none; None if nothing is known after ``timeout_s`` seconds."""
        try:
            while self._process.pipe.poll(timeout_s):
                kind, content = messages.read(self._process.pipe)
                if kind == messages.LOG:
                    relay_log(messages.content_of(content), "The evaluation")
                    continue
                self.is_ready = True
                found: EvaluationResult | Exception | None = messages.content_of(content)
                if kind != messages.CONNECTED:
                    return found
        except (EOFError, OSError):
            self.is_ready = True
            return EnvironmentFaultError(f"The process of the evaluation {self._process.bury()}.")
        return None

    @property
    def is_alive(self) -> bool:
        """Whether it can be asked."""
        return self._process.is_alive

    def close(self, *, wait: bool) -> None:
        """End it and wait for its end; with ``wait`` its environment ends in order, else at once."""
        if wait and self._process.is_alive:
            self._process.post(messages.END)
            self._process.join(_CLOSE_GRACE_S)
        self._process.kill()
        self._process.bury()


def _take_what_is_left() -> None:
    """Let the training go before this process and the players that it starts, wherever the system can."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    elif sys.platform != "win32":
        os.nice(_NICENESS)
