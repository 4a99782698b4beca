"""The transport to an actor in the learner's loop. Messages are function calls, and rows and policies are shared."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from trajtrainer.core.spec import BehaviorSpec
from trajtrainer.core.stats import StatsReporter, StatsSummary
from trajtrainer.core.timers import Timers
from trajtrainer.envs.protocol import Environment
from trajtrainer.experience.rows import RowPool
from trajtrainer.experience.source import RowsChunk
from trajtrainer.experience.trajectory import TrajectoryBatch
from trajtrainer.learning.algos.acting import ActorPolicy
from trajtrainer.run.actors import messages
from trajtrainer.run.actors.actor import ActorLoop


class InlineTransport:
    """Both ends of the connection: the learner's ``Transport`` and the actor's ``Channel``.

    Reports are handled synchronously, so an order that responds to a report is available when the actor waits for it.

    Args:
        make_environment: creates the environment when the actor is started.
        timers: timers of the run.
    """

    runs_meanwhile = False
    present: Sequence[int] = ()  # there is no separate process, thread or machine

    def __init__(self, make_environment: Callable[[], Environment], timers: Timers) -> None:
        self.waited_s = 0.0
        self._make_environment = make_environment
        self._timers = timers
        self._environment: Environment | None = None
        self._actor: ActorLoop | None = None
        self._is_connected = False
        self._progress = messages.Progress()
        self._handle: messages.ReportHandler = lambda _number, _report: None
        self._orders: deque[messages.Order] = deque()
        self._behaviors: dict[str, messages.LearnerEnd] = {}
        self._has_progress = threading.Event()

    # The actor's end.

    def orders(self, *, wait: bool) -> Sequence[messages.Order]:  # noqa: ARG002
        if not self._orders:
            return ()
        found = list(self._orders)
        self._orders.clear()
        return found

    def report(self, report: messages.Report) -> None:
        self._handle(0, report)

    def begin(self, order: messages.StartActing, found: messages.NewBehavior) -> tuple[ActorPolicy, StatsReporter]:  # noqa: ARG002
        behavior = self._behaviors[order.behavior]
        return behavior.policy, behavior.reporter

    def hand_over(
        self, order: messages.StartActing, pool: RowPool, batches: Sequence[TrajectoryBatch], rows: int
    ) -> None:
        chunk = RowsChunk(pool, batches, rows, sum(batch.num_steps for batch in batches))
        self._behaviors[order.behavior].add_experience(0, chunk)

    def statistics(self, behavior: str) -> Mapping[str, StatsSummary]:  # noqa: ARG002
        return {}

    def load(self, order: messages.LoadWeights, policy: ActorPolicy) -> None: ...

    def _before_answers(self, num_messages: int) -> bool:
        """Let the learner handle the messages before they are answered, because it may update the policy or reset."""
        actor = self._actor
        assert actor is not None
        actor.hand_over()
        num_resets = actor.num_resets
        self._progress.environment_steps += num_messages
        self._handle(0, self._progress)
        actor.synchronize()
        return actor.num_resets == num_resets

    # The learner's end.

    def __len__(self) -> int:
        return 1

    @property
    def shared(self) -> tuple[Environment, Mapping[str, BehaviorSpec]] | None:
        if self._environment is None or self._actor is None:
            return None
        return self._environment, self._actor.collector.specs

    def add(self, behavior: messages.LearnerEnd) -> None:
        self._behaviors[behavior.name] = behavior

    def start(self, number: int) -> None:  # noqa: ARG002
        self._environment = self._make_environment()
        self._actor = ActorLoop(self._environment, self, self._timers, self._before_answers)

    def post(self, number: int, order: messages.Order) -> None:  # noqa: ARG002
        self._orders.append(order)

    def publish(self, number: int, behavior: str, version: int, weights: Callable[[], messages.Buffer]) -> None:  # noqa: ARG002
        # The actor uses the learner's policy object, which already has the weights.
        self._handle(number, messages.Synchronized(behavior))

    def poll(self, timeout_s: float | None, handle: messages.ReportHandler) -> int:
        """Let the actor collect once. If it has reached a limit, wait for the trainer's thread instead."""
        actor, self._handle = self._actor, handle
        assert actor is not None
        if not self._is_connected:
            self._is_connected = True
            handle(0, messages.Ready())
            return 1
        actor.synchronize()
        if not actor.may_collect:
            # Only a trainer in its own thread can raise the limit. It may be waiting for more experience, which will
            # not arrive, so ask it to use the experience it has.
            begin_s = time.monotonic()
            for behavior in self._behaviors.values():
                if behavior.source is not None:
                    behavior.source.request_drain()
            with self._timers("trainer_wait"):
                self._has_progress.wait(timeout_s)
            self._has_progress.clear()
            self.waited_s += time.monotonic() - begin_s
            return 0
        return actor.collector.collect(timeout_s)

    def wake(self) -> None:
        self._has_progress.set()

    def drop(self, number: int) -> None:  # noqa: ARG002
        self.kill()

    def close(self) -> None:
        if self._environment is not None:
            self._environment.close()

    def kill(self) -> None:
        if self._environment is not None:
            self._environment.kill()
