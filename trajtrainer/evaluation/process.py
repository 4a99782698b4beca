"""An evaluator in a process of its own, which ends with the run, however that ends."""

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

_NICENESS = 10
_CLOSE_GRACE_S = 16.0  # for players to quit on their own

# Messages besides those that all processes share.
REQUEST = b"q"
RESULT = b"r"


def run_evaluator(evaluator: Evaluator, connection: messages.Pipe, lifeline: messages.Pipe) -> None:
    """Answer the run's requests until it sends END or is gone."""
    torch.set_num_threads(1)
    # Training comes first: evaluation and its players get only the CPU time that it leaves.
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    elif sys.platform != "win32":
        os.nice(_NICENESS)
    pipe = messages.LockedPipe(connection)
    # Training has already logged what its own environment logged at its start; only warnings are new.
    begin_child(pipe, lifeline, logging.WARNING, evaluator.kill)

    def answer(kind: bytes, do: Callable[[], object]) -> None:
        try:
            content = do()
        except Exception as error:
            kind, content = messages.FAULT, messages.portable(error)
        pipe.post(kind, content)

    with contextlib.suppress(EOFError, OSError):  # the run is gone
        answer(messages.CONNECTED, evaluator.start)
        while (message := messages.read(connection))[0] != messages.END:
            answer(RESULT, partial(evaluator.evaluate, message[1]))
    evaluator.close()


class EvaluatorProcess:
    """An evaluator in another process; one request at a time. Implements ``Evaluates``."""

    def __init__(self, make_environment: Callable[[], Environment], parameters: Parameters, seed: int) -> None:
        self.is_ready = False
        evaluator = Evaluator(make_environment, parameters, seed)
        self._process = ChildProcess(
            run_evaluator, evaluator, "evaluation", title="process of the evaluation", log_as="The evaluation"
        )
        self.kill = self._process.kill

    @property
    def is_alive(self) -> bool:
        return self._process.pid is not None

    def begin(self, request: Request) -> None:
        self._process.post(REQUEST, request)

    def poll(self, timeout_s: float) -> EvaluationResult | Exception | None:
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

    def close(self, *, wait: bool) -> None:
        self._process.end(_CLOSE_GRACE_S if wait else 0.0)
