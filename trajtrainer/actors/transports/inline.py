"""An actor in the learner's own loop: messages are calls, chunks are rows of the pool, the policy is the learner's."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from trajtrainer.actors.actor import Actor
from trajtrainer.actors.messages import (
    Buffer,
    Connected,
    Counters,
    Experience,
    Learn,
    NewBehavior,
    Order,
    Progress,
    Report,
    Synchronized,
    Take,
    Weights,
)
from trajtrainer.algos.acting import Policy
from trajtrainer.core.spec import BehaviorSpec
from trajtrainer.core.stats import StatsReporter, StatsSummary
from trajtrainer.core.timers import Timers
from trajtrainer.data.packed_layout import PackedLayout
from trajtrainer.data.rows import RowPool
from trajtrainer.data.source import Chunk, ExperienceSource, RowsChunk
from trajtrainer.data.trajectory import TrajectoryBatch
from trajtrainer.envs.protocol import Environment


class _InlineChannel:
    """See ``Channel``. Reports are taken in at once, so that a question is answered before the actor waits for it."""

    def __init__(self) -> None:
        self.incoming: deque[Order] = deque()
        self.take: Take = _take_nothing
        self.behaviors: dict[str, tuple[Policy, StatsReporter]] = {}

    def orders(self, *, wait: bool) -> Sequence[Order]:  # noqa: ARG002
        """See ``Channel``."""
        if not self.incoming:
            return ()
        found = list(self.incoming)
        self.incoming.clear()
        return found

    def report(self, report: Report) -> None:
        """See ``Channel``."""
        self.take(0, report)

    def begin(self, order: Learn, found: NewBehavior) -> tuple[Policy, StatsReporter]:  # noqa: ARG002
        """See ``Channel``."""
        return self.behaviors[order.behavior]

    def hand_over(self, order: Learn, pool: RowPool, batches: Sequence[TrajectoryBatch], rows: int) -> None:
        """See ``Channel``."""
        self.report(
            Experience(order.behavior, rows, RowsChunk(pool, batches, rows, sum(batch.num_steps for batch in batches)))
        )

    def statistics(self, behavior: str) -> Mapping[str, StatsSummary]:  # noqa: ARG002
        """See ``Channel``."""
        return {}

    def load(self, order: Weights, policy: Policy) -> None:
        """See ``Channel``: the policy has them."""


class InlineTransport:
    """See ``Transport``.

    Args:
        make_environment: starts the environments, when the actor is started.
        timers: of the run.

    Attributes:
        environment: of the actor; None before it is started.
    """

    runs_meanwhile = False

    def __init__(self, make_environment: Callable[[], Environment], timers: Timers) -> None:
        self.environment: Environment | None = None
        self.waited_s = 0.0
        self._make_environment = make_environment
        self._timers = timers
        self._channel = _InlineChannel()
        self._actor: Actor | None = None
        self._is_connected = self._is_closed = False
        self._counters = Counters()
        self._sources: list[ExperienceSource] = []
        self._news = threading.Event()

    def __len__(self) -> int:
        return 1

    @property
    def present(self) -> Sequence[int]:
        """See ``Transport``."""
        return [] if self._is_closed else [0]

    @property
    def shared(self) -> tuple[Environment, Mapping[str, BehaviorSpec]] | None:
        """See ``Transport``."""
        if self.environment is None or self._actor is None:
            return None
        return self.environment, self._actor.collector.specs

    def add(self, behavior: str, policy: Policy, reporter: StatsReporter, source: ExperienceSource | None) -> None:
        """See ``Transport``."""
        self._channel.behaviors[behavior] = policy, reporter
        if source is not None:
            self._sources.append(source)
            source.on_consumed = source.on_progress = self._news.set

    def start(self, number: int) -> None:  # noqa: ARG002
        """See ``Transport``."""
        self.environment = self._make_environment()
        self._actor = Actor(self.environment, self._channel, self._timers)

    def post(self, number: int, order: Order) -> None:  # noqa: ARG002
        """See ``Transport``."""
        self._channel.incoming.append(order)

    def publish(self, number: int, behavior: str, version: int, weights: Callable[[], Buffer]) -> None:  # noqa: ARG002
        """See ``Transport``."""
        self._channel.take(number, Synchronized(behavior))

    def chunk(self, number: int, report: Experience, layout: PackedLayout, first_worker: int) -> Chunk | None:  # noqa: ARG002
        """See ``Transport``."""
        chunk: Chunk = report.place
        return chunk

    def poll(self, timeout_s: float | None, take: Take) -> int:
        """See ``Transport``. Lets the actor make a step; where it is too far ahead, waits for the trainer's thread."""
        actor, self._channel.take = self._actor, take
        assert actor is not None
        if not self._is_connected:
            self._is_connected = True
            take(0, Connected())
            take(0, Progress(self._counters))  # once, as the pool has the same object
            return 1
        actor.synchronize()
        if not actor.may_collect:
            self._wait_for_learner(timeout_s)
            return 0
        before, counters = actor.collector.num_messages, self._counters
        actor.step(timeout_s)
        counters.environment_steps = actor.collector.num_messages
        return counters.environment_steps - before

    def _wait_for_learner(self, timeout_s: float | None) -> None:
        begin_s = time.monotonic()
        for source in self._sources:
            source.request_drain()
        with self._timers("trainer_wait"):
            self._news.wait(timeout_s)
        self._news.clear()
        self.waited_s += time.monotonic() - begin_s

    def drop(self, number: int) -> None:  # noqa: ARG002
        """See ``Transport``."""
        self.kill()

    def close(self) -> None:
        """See ``Transport``."""
        if self.environment is not None:
            self.environment.close()
        self._is_closed = True

    def kill(self) -> None:
        """See ``Transport``."""
        if self.environment is not None:
            self.environment.kill()


def _take_nothing(number: int, report: Report) -> None:
    raise AssertionError(f"nobody takes {report} of actor {number}")
