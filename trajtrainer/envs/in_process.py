"""Python environments that are stepped sequentially in the collector's process."""

import contextlib
import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from trajtrainer.core.errors import InvalidDataError, TrajtrainerError, UnsupportedError
from trajtrainer.core.numeric import single_numbers
from trajtrainer.core.spec import BehaviorSpec
from trajtrainer.core.steps import ActionBatch, EnvironmentEvent, FirstEnds, FloatArray, agent_ids
from trajtrainer.envs.filming import TakeFrame
from trajtrainer.envs.protocol import Environment, Parameters
from trajtrainer.envs.unity.gate import Gate
from trajtrainer.envs.user_code import blame, is_our_bug

_Actions = Mapping[str, ActionBatch]
# Maximum number of characters of an invalid value in a message.
_LONGEST = 200


def first_seeded(seed: int) -> Iterator[int | None]:
    """Yield the seed for the first reset, then None, because later resets continue with the same random generators."""
    return itertools.chain([seed], itertools.repeat(None))


def mismatch(name: str, call: str, found: object, expected: str) -> InvalidDataError:
    """Return the error for an environment whose call returned a value that does not match its interface."""
    shown = repr(found)
    shown = shown if len(shown) <= _LONGEST else f"{shown[:_LONGEST]}..."
    return InvalidDataError(f"The {call} of the environment {name} returned {shown}, expected {expected}.")


class InProcessEnvironment(ABC):
    """An ``Environment`` whose workers are stepped inside ``wait``, in the order of their numbers.

    The fixed order makes a seeded run reproducible with any number of workers. An exception from the environment ends
    the run with an ``EnvironmentFaultError``, which has the original exception as its cause.

    Args:
        name: name of the environment, for messages.
        num_workers: number of workers.
        num_copies: number of environments that are stepped sequentially; None for one per worker.

    Attributes:
        call: the current call into the user's code, as a tuple (name of the call, number of the copy); None between
            calls. Each call gets a new tuple, so that another thread can recognize a call that never returns.
    """

    def __init__(self, name: str, num_workers: int, num_copies: int | None = None) -> None:
        self.name = name
        self.call: tuple[str, int] | None = None
        self._num_workers = num_workers
        self._num_copies = num_workers if num_copies is None else num_copies
        # Maps each worker that is due to its actions, or to None for a reset.
        self._due: dict[int, _Actions | None] = {}
        self._specs: dict[str, BehaviorSpec] = {}
        self._gate = Gate(f"The environment {name}", "in its observations and rewards")
        self._first_ends = FirstEnds()

    @property
    def num_workers(self) -> int:
        """The number of workers."""
        return self._num_workers

    def seed_episodes(self, first: int, step: int = 1) -> bool:  # noqa: ARG002
        """Give each episode of each copy its own seed. Return False if the environment takes no seeds.

        With two copies, the episodes of the first get the seeds ``first``, ``first + 2 * step``, ..., and those of the
        second get ``first + step``, ``first + 3 * step``, ....
        """
        return False

    def film(self, take: TakeFrame) -> None:  # noqa: ARG002
        """Pass a frame to ``take`` after each reset and step.

        Raises:
            UnsupportedError: the environment does not render.
        """
        raise UnsupportedError(
            f"The environment {self.name} cannot be filmed: it does not render. Gymnasium and PettingZoo environments "
            'with render_mode="rgb_array" can be filmed, and so can the built-in simulations.'
        )

    @abstractmethod
    def set_parameters(self, parameters: Parameters) -> None: ...

    @abstractmethod
    def _reset_worker(self, worker: int) -> EnvironmentEvent:
        """Reset a worker, and return the event with its first agents."""

    @abstractmethod
    def _step_worker(self, worker: int, actions: _Actions) -> EnvironmentEvent:
        """Step a worker with the actions of the agents that asked for a decision."""

    @abstractmethod
    def _close(self) -> None:
        """Close the environments."""

    def reset(self, parameters: Parameters) -> None:
        self.set_parameters(parameters)
        self._due = dict.fromkeys(range(self._num_workers))

    def wait(self, timeout_s: float | None = None) -> list[EnvironmentEvent]:  # noqa: ARG002
        """Reset or step all workers that are due, and return their events. ``timeout_s`` is ignored."""
        events = []
        for worker in sorted(self._due):
            actions = self._due.pop(worker)
            self.call = ("reset", worker) if actions is None else ("step", worker)
            try:
                event = self._reset_worker(worker) if actions is None else self._step_worker(worker, actions)
                self._specs.update(event.new_specs)
                for behavior_id, batch in event.steps.items():
                    self._gate.check(behavior_id, self._specs[behavior_id], batch)
                    event.steps[behavior_id] = self._first_ends.of(behavior_id, batch)
                events.append(event)
            except TrajtrainerError:
                raise
            except (Exception, SystemExit) as error:
                if isinstance(error, SystemExit) and is_our_bug(error):
                    raise  # Our own signal handler raised it, to end the user's program.
                assert self.call is not None
                doing, number = self.call
                raise blame(f"The environment {self._named(number)} failed in its {doing}", error) from error
        self.call = None
        return events

    def describe(self) -> str:
        """Describe the call in progress, for messages."""
        doing, number = self.call or ("code", 0)
        return f"The {doing} of the environment {self._named(number)}"

    def _mismatch(self, call: str, found: object, expected: str) -> InvalidDataError:
        return mismatch(self.name, call, found, expected)

    def _rewards(self, found: Sequence[Any], expected: str = "a number for each reward") -> FloatArray:
        """Convert the rewards of a step to f32.

        Raises:
            InvalidDataError: a reward is not a number.
        """
        try:
            return single_numbers(found)
        except (TypeError, ValueError) as error:
            raise self._mismatch("step()", found, expected) from error

    def _close_each(self, envs: Sequence[Any]) -> None:
        for copy, env in enumerate(envs):
            self.call = ("close", copy)
            with contextlib.suppress(Exception):
                env.close()

    def _named(self, number: int) -> str:
        return f"{self.name} (copy {number})" if self._num_copies > 1 else self.name

    def send(self, worker: int, actions: _Actions) -> None:
        if not 0 <= worker < self._num_workers:
            raise ValueError(f"There is no worker {worker}, only 0 to {self._num_workers - 1}.")
        self._due[worker] = actions

    def close(self) -> None:
        """Close all environments, ignoring those that fail to close."""
        self._due = {}
        self._close()
        self.call = None

    def kill(self) -> None:  # noqa: B027
        """Do nothing, because there is no process to kill."""


class SideBySide(InProcessEnvironment):
    """Several environments as one. Each has a single worker, and its ``wait`` returns an event immediately.

    Args:
        name: name of the environment, for messages.
        environments: at least one environment.
    """

    def __init__(self, name: str, environments: Sequence[Environment]) -> None:
        super().__init__(name, len(environments))
        self._environments = list(environments)

    def seed_episodes(self, first: int, step: int = 1) -> bool:
        every = step * len(self._environments)
        seeded = [
            isinstance(environment, InProcessEnvironment) and environment.seed_episodes(first + copy * step, every)
            for copy, environment in enumerate(self._environments)
        ]
        return all(seeded)

    def set_parameters(self, parameters: Parameters) -> None:
        for environment in self._environments:
            environment.set_parameters(parameters)

    def _reset_worker(self, worker: int) -> EnvironmentEvent:
        self._environments[worker].reset({})
        return self._next(worker)

    def _step_worker(self, worker: int, actions: _Actions) -> EnvironmentEvent:
        self._environments[worker].send(0, actions)
        return self._next(worker)

    def _next(self, worker: int) -> EnvironmentEvent:
        (event,) = self._environments[worker].wait()
        event.worker = worker
        for batch in event.steps.values():
            batch.agent = agent_ids(worker, batch.agent)
        return event

    def _close(self) -> None:
        for copy, environment in enumerate(self._environments):
            self.call = ("close", copy)
            environment.close()
