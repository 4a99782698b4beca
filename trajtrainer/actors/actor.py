"""An actor: environments, a collector, and a copy of every policy it needs; the same in a thread, a process, a node.

It collects within its allowance, ships what it has finished, and waits for orders at its limit.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from time import perf_counter
from typing import TypeVar

import numpy as np
from torch import Tensor

from trajtrainer.actors.collector import ActingBehavior, Collector, NewBehavior
from trajtrainer.actors.messages import (
    Aborted,
    ActorEndedError,
    ActorTask,
    Allowance,
    Assignment,
    Channel,
    Connected,
    Counters,
    End,
    Experience,
    Found,
    Hello,
    Joined,
    Learn,
    Matches,
    OpponentSlot,
    Order,
    Paused,
    Progress,
    Reset,
    SetParameters,
    StatsReport,
    Synchronized,
    Weights,
)
from trajtrainer.actors.noisy_policy import NoisyPolicy
from trajtrainer.actors.weights import WeightsLayout
from trajtrainer.algos.acting import Acts, Policy
from trajtrainer.core.errors import SettingsError
from trajtrainer.core.queues import EpisodesAborted, PolicyQueue, PolicyUpdate, TrajectoryQueue
from trajtrainer.core.spec import BehaviorId
from trajtrainer.core.stats import StatsReporter, StatsSummary, StatsWriter
from trajtrainer.core.timers import Timers
from trajtrainer.core.version import __version__
from trajtrainer.data.agent_processor import AgentProcessor
from trajtrainer.data.opponents import OpponentTracker
from trajtrainer.data.packed_layout import Counts, PackedLayout
from trajtrainer.data.rows import RowPool
from trajtrainer.data.trajectory import TrajectoryBatch, gather, release
from trajtrainer.envs.protocol import Environment
from trajtrainer.settings.trainer import SelfPlaySettings

# Upper bound of one wait for messages, so that orders are seen while an environment is silent.
_WAIT_S = 0.25
# So often what is finished is shipped, however little it is: progress is shown, and a slow environment's steps count.
_SHIP_S = 0.5
# The learner hears at least this often from an actor that collects.
_SIGN_OF_LIFE_S = 1.0

_STEPPING, _ACTING, _COLLECTING, _WAITING, _SYNCHRONIZING = (
    "env_wait",
    "TorchPolicy.evaluate",
    "env_step",
    "actor_wait",
    "actor_synchronize",
)
_KINDS = {name: name for name in (_STEPPING, _ACTING, _COLLECTING, _WAITING, _SYNCHRONIZING)}

Answer = TypeVar("Answer", Learn, Assignment)


class Outbox(TrajectoryQueue[TrajectoryBatch]):
    """Finished trajectories on their way to the learner.

    Attributes:
        rows: of all trajectories that ever came, as the learner's buffer counts them.
        num_episodes: that ended with them.
    """

    def __init__(self, sequence_length: int) -> None:
        super().__init__()
        self.rows = self.num_episodes = 0
        self._length = sequence_length

    def put(self, item: TrajectoryBatch, num_steps: int = 0) -> None:
        """See ``TrajectoryQueue``."""
        self.rows += rows_of(item.lengths, self._length)
        self.num_episodes += int(np.count_nonzero(item.ended))
        super().put(item, num_steps)


def _bind(task: ActorTask) -> None:
    """Bind this thread, and the threads and processes that it starts, to the cores of an actor."""
    if sys.platform == "linux" and task.cores is not None:
        with contextlib.suppress(OSError):  # none of them is there
            os.sched_setaffinity(0, task.cores)
        missing = sorted(set(task.cores) - os.sched_getaffinity(0))
        if missing:
            raise SettingsError(
                f"actors.cpu_affinity gives actor {task.number} the cores {list(task.cores)}, but {missing} are not "
                "there where it runs, or not for it."
            )


def rows_of(lengths: np.ndarray[tuple[int], np.dtype[np.int32]], sequence_length: int) -> int:
    """Return the rows of trajectories of these lengths, each of whole sequences."""
    return int((-(-lengths // sequence_length)).sum()) * sequence_length


class _StatsBuffer(StatsWriter):
    """Keeps statistics until they are reported."""

    def __init__(self) -> None:
        self.values: Mapping[str, StatsSummary] = {}

    def write_stats(self, category: str, values: Mapping[str, StatsSummary], step: int) -> None:  # noqa: ARG002
        """See ``StatsWriter``."""
        self.values = values


class _Sides:
    """What an actor knows of self-play: see ``collector.Sides``. Who plays whom the learner tells it."""

    def __init__(self, actor: Actor, settings: SelfPlaySettings, tracker: OpponentTracker) -> None:
        self.settings = settings
        self.tracker = tracker
        self.matches: list[Matches] = []
        self.told_steps = 0  # of the tracker's
        self._actor = actor
        self._cast: Assignment | None = None
        self._twins: dict[str, tuple[int, Policy]] = {}  # behaviour id -> seed, who draws by it

    def learns(self, team: int) -> bool:
        """See ``Sides``."""
        return self._cast is not None and team == self._cast.learning

    def join(self, behavior_id: BehaviorId) -> None:
        """See ``Sides``."""
        self._actor.join(behavior_id)

    def count(self, trajectories: TrajectoryBatch, results: Sequence[float]) -> None:
        """See ``Sides``."""
        assert self._cast is not None
        ended = int(np.count_nonzero(trajectories.ended))
        self.matches.append(Matches(self._cast.number, ended, trajectories.num_steps, results))

    def take(self, cast: Assignment, policy: Policy, team_policies: dict[str, Acts]) -> None:
        """Let teams play as ``cast`` says."""
        self._cast = cast
        team_policies.clear()
        for name, slot in cast.slots.items():
            team_policies[name] = self._in_slot(name, slot, policy)

    def _in_slot(self, name: str, slot: OpponentSlot, policy: Policy) -> Acts:
        if slot.acts is not None:
            return slot.acts
        if name not in self._twins or self._twins[name][0] != slot.seed:
            self._twins[name] = slot.seed, policy.twin(seed=slot.seed)
        acts = self._twins[name][1]
        acts.load(PolicyUpdate(0, slot.weights))
        return acts


@dataclass(slots=True)
class _Part:
    """One behaviour as an actor has it."""

    order: Learn
    acting: ActingBehavior
    outbox: Outbox
    layout: PackedLayout
    weights: WeightsLayout
    stats: _StatsBuffer
    sides: _Sides | None
    allowance: Allowance
    is_paused: bool = False
    shipped_s: float = field(default_factory=perf_counter)

    @property
    def may_collect(self) -> bool:
        """Whether no limit is reached."""
        limit = self.allowance
        opponent_steps = 0 if self.sides is None else self.sides.tracker.num_steps
        return (
            not self.is_paused
            and self.outbox.rows < limit.rows
            and self.outbox.num_put < limit.steps
            and opponent_steps < limit.opponent_steps
        )

    @property
    def should_pause(self) -> bool:
        return self.allowance.pauses and not self.is_paused and (self.outbox.is_needed or not self.may_collect)

    def is_due(self) -> bool:
        """Return whether what is finished should be shipped now."""
        if self.allowance.pauses:
            return self.should_pause
        waiting = self.outbox.num_steps
        if self.outbox.is_needed or waiting >= self.order.ship_steps or (waiting and not self.may_collect):
            return True
        return perf_counter() - self.shipped_s > _SHIP_S


class Actor:
    """Collects for a learner at the other end of a channel.

    Args:
        task: see there.
        channel: to the learner.

    Attributes:
        environment: None before it is there.
    """

    def __init__(self, task: ActorTask, channel: Channel) -> None:
        self.environment: Environment | None = None
        self._task = task
        self._channel = channel
        self._timers = Timers()
        self._parts: dict[str, _Part] = {}
        self._collector: Collector | None = None
        self._orders: deque[Order] = deque()
        self._is_running = False
        self._num_synchronized = 0
        self._done = 0  # messages and steps that were told
        self._told_s = 0.0  # when

    def run(self) -> None:
        """Start the environments and collect until the learner says that this is the end, or is gone.

        Raises:
            SettingsError: its cores are not there.
            TrajtrainerError: the environments cannot be started or have failed for good, or a policy has diverged.
        """
        with contextlib.suppress(ActorEndedError):
            self._channel.report(Hello(__version__))
            _bind(self._task)
            self.environment = self._task.make_environment()
            self._collector = Collector(self.environment, self._make, self._timers)
            self._channel.report(Connected(self.environment.num_workers))
            while True:
                self._obey()
                self._collect(self._collector)

    def close(self) -> None:
        """End the environments and wait for their end."""
        environment, self.environment = self.environment, None
        if environment is not None:
            environment.close()

    def join(self, behavior_id: BehaviorId) -> None:
        """Ask who plays whom now that a team has appeared."""
        self._channel.report(Joined(behavior_id))
        self._cast(self._await(Assignment, behavior_id.name))

    def _obey(self) -> None:
        """Do what was ordered, and wait for orders while there is nothing else to do."""
        self._take_orders()
        while not self._may_collect():
            self._report_progress()
            with self._timers(_WAITING):
                self._orders.extend(self._channel.orders(wait=True))
            self._take_orders()

    def _may_collect(self) -> bool:
        return self._is_running and all(part.may_collect for part in self._parts.values())

    def _take_orders(self) -> None:
        self._orders.extend(self._channel.orders(wait=False))
        while self._orders:
            self._do(self._orders.popleft())

    def _do(self, order: Order) -> None:
        environment = self.environment
        assert environment is not None
        match order:
            case End():
                raise ActorEndedError
            case Reset(parameters):
                environment.reset(parameters)
                self._is_running = True
            case SetParameters(parameters):
                environment.set_parameters(parameters)
            case Allowance(behavior):
                self._limit(self._parts[behavior], order)
            case Weights():
                self._synchronize(order)
            case Assignment():
                self._cast(order)
            case Learn():
                raise AssertionError("nobody has asked for this")

    def _limit(self, part: _Part, allowance: Allowance) -> None:
        part.allowance, part.is_paused = allowance, False
        if part.should_pause:
            self._ship(part)

    def _synchronize(self, order: Weights) -> None:
        part = self._parts[order.behavior]
        is_next = order.version != part.acting.policy.version  # otherwise only its normalisers are others
        if part.outbox.num_steps and is_next:
            self._ship(part)  # it gets no younger
        with self._timers(_SYNCHRONIZING):
            weights = part.weights.over(self._channel.weights(order.place))
            part.acting.policy.load(PolicyUpdate(order.version, weights, partial=not is_next))
            self._num_synchronized += 1
        self._channel.report(Synchronized(order.behavior))

    def _cast(self, cast: Assignment) -> None:
        part = self._parts[cast.behavior]
        assert part.sides is not None
        part.sides.take(cast, part.acting.policy, part.acting.team_policies)

    def _await(self, kind: type[Answer], behavior: str) -> Answer:
        """Wait for an order of a kind for a behaviour. All others are left for later, but for the end."""
        while True:
            orders = self._channel.orders(wait=True)
            for number, order in enumerate(orders):
                if isinstance(order, End):
                    raise ActorEndedError
                if isinstance(order, kind) and order.behavior == behavior:
                    self._orders.extend(orders[number + 1 :])
                    return order
                self._orders.append(order)

    def _collect(self, collector: Collector) -> None:
        collector.collect(_WAIT_S)
        for part in self._parts.values():
            if part.is_due():
                self._ship(part)
        if perf_counter() - self._told_s > _SIGN_OF_LIFE_S:
            self._report_progress(anyway=True)

    def _ship(self, part: _Part) -> None:
        """Report all that is finished, in its order, and what is new."""
        part.shipped_s = perf_counter()
        pauses = part.should_pause
        name, pool = part.order.behavior, part.acting.pool
        self._report_stats(part)
        items = part.outbox.drain()
        for is_aborted, group in groupby(items, lambda item: isinstance(item, EpisodesAborted)):
            found = list(group)
            if is_aborted:
                for item in found:
                    assert isinstance(item, EpisodesAborted)
                    assert item.worker is not None
                    self._channel.report(Aborted(name, item.worker))
                continue
            batches = [item for item in found if isinstance(item, TrajectoryBatch)]
            self._hand_over(part, batches)
            release(pool, batches)
        if items:
            self._report_progress()
        if pauses:
            part.is_paused = True
            self._channel.report(Paused(name))

    def _hand_over(self, part: _Part, batches: Sequence[TrajectoryBatch]) -> None:
        """Copy trajectories from the pool to where the learner reads them."""
        counts = Counts(sum(batch.num_steps for batch in batches), sum(map(len, batches)))
        pool, layout = part.acting.pool, part.layout
        if pool.moments is None:
            room = self._channel.room(layout.size(counts))
            packed = gather(pool, batches, layout.over(room.buffer, counts).steps)
        else:  # how many groupmates there are is known only afterwards
            packed = gather(pool, batches)
            counts = Counts.of(packed)
            room = self._channel.room(layout.size(counts))
        layout.write(packed, room.buffer)
        self._channel.report(Experience(part.order.behavior, counts, room.place))

    def _report_stats(self, part: _Part) -> None:
        part.acting.reporter.write(0)
        matches: Sequence[Matches] = ()
        steps = 0
        if part.sides is not None:
            sides = part.sides
            matches, sides.matches = sides.matches, []
            steps, sides.told_steps = sides.tracker.num_steps - sides.told_steps, sides.tracker.num_steps
        if part.stats.values or matches or steps:
            self._channel.report(StatsReport(part.order.behavior, part.stats.values, matches, steps))

    def _report_progress(self, *, anyway: bool = False) -> None:
        collector, parts = self._collector, self._parts.values()
        assert collector is not None
        steps = sum(part.outbox.num_put for part in parts)
        if collector.num_messages + steps == self._done and not anyway:
            return
        self._told_s = perf_counter()
        self._done = collector.num_messages + steps
        seconds = self._timers.seconds_by(_KINDS)
        counters = Counters(
            environment_steps=collector.num_messages,
            agent_steps=steps,
            episodes=sum(part.outbox.num_episodes for part in parts),
            collect_s=sum(seconds[kind] for kind in (_COLLECTING, _STEPPING, _ACTING)),
            step_s=seconds[_STEPPING],
            act_s=seconds[_ACTING],
            wait_s=seconds[_WAITING],
            synchronize_s=seconds[_SYNCHRONIZING],
            synchronizations=self._num_synchronized,
        )
        self._channel.report(Progress(counters))

    def _make(self, found: NewBehavior) -> ActingBehavior:
        """Make what the collector needs of a behaviour that appears."""
        self._channel.report(Found(found))
        order = self._await(Learn, found.behavior_id.name)
        part = self._parts[order.behavior] = self._part(order, found)
        return part.acting

    def _part(self, order: Learn, found: NewBehavior) -> _Part:
        settings = order.settings
        kind = partial(NoisyPolicy, noise=order.noise) if order.noise else Policy
        deterministic = settings.network_settings.deterministic
        policy = kind(order.network, seed=order.seed, deterministic=deterministic, evenly_first=order.evenly_first)
        policy.version = order.version
        stats, outbox = _StatsBuffer(), Outbox(order.sequence_length)
        policies: PolicyQueue[Tensor] = PolicyQueue()
        pool = RowPool(found.spec, found.obs_dtypes, memory_size=policy.memory_size, groups=order.groups)

        def tracker() -> OpponentTracker:
            return OpponentTracker(settings.time_horizon, policy.memory_size)

        sides = None
        if order.self_play:
            assert settings.self_play is not None
            sides = _Sides(self, settings.self_play, tracker())
        acting = ActingBehavior(
            spec=found.spec,
            pool=pool,
            processor=AgentProcessor(pool, settings.time_horizon),
            policy=policy,
            trajectories=outbox,
            policies=policies,
            reporter=StatsReporter(order.behavior, [stats]),
            self_play=sides,
            bystanders=tracker() if order.bystander else None,
        )
        layout = PackedLayout(found.spec, found.obs_dtypes, memory_size=policy.memory_size, groups=order.groups)
        weights = WeightsLayout(policy.actor.state_dict())
        return _Part(order, acting, outbox, layout, weights, stats, sides, order.allowance)
