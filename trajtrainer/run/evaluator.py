"""Evaluates policies during training, in an environment started once (docs/measure/evaluation.md)."""

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
_CLOSE_GRACE_S = 16.0  # for players to quit on their own
# Messages besides those that all processes share.
REQUEST = b"q"
RESULT = b"r"


@dataclass(frozen=True, slots=True)
class Request:
    """Something to evaluate.

    Attributes:
        behavior: whose episodes count.
        step: of its trainer, when this is how it acted.
        episodes: that count.
        deterministic: use the most likely actions.
        max_decisions: of an episode; a longer one is truncated.
        timeout_s: how long it may take.
        actors: of all behaviors of the environment, on the CPU; never changed.
    """

    behavior: str
    step: int
    episodes: int
    deterministic: bool
    max_decisions: int
    timeout_s: float
    actors: Mapping[str, Actor]


class Evaluator:
    """Plays the episodes of one request after the other.

    The environment is made for the first request, and again for the next one after it failed.

    Args:
        make_environment: starts it.
        parameters: of the environment.
        seed: of its episodes, where they can have one, and of what policies draw.
        lent: if the environment belongs to the training, the behaviors that it has announced there, or will have before
            the first request. Then it is not closed.
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
        """The call of the user's code that is under way, where the environment is in this process."""
        environment = self._environment
        return environment.call if isinstance(environment, InProcessEnvironment) else None

    def describe(self) -> str:
        """Name the call that is under way, for messages."""
        assert isinstance(self._environment, InProcessEnvironment)
        return f"In the evaluation: {self._environment.describe()}"

    def start(self) -> None:
        """Start the environment, if it is not there.

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
            request: what is evaluated.
            stopped: asked after each step whether to give up.

        Returns:
            None if it was given up.

        Raises:
            SettingsError: the environment is not of agents like those in training.
            EnvironmentFaultError: it failed for good.
            PolicyDivergedError: the policy gives NaN.
        """
        self.start()
        environment = self._environment
        assert environment is not None

        def policy(behavior_id: BehaviorId, spec: BehaviorSpec, seed: int) -> Policy:
            actor = _fitting(request.actors, behavior_id.name, spec)
            return ActorPolicy(actor, seed=seed, deterministic=request.deterministic)

        if isinstance(environment, InProcessEnvironment):
            # The same episodes for each request.
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
        """End the environment and wait for its end."""
        environment, self._environment = self._environment, None
        if environment is not None and self._lent is None:
            environment.close()

    def kill(self) -> None:
        """End it at once and do not wait. For signal handlers: quick, and takes no lock."""
        if self._environment is not None and self._lent is None:
            self._environment.kill()


def _fitting(actors: Mapping[str, Actor], behavior: str, spec: BehaviorSpec) -> Actor:
    """Find the actor of a behavior.

    Raises:
        SettingsError: there is none, or it is of agents that see or do something else.
    """
    actor = actors.get(behavior)
    if actor is None:
        raise SettingsError(
            f"The evaluation's environment has the behavior {behavior!r}, which is not trained "
            f"(trained: {', '.join(actors)}). Leave it out with the env_args of the evaluation."
        )
    if actor.sees is not None:
        actor = copy.copy(actor)
        actor.sees = sensors_seen(actor.spec, spec)  # as the sensors are called here
    if found := "; ".join(mismatches(actor.spec, with_sensors(spec, actor.sees))):
        raise SettingsError(
            f"The policy of behavior {behavior!r} does not fit the agents of the evaluation's environment: {found}. "
            "Use env_args of the evaluation with which agents see and do the same as in training."
        )
    return actor


class InlineEvaluator:
    """An evaluator in this process, for which the run waits.

    Args:
        evaluator: plays.
        stop: of the run; a request ends the evaluation without a result.
        calls: of the user's code, by the run's threads.
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
        """Evaluate. There is no outcome if that takes too long."""
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
        """As for ``EvaluatorProcess``."""
        outcome, self._outcome = self._outcome, None
        return outcome

    def close(self, *, wait: bool) -> None:  # noqa: ARG002
        """End its environment."""
        with self._calls.outside(self._evaluator):
            self._evaluator.close()


@contextlib.contextmanager
def generators_untouched() -> Iterator[None]:
    """Restore the global random generators, which a Python environment may use, when this ends."""
    states = torch.get_rng_state(), np.random.get_state(), random.getstate()
    try:
        yield
    finally:
        torch.set_rng_state(states[0])
        np.random.set_state(states[1])
        random.setstate(states[2])


class EvaluatorProcess:
    """An evaluator in another process; one request at a time.

    Attributes:
        is_ready: it has reported that its environment has started, or has failed to.
    """

    def __init__(self, evaluator: Evaluator) -> None:
        self.is_ready = False
        self._process = ChildProcess(
            run_evaluator, evaluator, "evaluation", title="process of the evaluation", log_as="The evaluation"
        )
        self.kill = self._process.kill

    @property
    def is_alive(self) -> bool:
        """Whether it can still evaluate."""
        return self._process.pid is not None

    def begin(self, request: Request) -> None:
        """Start an evaluation, whose outcome ``poll`` returns."""
        self._process.post(REQUEST, request)

    def poll(self, timeout_s: float) -> EvaluationResult | Exception | None:
        """The result, or the error if there is none; None if there is no outcome after ``timeout_s`` seconds."""
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
        """End it. With ``wait`` its environment is closed properly."""
        self._process.end(_CLOSE_GRACE_S if wait else 0.0)


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
            pipe.post(kind, do())
        except Exception as error:
            pipe.post(messages.FAULT, messages.portable(error))

    with contextlib.suppress(EOFError, OSError):  # the run is gone
        answer(messages.CONNECTED, evaluator.start)
        while (message := messages.read(connection))[0] != messages.END:
            answer(RESULT, partial(evaluator.evaluate, message[1]))
    evaluator.close()
