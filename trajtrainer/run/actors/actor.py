"""An actor: environments, a collector, and the policies that act. The same class is used wherever the actor runs.

::

    synchronize   carries out orders: newer weights, opponents, allowances, resets
    collector     steps the environments once; finished steps are handed over in larger chunks
    run           alternates between the two until a limit is reached, and then waits for orders

An actor in the learner's loop does not use ``run``: that loop alternates between ``synchronize`` and ``collector``.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import groupby
from time import perf_counter
from typing import TypeVar

from trajtrainer.core.errors import SettingsError
from trajtrainer.core.queues import EpisodesAborted
from trajtrainer.core.spec import BehaviorId
from trajtrainer.core.timers import Timers
from trajtrainer.core.version import __version__
from trajtrainer.envs.protocol import Environment, connect
from trajtrainer.experience.agent_processor import AgentProcessor
from trajtrainer.experience.opponents import OpponentTracker
from trajtrainer.experience.rows import RowPool
from trajtrainer.experience.trajectory import TrajectoryBatch
from trajtrainer.run.actors import messages
from trajtrainer.run.actors.collector import CollectedBehavior, Collector, Outbox, Sides

# Maximum time to wait for an environment: orders must be noticed even if the environments send nothing.
_WAIT_S = 0.25
# Hand over finished steps at least this often, even if there are only a few, so that slow environments show progress.
_SHIP_S = 0.5
# Send a report at least this often while collecting, so that the learner knows that this actor is alive.
_SIGN_OF_LIFE_S = 1.0

_STEPPING, _ACTING, _COLLECTING = "env_wait", "TorchPolicy.evaluate", "env_step"
_WAITING, _SYNCHRONIZING = "actor_wait", "actor_synchronize"
_KINDS = {name: name for name in (_STEPPING, _ACTING, _COLLECTING, _WAITING, _SYNCHRONIZING)}

Answer = TypeVar("Answer", messages.StartActing, messages.Assignment)


@dataclass(slots=True)
class _PacedBehavior:
    """A behavior that an actor collects experience for, with its limits."""

    order: messages.StartActing
    collected: CollectedBehavior
    outbox: Outbox
    allowance: messages.Allowance
    is_paused: bool = False
    shipped_s: float = field(default_factory=perf_counter)
    reported_steps: int = 0  # opponent steps reported so far

    @property
    def may_collect(self) -> bool:
        limit, outbox = self.allowance, self.outbox
        return (
            not self.is_paused
            and outbox.rows < limit.rows
            and outbox.num_put < limit.steps
            and self.collected.tracker.num_steps < limit.opponent_steps
        )

    @property
    def should_pause(self) -> bool:
        return self.allowance.pauses and not self.is_paused and (self.outbox.is_needed or not self.may_collect)

    @property
    def new_opponent_steps(self) -> int:
        return 0 if self.collected.sides is None else self.collected.tracker.num_steps - self.reported_steps

    def is_due(self, *, stops: bool) -> bool:
        """Return whether to hand over finished steps now. ``stops`` is True if the actor is about to wait."""
        if self.allowance.pauses:
            return self.should_pause
        outbox = self.outbox
        if outbox.is_needed or outbox.num_steps + self.new_opponent_steps >= self.order.ship_steps:
            return True
        return perf_counter() - self.shipped_s > _SHIP_S or (stops and outbox.num_steps > 0)


class ActorLoop:
    """Collects experience in running environments, for the learner at the other end of ``channel``.

    Args:
        environment: the environment, already started.
        channel: the channel to the learner.
        timers: timers of the actor.
        before_answers: only if the learner runs in the same loop: hands over finished steps (see ``Collector``).

    Attributes:
        collector: collects from the environments.
        num_resets: number of resets that the learner has ordered.
    """

    def __init__(
        self,
        environment: Environment,
        channel: messages.Channel,
        timers: Timers,
        before_answers: Callable[[int], bool] | None = None,
    ) -> None:
        self.collector = Collector(environment, self._start_acting, timers, before_answers)
        self._environment = environment
        self._channel = channel
        self._timers = timers
        self._parts: dict[str, _PacedBehavior] = {}
        self._orders: deque[messages.Order] = deque()
        self._is_running = False
        self.num_resets = 0
        self._num_synchronized = 0
        self._has_shipped = False
        self._reported_s = 0.0

    @property
    def may_collect(self) -> bool:
        """True if the environments have been reset and no limit is reached."""
        if not self._is_running:
            return False
        for part in self._parts.values():  # noqa: SIM110  # faster; called for every message
            if not part.may_collect:
                return False
        return True

    def synchronize(self) -> None:
        """Carry out the orders that have arrived.

        Raises:
            ActorEndedError: one of the orders is ``End``.
        """
        self._orders.extend(self._channel.orders(wait=False))
        while self._orders:
            self._follow(self._orders.popleft())

    def hand_over(self) -> None:
        """Hand over the finished steps of each behavior for which this is due."""
        stops = not self.may_collect
        for part in self._parts.values():
            if part.is_due(stops=stops):
                with self._timers("hand_over"):
                    self._ship(part)

    def run(self) -> None:
        """Collect until the learner ends this actor or disappears.

        Raises:
            ActorEndedError: at the end, unless another error occurs.
            TrajtrainerError: the environments failed for good, or a policy has diverged.
        """
        self._channel.report(messages.Ready())
        while True:
            self.synchronize()
            if self.may_collect:
                self.collector.collect(_WAIT_S)
                self.hand_over()
            if self._has_shipped or perf_counter() - self._reported_s > _SIGN_OF_LIFE_S:
                self._has_shipped, self._reported_s = False, perf_counter()
                seconds = self._timers.seconds_by(_KINDS)
                progress = messages.Progress(
                    environment_steps=self.collector.num_messages,
                    collect_s=sum(seconds[kind] for kind in (_COLLECTING, _STEPPING, _ACTING)),
                    step_s=seconds[_STEPPING],
                    act_s=seconds[_ACTING],
                    wait_s=seconds[_WAITING],
                    synchronize_s=seconds[_SYNCHRONIZING],
                    synchronizations=self._num_synchronized,
                )
                self._channel.report(progress)
            if not self.may_collect:
                with self._timers(_WAITING):
                    self._orders.extend(self._channel.orders(wait=True))

    def _follow(self, order: messages.Order) -> None:
        match order:
            case messages.End():
                raise messages.ActorEndedError
            case messages.Reset(parameters):
                self._environment.reset(parameters)
                self._is_running = True
                self.num_resets += 1
            case messages.SetParameters(parameters):
                self._environment.set_parameters(parameters)
            case messages.Allowance(behavior):
                part = self._parts[behavior]
                part.allowance, part.is_paused = order, False
                if part.should_pause:
                    self._ship(part)
            case messages.LoadWeights(behavior, version):
                part = self._parts[behavior]
                policy = part.collected.policy
                # Hand over finished steps before a newer version makes them stale. If the version is the same, only the
                # normalizers have changed.
                if part.outbox.num_steps and version != policy.version:
                    self._ship(part)
                with self._timers(_SYNCHRONIZING):
                    self._channel.load(order, policy)
                    self._num_synchronized += 1
                self._channel.report(messages.Synchronized(behavior))
            case messages.Assignment(behavior):
                sides = self._parts[behavior].collected.sides
                assert sides is not None
                sides.apply(order)
            case messages.StartActing():
                raise AssertionError("StartActing arrives only as the answer to NewBehavior")

    def _await(self, kind: type[Answer], behavior: str) -> Answer:
        """Wait for an order of this kind for a behavior. Other orders except ``End`` are queued."""
        while True:
            orders = self._channel.orders(wait=True)
            for number, order in enumerate(orders):
                if isinstance(order, messages.End):
                    raise messages.ActorEndedError
                if isinstance(order, kind) and order.behavior == behavior:
                    self._orders.extend(orders[number + 1 :])
                    return order
                self._orders.append(order)

    def _start_acting(self, found: messages.NewBehavior) -> CollectedBehavior:
        """Ask the learner how to act for a new behavior."""
        self._channel.report(found)
        order = self._await(messages.StartActing, found.behavior_id.name)
        settings, memory = order.settings, order.settings.network_settings.memory
        policy, reporter = self._channel.begin(order, found)
        outbox = Outbox(1 if memory is None else memory.sequence_length)
        pool = RowPool(found.spec, found.obs_dtypes, memory_size=policy.memory_size, groups=order.groups)
        sides = None
        if order.self_play:
            assert settings.self_play is not None
            sides = Sides(settings.self_play, policy, self._ask_for_sides)
        collected = CollectedBehavior(
            spec=found.spec,
            pool=pool,
            processor=AgentProcessor(pool, settings.time_horizon),
            tracker=OpponentTracker(settings.time_horizon, policy.memory_size),
            policy=policy,
            trajectories=outbox,
            reporter=reporter,
            learns=order.learns,
            sides=sides,
        )
        self._parts[order.behavior] = _PacedBehavior(order, collected, outbox, order.allowance)
        return collected

    def _ask_for_sides(self, behavior_id: BehaviorId) -> messages.Assignment:
        name = behavior_id.name
        self._channel.report(messages.NewTeam(behavior_id))
        while True:
            assignment = self._await(messages.Assignment, name)
            if assignment.learning == behavior_id.team or behavior_id.full in assignment.opponents:
                break  # otherwise, it was sent before the learner knew about the team
        # Earlier assignments in the queue are out of date.
        kept = [one for one in self._orders if not (isinstance(one, messages.Assignment) and one.behavior == name)]
        self._orders = deque(kept)
        return assignment

    def _ship(self, part: _PacedBehavior) -> None:
        """Send the statistics, and then hand over all finished steps in order."""
        part.shipped_s = perf_counter()
        pauses, name, sides = part.should_pause, part.order.behavior, part.collected.sides
        steps = part.new_opponent_steps
        part.reported_steps += steps
        statistics = self._channel.statistics(name)
        matches = () if sides is None else sides.take_matches()
        if statistics or matches or steps:
            self._channel.report(messages.StatsReport(name, statistics, matches, steps))
        for is_aborted, group in groupby(part.outbox.drain(), lambda item: isinstance(item, EpisodesAborted)):
            if is_aborted:
                for item in group:
                    assert isinstance(item, EpisodesAborted)
                    assert item.worker is not None
                    self._channel.report(messages.Aborted(name, item.worker))
            else:
                batches = [item for item in group if isinstance(item, TrajectoryBatch)]
                self._channel.hand_over(part.order, part.collected.pool, batches, part.outbox.rows_of(batches))
            self._has_shipped = True
        if pauses:
            part.is_paused = True
            self._channel.report(messages.Paused(name))


class Host:
    """Starts an actor's environments and runs the actor, in its own thread, in its own process or on another node.

    Players may be launched before the actor runs, so that they load while its process imports torch.
    """

    def __init__(self, task: messages.ActorTask) -> None:
        self._environment: Environment | None = None
        self._task = task
        self._error: Exception | None = None
        self._is_launched = False

    def launch(self) -> None:
        """Launch the players, or make the Python environments. An error is raised by ``run``."""
        self._is_launched = True
        try:
            self._bind()
            self._environment = self._task.make_environment()
        except Exception as error:
            self._error = error

    def run(self, channel: messages.Channel) -> None:
        """Run until the learner ends this actor or disappears. Launches the environments first, if nobody has.

        Raises:
            SettingsError: this machine lacks some of the cores assigned to the actor.
            TrajtrainerError: the environments cannot be started or failed for good, or a policy has diverged.
        """
        with contextlib.suppress(messages.ActorEndedError):
            if not self._is_launched:
                channel.report(messages.Hello(__version__))
                self.launch()
            if self._error is not None:
                raise self._error
            assert self._environment is not None
            connect(self._environment)
            ActorLoop(self._environment, channel, Timers()).run()

    def _bind(self) -> None:
        """Bind the calling thread, and all threads and processes that it starts later, to the actor's cores."""
        cores = self._task.cores
        if sys.platform == "linux" and cores is not None:
            with contextlib.suppress(OSError):  # no such core: the check below reports it
                os.sched_setaffinity(0, cores)
            missing = sorted(set(cores) - os.sched_getaffinity(0))
            if missing:
                raise SettingsError(
                    f"actors.cpu_affinity gives actor {self._task.number} the cores {list(cores)}, but its machine "
                    f"does not have the cores {missing}, or does not let the actor use them."
                )

    def kill(self) -> None:
        """Kill the environments. Can be called from any thread."""
        environment = self._environment  # local copy: the actor's thread may be closing it
        if environment is not None:
            environment.kill()

    def close(self) -> None:
        """Close the environments and wait until they are gone."""
        environment, self._environment = self._environment, None
        if environment is not None:
            environment.close()
