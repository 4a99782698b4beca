"""Evaluates policies while they are being trained, in an environment started once (docs/guides/evaluation.md)."""

from __future__ import annotations

import contextlib
import copy
import logging
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import torch

from trajtrainer.core.errors import EnvironmentFaultError, SettingsError
from trajtrainer.core.seeds import derived_seeds, seed_global_generators
from trajtrainer.core.spec import BehaviorId, BehaviorSpec, sensors_seen, with_sensors
from trajtrainer.envs.in_process import InProcessEnvironment
from trajtrainer.envs.protocol import Environment, Parameters
from trajtrainer.envs.workers import messages
from trajtrainer.envs.workers.process import ChildProcess, begin_child
from trajtrainer.learning.algos.acting import ActorPolicy, Policy
from trajtrainer.learning.nn.actor import Actor
from trajtrainer.policies.play.loop import EpisodeCounter, PlayLoop
from trajtrainer.policies.play.result import EvaluationResult

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
        actors: of all behaviors of the environment, on the CPU; never changed.
    """

    behavior: str
    step: int
    episodes: int
    deterministic: bool
    max_decisions: int
    actors: Mapping[str, Actor]


class Evaluator:
    """Plays the episodes of one request after the other.

    The environment is made for the first request, and again for the next one after it failed.

    Args:
        make_environment: starts it.
        parameters: of the environment.
        seed: of its episodes, where they can have one, and of what policies draw.
        specs: behaviors that the environment has announced elsewhere, or will have before the first request.
    """

    def __init__(
        self,
        make_environment: Callable[[], Environment],
        parameters: Parameters,
        seed: int,
        specs: Mapping[str, BehaviorSpec] | None = None,
    ) -> None:
        self._make_environment = make_environment
        self._parameters = parameters
        self._seed = seed
        self._first_specs = {} if specs is None else specs
        self._specs: dict[str, BehaviorSpec] = {}
        self._environment: Environment | None = None

    @property
    def call(self) -> object:
        """The call of the user's code that is under way, where the environment is in this process."""
        environment = self._environment
        return environment.call if isinstance(environment, InProcessEnvironment) else None

    def describe(self) -> str:
        """Name the call that is under way, for messages."""
        environment = self._environment
        assert isinstance(environment, InProcessEnvironment)
        return f"In the evaluation: {environment.describe()}"

    def start(self) -> None:
        """Start the environment, if it is not there.

        Raises:
            TrajtrainerError: see ``make_environment``.
        """
        if self._environment is None:
            seed_global_generators(self._seed)
            self._environment = self._make_environment()
            self._specs = dict(self._first_specs)

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

        def make(behavior_id: BehaviorId, spec: BehaviorSpec, seed: int) -> Policy:
            actor = _fitting(request.actors, behavior_id.name, spec)
            return ActorPolicy(actor, seed=seed, deterministic=request.deterministic)

        if isinstance(environment, InProcessEnvironment):
            # The same episodes for each request.
            environment.seed_episodes(self._seed)
            seed_global_generators(self._seed)
        seed = derived_seeds(self._seed, f"{request.behavior} {request.step}")[0]
        try:
            counter = EpisodeCounter(
                environment.num_workers, make, request.episodes, seed=seed, max_decisions=request.max_decisions
            )
            loop = PlayLoop(environment, counter, specs=self._specs)
            loop.run(self._parameters, stopped)
        except EnvironmentFaultError:
            self.close()
            raise
        return counter.results(loop.seconds).get(request.behavior) if counter.is_over else None

    def close(self) -> None:
        """End the environment and wait for its end."""
        environment, self._environment = self._environment, None
        if environment is not None:
            environment.close()

    def kill(self) -> None:
        """End it at once and do not wait. For signal handlers: quick, and takes no lock."""
        if self._environment is not None:
            self._environment.kill()


def _fitting(actors: Mapping[str, Actor], behavior: str, spec: BehaviorSpec) -> Actor:
    """Find the actor of a behavior.

    Raises:
        SettingsError: there is none, or it is of agents that see or do something else.
    """

    def described(spec: BehaviorSpec) -> str:
        shapes, action = [tuple(sensor.shape) for sensor in spec.observation_specs], spec.action_spec
        return (
            f"the observations {shapes}, {action.continuous_size} continuous actions and the branches "
            f"{list(action.discrete_branches)}"
        )

    actor = actors.get(behavior)
    if actor is None:
        raise SettingsError(
            f"The evaluation's environment has the behavior {behavior!r}, which is not trained "
            f"(trained: {', '.join(actors)}). Leave it out with the env_args of the evaluation."
        )
    if actor.sees is not None:
        actor = copy.copy(actor)
        actor.sees = sensors_seen(actor.spec, spec)  # as the sensors are called here
    found, expected = described(with_sensors(spec, actor.sees)), described(actor.spec)
    if found != expected:
        raise SettingsError(
            f"In the evaluation's environment behavior {behavior!r} has {found}, in training {expected}. Use "
            "env_args of the evaluation with which agents see and do the same."
        )
    return actor


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
