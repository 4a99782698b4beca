"""Evaluates policies during training, in an environment that is started only once (docs/measure/evaluation.md)."""

from __future__ import annotations

import contextlib
import copy
import logging
import os
import random
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from trajtrainer.core.errors import EnvironmentFaultError, SettingsError, TrajtrainerError
from trajtrainer.core.seeds import derived_seeds, seed_global_generators
from trajtrainer.core.spec import BehaviorId, BehaviorSpec, mismatches, sensors_seen, with_sensors
from trajtrainer.envs.in_process import InProcessEnvironment
from trajtrainer.envs.protocol import Environment, Parameters
from trajtrainer.envs.workers import messages
from trajtrainer.envs.workers.process import ChildProcess, begin_child
from trajtrainer.learning.algos.acting import ActorPolicy, Policy
from trajtrainer.learning.nn.actor import Actor
from trajtrainer.policies.play.loop import play
from trajtrainer.policies.play.result import EvaluationResult
from trajtrainer.run.signals import StopRequest
from trajtrainer.run.user_calls import UserCalls

_NICENESS = 10
_CLOSE_GRACE_S = 16.0  # time for players to quit before they are killed
# Additional message kinds.
REQUEST = b"q"
RESULT = b"r"


@dataclass(frozen=True, slots=True)
class Request:
    """A request to evaluate the policy of a behavior.

    Attributes:
        behavior: name of the behavior to evaluate.
        step: trainer step at which the policy was copied.
        episodes: number of episodes to play.
        deterministic: True to use the most likely actions.
        max_decisions: maximum number of decisions in an episode; longer episodes are truncated.
        timeout_s: maximum duration of the evaluation in seconds.
        actors: networks of all behaviors in the environment, on the CPU. They must not be modified.
    """

    behavior: str
    step: int
    episodes: int
    deterministic: bool
    max_decisions: int
    timeout_s: float
    actors: Mapping[str, Actor]


class Evaluator:
    """Runs evaluations, one at a time.

    The environment is created for the first request, and recreated for the next request if it fails.

    Args:
        make_environment: creates and starts the environment.
        parameters: the environment parameters.
        seed: seed for the episodes, if the environment supports seeding, and for the policies' random choices.
        lent: set if the environment is shared with training: the behavior specs that training has already received. A
            shared environment is not closed.
    """

    def __init__(
        self,
        make_environment: Callable[[], Environment],
        parameters: Parameters,
        seed: int,
        lent: Mapping[str, BehaviorSpec] | None = None,
    ) -> None:
        self._make_environment = make_environment
        self._parameters = parameters
        self._seed = seed
        self._lent = lent
        self._specs: dict[str, BehaviorSpec] = {}
        self._environment: Environment | None = None

    @property
    def call(self) -> object:
        """The current call to user code, if the environment is in this process."""
        environment = self._environment
        return environment.call if isinstance(environment, InProcessEnvironment) else None

    def describe(self) -> str:
        """Return a description of the current call, for messages."""
        assert isinstance(self._environment, InProcessEnvironment)
        return f"In the evaluation: {self._environment.describe()}"

    def start(self) -> None:
        """Start the environment, if it is not running.

        Raises:
            TrajtrainerError: see ``make_environment``.
        """
        if self._environment is None:
            seed_global_generators(self._seed)
            self._environment = self._make_environment()
            self._specs = dict(self._lent or {})

    def evaluate(self, request: Request, stopped: Callable[[], bool] = lambda: False) -> EvaluationResult | None:
        """Play the episodes of a request.

        Args:
            request: the request.
            stopped: called after each step; the evaluation is aborted if it returns True.

        Returns:
            The result; None if the evaluation was aborted.

        Raises:
            SettingsError: the environment's agents differ from those in training.
            EnvironmentFaultError: the environment failed.
            PolicyDivergedError: the policy outputs NaN.
        """
        self.start()
        environment = self._environment
        assert environment is not None

        def policy(behavior_id: BehaviorId, spec: BehaviorSpec, seed: int) -> Policy:
            actor = _fitting(request.actors, behavior_id.name, spec)
            return ActorPolicy(actor, seed=seed, deterministic=request.deterministic)

        if isinstance(environment, InProcessEnvironment):
            # Make all evaluations play the same episodes.
            environment.seed_episodes(self._seed)
            seed_global_generators(self._seed)
        try:
            results = play(
                environment,
                policy,
                request.episodes,
                self._parameters,
                seed=derived_seeds(self._seed, f"{request.behavior} {request.step}")[0],
                max_decisions=request.max_decisions,
                specs=self._specs,
                stopped=stopped,
            )
        except EnvironmentFaultError:
            self.close()
            raise
        return None if stopped() else results.get(request.behavior)

    def close(self) -> None:
        """Close the environment and wait until it has exited."""
        environment, self._environment = self._environment, None
        if environment is not None and self._lent is None:
            environment.close()

    def kill(self) -> None:
        """Kill the environment without waiting. Safe in a signal handler: it is quick and takes no lock."""
        if self._environment is not None and self._lent is None:
            self._environment.kill()


def _fitting(actors: Mapping[str, Actor], behavior: str, spec: BehaviorSpec) -> Actor:
    """Return the actor of a behavior, adapted to the order of sensors in ``spec``.

    Raises:
        SettingsError: the behavior is not trained, or its agents have different sensors or actions.
    """
    actor = actors.get(behavior)
    if actor is None:
        raise SettingsError(
            f"The evaluation's environment has the behavior {behavior!r}, which is not trained "
            f"(trained: {', '.join(actors)}). Exclude it with the env_args of the evaluation."
        )
    if actor.sees is not None:
        actor = copy.copy(actor)
        actor.sees = sensors_seen(actor.spec, spec)  # indices of its sensors in this environment
    if found := "; ".join(mismatches(actor.spec, with_sensors(spec, actor.sees))):
        raise SettingsError(
            f"The policy of behavior {behavior!r} does not fit the agents of the evaluation's environment: {found}. "
            "Choose env_args of the evaluation so that agents have the same sensors and actions as in training."
        )
    return actor


class InlineEvaluator:
    """An evaluator in this process. The run waits for each evaluation.

    Args:
        evaluator: plays the episodes.
        stop: the run's stop request, which aborts evaluations.
        calls: keeps track of calls to user code.
        then: called after each evaluation.
    """

    is_alive = is_ready = True

    def __init__(
        self, evaluator: Evaluator, stop: StopRequest, calls: UserCalls, then: Callable[[], object] = lambda: None
    ) -> None:
        self._evaluator = evaluator
        self._stop = stop
        self._calls = calls
        self._then = then
        self._outcome: EvaluationResult | Exception | None = None
        self.kill = evaluator.kill

    def begin(self, request: Request) -> None:
        """Run an evaluation. After a timeout, ``poll`` returns None."""
        end_s = time.monotonic() + request.timeout_s
        try:
            with generators_untouched(), self._calls.outside(self._evaluator):
                self._outcome = self._evaluator.evaluate(
                    request, lambda: self._stop.requested or time.monotonic() > end_s
                )
        except TrajtrainerError as error:
            self._outcome = error
        finally:
            self._then()

    def poll(self, timeout_s: float) -> EvaluationResult | Exception | None:  # noqa: ARG002
        """Return the outcome of the last evaluation; None if it was aborted or already returned."""
        outcome, self._outcome = self._outcome, None
        return outcome

    def close(self, *, wait: bool) -> None:  # noqa: ARG002
        """Close the environment."""
        with self._calls.outside(self._evaluator):
            self._evaluator.close()


@contextlib.contextmanager
def generators_untouched() -> Iterator[None]:
    """Restore the global random generators at the end of the block, because Python environments may use them."""
    states = torch.get_rng_state(), np.random.get_state(), random.getstate()
    try:
        yield
    finally:
        torch.set_rng_state(states[0])
        np.random.set_state(states[1])
        random.setstate(states[2])


class EvaluatorProcess:
    """An evaluator in a separate process, which runs one evaluation at a time.

    Attributes:
        is_ready: True once the environment has started or failed to start.
    """

    def __init__(self, evaluator: Evaluator) -> None:
        self.is_ready = False
        self._process = ChildProcess(
            run_evaluator, evaluator, "evaluation", title="evaluation process", log_as="The evaluation"
        )
        self.kill = self._process.kill

    @property
    def is_alive(self) -> bool:
        """True if the process is running."""
        return self._process.pid is not None

    def begin(self, request: Request) -> None:
        """Start an evaluation. ``poll`` returns its outcome."""
        self._process.post(REQUEST, request)

    def poll(self, timeout_s: float) -> EvaluationResult | Exception | None:
        """Return the result or error of the evaluation; None if it has not ended after ``timeout_s`` seconds."""
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
        """End the process. With ``wait``, give it time to close the environment."""
        self._process.end(_CLOSE_GRACE_S if wait else 0.0)


def run_evaluator(evaluator: Evaluator, connection: messages.Pipe, lifeline: messages.Pipe) -> None:
    """Answer requests until the run sends END or ends."""
    torch.set_num_threads(1)
    # Training has priority: the evaluator and its players only get CPU time that training does not use.
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    elif sys.platform != "win32":
        os.nice(_NICENESS)
    pipe = messages.LockedPipe(connection)
    # Only log warnings, because other lines repeat those of the training environment.
    begin_child(pipe, lifeline, logging.WARNING, evaluator.kill)

    def answer(kind: bytes, do: Callable[[], object]) -> None:
        try:
            pipe.post(kind, do())
        except Exception as error:
            pipe.post(messages.FAULT, messages.portable(error))

    with contextlib.suppress(EOFError, OSError):  # the run has ended
        answer(messages.CONNECTED, evaluator.start)
        while (message := messages.read(connection))[0] != messages.END:
            answer(RESULT, partial(evaluator.evaluate, message[1]))
    evaluator.close()
