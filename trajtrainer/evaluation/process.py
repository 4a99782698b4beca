"""An evaluator in a process of its own: requests and results over a pipe that only the two processes hold.

It ends with the run: a pipe on which nothing is ever sent tells it that the run is gone, however that ended.
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from multiprocessing.context import SpawnProcess

import torch

from trajtrainer.envs.protocol import Environment, Parameters
from trajtrainer.envs.workers import messages
from trajtrainer.envs.workers.child import LockedPipe, forward_log
from trajtrainer.envs.workers.child_process import how_it_ended, without_main_module
from trajtrainer.envs.workers.child_slot import relay_log
from trajtrainer.errors import EnvironmentFaultError
from trajtrainer.evaluation.evaluator import Evaluator, Request
from trajtrainer.evaluation.result import EvaluationResult

# The training comes first; what it leaves of the cores is for the evaluation and its players.
_NICENESS = 10
_JOIN_S = 5.0
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
        pipe: to the run.
        lifeline: its end tells that the run is gone, or ends the process at once.
        log_level: of this package.
    """

    make_environment: Callable[[], Environment]
    parameters: Parameters
    seed: int
    pipe: messages.Pipe
    lifeline: messages.Pipe
    log_level: int


def run_evaluator(task: EvaluatorTask) -> None:
    """Serve the run until it says END or is gone."""
    # Ctrl-C reaches all processes of a terminal. The run alone decides what follows from it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    _take_what_is_left()
    pipe = LockedPipe(task.pipe)
    forward_log(pipe, task.log_level)
    evaluator = Evaluator(task.make_environment, task.parameters, task.seed)

    def watch() -> None:
        with contextlib.suppress(EOFError, OSError):
            task.lifeline.recv_bytes()
        with contextlib.suppress(Exception):
            evaluator.kill()
        # A player that is just starting is not known yet; it has a guard for that.
        os._exit(1)

    threading.Thread(target=watch, name="lifeline", daemon=True).start()
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
        spawning = multiprocessing.get_context("spawn")
        self._pipe, pipe_of_child = spawning.Pipe()
        lifeline_of_child, self._lifeline = spawning.Pipe(duplex=False)
        task = EvaluatorTask(
            make_environment,
            parameters,
            seed,
            pipe_of_child,
            lifeline_of_child,
            logging.WARNING,  # what else there is to say has the training said of its own environment
        )
        # No daemon: those may not have processes of their own, and several players have one each.
        self._process: SpawnProcess | None = spawning.Process(
            target=run_evaluator, args=(task,), name="evaluation", daemon=False
        )
        with without_main_module():
            self._process.start()
        # Copies of the other ends here would hide its death.
        pipe_of_child.close()
        lifeline_of_child.close()

    def begin(self, request: Request) -> None:
        """Let it evaluate; ``poll`` tells what came out."""
        with contextlib.suppress(OSError):  # its death is noticed when its pipe is read
            messages.post(self._pipe, REQUEST, request)

    def poll(self, timeout_s: float) -> EvaluationResult | Exception | None:
        """Return a result or why there is none; None if nothing is known after ``timeout_s`` seconds."""
        try:
            while self._pipe.poll(timeout_s):
                kind, content = messages.read(self._pipe)
                if kind == messages.LOG:
                    relay_log(messages.content_of(content), "The evaluation")
                    continue
                self.is_ready = True
                found: EvaluationResult | Exception | None = messages.content_of(content)
                if kind != messages.CONNECTED:
                    return found
        except (EOFError, OSError):
            self.is_ready = True
            return EnvironmentFaultError(f"The process of the evaluation {self._bury()}.")
        return None

    @property
    def is_alive(self) -> bool:
        """Whether it can be asked."""
        return self._process is not None

    def close(self, *, wait: bool) -> None:
        """End it and wait for its end; with ``wait`` its environment ends in order, else at once."""
        if self._process is None:
            return
        if wait:
            with contextlib.suppress(OSError):
                messages.post(self._pipe, messages.END)
            self._process.join(_CLOSE_GRACE_S)
        self.kill()
        self._bury()

    def kill(self) -> None:
        """End it at once and do not wait. For signal handlers: quick, and takes no lock."""
        with contextlib.suppress(OSError):
            self._lifeline.close()

    def _bury(self) -> str:
        process, self._process = self._process, None
        if process is None:
            return "is gone"
        process.join(_JOIN_S)
        if process.exitcode is None:
            process.kill()
            process.join()
        code = process.exitcode
        process.close()
        self.kill()
        self._pipe.close()
        return how_it_ended(code)


def _take_what_is_left() -> None:
    """Let the training go before this process and the players that it starts, wherever the system can."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    elif sys.platform != "win32":
        os.nice(_NICENESS)
