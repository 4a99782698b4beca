"""An evaluator in a process of its own, which ends with the run, however that ended."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Callable
from functools import partial

import torch

from trajtrainer.envs.protocol import Environment, Parameters
from trajtrainer.evaluation.evaluator import Evaluator, Request
from trajtrainer.evaluation.result import EvaluationResult
from trajtrainer.workers import messages
from trajtrainer.workers.process import ChildProcess, begin_child

# The training comes first; what it leaves of the cores is for the evaluation and its players.
_NICENESS = 10
# For players to quit by themselves.
_CLOSE_GRACE_S = 16.0

# Messages besides those that all processes share.
REQUEST = b"q"
RESULT = b"r"


def run_evaluator(evaluator: Evaluator, connection: messages.Pipe, lifeline: messages.Pipe) -> None:
    """Serve the run until it says END or is gone."""
    torch.set_num_threads(1)
    _take_what_is_left()
    pipe = messages.LockedPipe(connection)
    # The training has already logged everything but warnings about its own environment.
    begin_child(pipe, lifeline, logging.WARNING, evaluator.kill)
    with contextlib.suppress(EOFError, OSError):  # the run is gone
        _answer(pipe, messages.CONNECTED, evaluator.start)
        while (message := messages.read(connection))[0] != messages.END:
            _answer(pipe, RESULT, partial(evaluator.evaluate, message[1]))
    evaluator.close()


def _answer(pipe: messages.LockedPipe, kind: bytes, do: Callable[[], object]) -> None:
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
        is_ready: whether it has reported that its environment is there, or is not.
    """

    def __init__(self, make_environment: Callable[[], Environment], parameters: Parameters, seed: int) -> None:
        self.is_ready = False
        evaluator = Evaluator(make_environment, parameters, seed)
        self._process = ChildProcess(
            run_evaluator, evaluator, "evaluation", title="process of the evaluation", log_as="The evaluation"
        )
        self.kill = self._process.kill

    def begin(self, request: Request) -> None:
        """Let it evaluate; ``poll`` returns the result."""
        self._process.post(REQUEST, request)

    def poll(self, timeout_s: float) -> EvaluationResult | Exception | None:
        """Return a result or why there is none; None if nothing is known after ``timeout_s`` seconds."""
        while self._process.has_unread(timeout_s):
            try:
                message = self._process.read()
            except (EOFError, OSError):
                message = messages.FAULT, self._process.death()
            if message is None:
                continue
            self.is_ready = True
            if message[0] != messages.CONNECTED:
                found: EvaluationResult | Exception | None = message[1]
                return found
        return None

    @property
    def is_alive(self) -> bool:
        """Whether it can be asked."""
        return self._process.is_alive

    def close(self, *, wait: bool) -> None:
        """End it and wait for its end; with ``wait`` its environment ends in order, else at once."""
        self._process.end(_CLOSE_GRACE_S if wait else 0.0)


def _take_what_is_left() -> None:
    """Let the training go before this process and the players that it starts, wherever the system can."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    elif sys.platform != "win32":
        os.nice(_NICENESS)
