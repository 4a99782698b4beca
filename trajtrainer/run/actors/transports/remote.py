"""Base classes of transports to actors outside the learner's loop, which send experience and weights as bytes."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, pairwise
from queue import SimpleQueue
from typing import Any

import numpy as np

from trajtrainer.core.queues import PolicyUpdate
from trajtrainer.core.stats import StatsReporter, StatsSummary
from trajtrainer.core.steps import ActionBatch, BoolArray, FloatArray, ObservationArray
from trajtrainer.core.timers import Timers
from trajtrainer.envs.workers import messages
from trajtrainer.experience.rows import RowPool
from trajtrainer.experience.source import Counts, PackedLayout
from trajtrainer.experience.trajectory import TrajectoryBatch, gather, release
from trajtrainer.learning.algos.acting import ActorPolicy
from trajtrainer.learning.nn.actor import Actor
from trajtrainer.learning.nn.distribution import ENV_CLIP
from trajtrainer.run.actors.actor import Host
from trajtrainer.run.actors.messages import (
    Buffer,
    End,
    Experience,
    LearnerEnd,
    LoadWeights,
    NewBehavior,
    Order,
    Report,
    ReportHandler,
    StartActing,
)
from trajtrainer.run.actors.weights import WeightsLayout


class NoisyPolicy(ActorPolicy):
    """Adds noise to a policy's actions. The reported probabilities do not include the noise.

    For continuous actions, ``noise`` is the standard deviation in the environment's units. For each discrete branch, it
    is the probability of replacing the action with a random one that the mask allows.
    """

    def __init__(
        self, actor: Actor, *, seed: int, deterministic: bool, noise: float, evenly_first: bool = False
    ) -> None:
        super().__init__(actor, seed=seed, deterministic=deterministic, evenly_first=evenly_first)
        head = actor.head
        self._noise = noise
        self._bound = 1.0 if head.tanh_squash else ENV_CLIP
        self._branches = tuple(accumulate(actor.spec.action_spec.discrete_branches, initial=0))
        self._draws = np.random.default_rng(seed)

    def act(self, obs: Sequence[ObservationArray], mask: BoolArray, memory: FloatArray) -> ActionBatch:
        actions = super().act(obs, mask, memory)
        continuous = actions.continuous
        if continuous.shape[1]:
            noise = self._draws.standard_normal(continuous.shape, np.float32) * np.float32(self._noise * self._bound)
            continuous = np.clip(continuous + noise, -self._bound, self._bound)
        discrete = actions.discrete.copy()
        for branch, (start, stop) in enumerate(pairwise(self._branches)):
            which = np.flatnonzero(self._draws.random(len(discrete)) < self._noise)
            # The index of the largest of several uniform random numbers is uniformly distributed.
            chances = np.where(mask[which, start:stop], -1.0, self._draws.random((len(which), stop - start)))
            discrete[which, branch] = chances.argmax(1)
        return replace(
            actions,
            continuous=continuous,
            env_continuous=continuous / np.float32(self._bound),
            discrete=discrete,
        )


@dataclass(frozen=True, slots=True)
class _Behavior:
    """The byte layouts and the statistics reporter of one behavior."""

    layout: PackedLayout
    weights: WeightsLayout
    reporter: StatsReporter


class RemoteChannel(ABC):
    """The actor's end. Another thread receives orders, so that the learner never waits for a busy actor.

    Attributes:
        incoming: queue of received orders. The ``place`` of ``LoadWeights`` contains the bytes.
    """

    def __init__(self) -> None:
        self.incoming: SimpleQueue[Order] = SimpleQueue()
        self._behaviors: dict[str, _Behavior] = {}

    @abstractmethod
    def report(self, report: Report) -> None: ...

    @abstractmethod
    def reserve(self, size: int) -> tuple[Buffer, Any]:
        """Reserve memory for experience. Returns the memory, and its location for the transport."""

    def orders(self, *, wait: bool) -> Sequence[Order]:
        found = [self.incoming.get()] if wait else []
        while not self.incoming.empty():
            found.append(self.incoming.get())
        if found and isinstance(found[-1], End):
            self.incoming.put(found[-1])  # put back, so that every later call returns it again
        return found

    def begin(self, order: StartActing, found: NewBehavior) -> tuple[ActorPolicy, StatsReporter]:
        make = partial(NoisyPolicy, noise=order.noise) if order.noise else ActorPolicy
        policy = make(
            order.network,
            seed=order.seed,
            deterministic=order.settings.network_settings.deterministic,
            evenly_first=order.evenly_first,
        )
        policy.version = order.version
        layout = PackedLayout(found.spec, found.obs_dtypes, memory_size=policy.memory_size, groups=order.groups)
        reporter = StatsReporter(order.behavior, [])
        self._behaviors[order.behavior] = _Behavior(layout, WeightsLayout(policy.actor.state_dict()), reporter)
        return policy, reporter

    def hand_over(self, order: StartActing, pool: RowPool, batches: Sequence[TrajectoryBatch], rows: int) -> None:
        """Copy the trajectories directly into memory that the transport reads."""
        layout = self._behaviors[order.behavior].layout
        counts = Counts(sum(batch.num_steps for batch in batches), sum(map(len, batches)))
        if pool.moments is None:
            buffer, place = self.reserve(layout.size(counts))
            packed = gather(pool, batches, layout.over(buffer, counts).steps)
        else:  # The size depends on the number of groupmates, which is only known after gathering.
            packed = gather(pool, batches)
            counts = Counts.of(packed)
            buffer, place = self.reserve(layout.size(counts))
        layout.write(packed, buffer)
        self.report(Experience(order.behavior, rows, (counts, place)))
        release(pool, batches)

    def statistics(self, behavior: str) -> Mapping[str, StatsSummary]:
        return self._behaviors[behavior].reporter.summaries()

    def load(self, order: LoadWeights, policy: ActorPolicy) -> None:
        weights = self._behaviors[order.behavior].weights.over(order.place)
        policy.load(PolicyUpdate(order.version, weights))


def run_host(
    host: Host, channel: RemoteChannel, post: Callable[..., None], send_logs: Callable[[], object] = lambda: None
) -> None:
    """Run an actor until it ends. ``post`` sends messages to the transport, ``send_logs`` the players' logs."""
    try:
        host.run(channel)
    except Exception as error:
        send_logs()
        with suppress(OSError):  # Report the error first, because closing may take seconds.
            post(messages.FAULT, messages.portable(error))
    finally:
        with suppress(Exception):
            host.close()
    send_logs()
    with suppress(OSError):
        post(messages.END)


class RemoteTransport(ABC):
    """The learner's end."""

    runs_meanwhile = True
    shared = None

    def __init__(self, timers: Timers) -> None:
        self.waited_s = 0.0
        self._timers = timers

    @abstractmethod
    def reports(self, timeout_s: float | None) -> Iterator[tuple[int, Report]]:
        """Wait for reports until the timeout, and return an iterator over (actor, report).

        Reports are read during the iteration, so no reports are returned for an actor that is dropped while iterating.
        The ``place`` of ``Experience`` is (counts, bytes, function that frees the bytes); the bytes remain valid after
        the actor has ended.
        """

    def add(self, behavior: LearnerEnd) -> None: ...  # noqa: B027  (remote actors make their own policy and reporter)

    def wake(self) -> None: ...  # noqa: B027  (the learner runs between two polls)

    def poll(self, timeout_s: float | None, handle: ReportHandler) -> int:
        num_reports = 0
        with self._timers("env_step") as step:
            step.part("env_wait")
            begin_s = time.monotonic()
            reports = self.reports(timeout_s)
            self.waited_s += time.monotonic() - begin_s
            step.part("record")
            for number, report in reports:
                handle(number, report)
                num_reports += 1
        return num_reports

    def read_while(self, is_open: Callable[[], object], grace_s: float) -> None:
        """Read messages while actors shut down, so that their logs are shown and no actor blocks on a full pipe."""
        deadline_s = time.monotonic() + grace_s
        while is_open() and (remaining_s := deadline_s - time.monotonic()) > 0:
            for _ in self.reports(remaining_s):
                pass
