"""The learner's end of one behavior: who acts for it, by which policy, how far, and what has come from them."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from torch import Tensor

from trajtrainer.actors.messages import (
    Aborted,
    Allowance,
    Assignment,
    Buffer,
    Experience,
    Learn,
    OpponentSlot,
    Order,
    StatsReport,
    Transport,
)
from trajtrainer.actors.pacing import Pacing
from trajtrainer.actors.weights import WeightsLayout
from trajtrainer.algos.acting import Policy
from trajtrainer.core.queues import EpisodesAborted, PolicyQueue
from trajtrainer.core.spec import BehaviorId, BehaviorSpec
from trajtrainer.core.stats import StatsReporter
from trajtrainer.core.steps import Aggregation
from trajtrainer.data.packed_layout import PackedLayout
from trajtrainer.data.source import Chunk, ExperienceSource
from trajtrainer.nn.actor import copy_of
from trajtrainer.nn.init import derived_seeds
from trajtrainer.settings.trainer import TrainerSettings
from trajtrainer.trainers.self_play import SelfPlay
from trajtrainer.workers.supervisor import Member

# Chunks that the part of an actor is divided into, so that the learner need not wait for all of it.
_CHUNKS = 8


@dataclass(eq=False)
class LearnerEnd:
    """What a behavior is for the actors: the learner's ends of its two channels, and how it paces them.

    Attributes:
        name: of the behavior.
        spec: what its agents see and do.
        obs_dtypes: numpy types of their observations, per sensor.
        settings: of its trainer.
        policy: acts in the learner's loop; elsewhere copies of it do.
        policies: the channel from the trainer.
        reporter: of its statistics.
        source: the experience of all actors; None if nothing learns from it.
        self_play: the teams; None if all learn.
        groups: whether the learner needs the groupmates.
        version: gives that of the newest policy.
        first_step: gives the step at which it begins, not 0 if it is resumed.
        pacing: of its actors.
        lead: rows that acting may be ahead of learning by, of which actors hand over a part at a time; 0 for as soon as
            anything is finished.
    """

    name: str
    spec: BehaviorSpec
    obs_dtypes: Sequence[np.dtype[Any]]
    settings: TrainerSettings
    policy: Policy
    policies: PolicyQueue[Tensor]
    reporter: StatsReporter
    source: ExperienceSource | None
    self_play: SelfPlay | None
    groups: bool
    version: Callable[[], int]
    first_step: Callable[[], int]
    pacing: Pacing
    lead: int


@dataclass(slots=True)
class _Tie:
    """What an actor has of a behavior.

    Attributes:
        loads: ``Policy.num_loads`` of the weights that it was sent last.
        version: of these.
        is_synchronized: whether it acts by them.
        assignment: ``SelfPlay.number`` that it was sent last; None before it has asked.
    """

    loads: int
    version: int
    is_synchronized: bool = True
    assignment: tuple[int, int] | None = None


@dataclass(slots=True)
class Totals:
    """What has come from an actor for a behavior.

    Attributes:
        agent_steps: of finished trajectories.
        episodes: that ended with them.
        lag_sum: policies by which these steps were older than the newest one as they came.
    """

    agent_steps: int = 0
    episodes: int = 0
    lag_sum: int = 0


@dataclass(eq=False)
class BehaviorLink:
    """One behavior with its actors.

    Attributes:
        end: the learner's.
        transport: of the actors.
        post: sends an order to the actor with this number.
        publish: sends it newer weights (``Transport.publish``).
        seed: of the run.
        stride: workers of each actor, at most.
        totals: by number of the actor.
    """

    end: LearnerEnd
    transport: Transport
    post: Callable[[int, Order], None]
    publish: Callable[[int, str, int, Callable[[], Buffer]], None]
    seed: int
    stride: int
    totals: defaultdict[int, Totals] = field(default_factory=partial(defaultdict, Totals), init=False)
    layout: PackedLayout = field(init=False)
    _weights: WeightsLayout = field(init=False)
    _ties: dict[int, _Tie] = field(default_factory=dict, init=False)
    _inbox: deque[Chunk | EpisodesAborted] = field(default_factory=deque, init=False)
    _turn: list[tuple[int, StatsReport | Experience | Aborted]] = field(default_factory=list, init=False)
    _teams: set[str] = field(default_factory=set, init=False)
    _bytes: tuple[int, Buffer] | None = field(default=None, init=False)  # ``Policy.num_loads``, weights

    def __post_init__(self) -> None:
        end = self.end
        self._take_latest_policy()
        self.layout = PackedLayout(end.spec, end.obs_dtypes, memory_size=end.policy.memory_size, groups=end.groups)
        self._weights = WeightsLayout({name: tensor.cpu() for name, tensor in end.policy.actor.state_dict().items()})

    # To the actors.

    def join(self, number: int, start: int, num_actors: int, noise: float) -> Learn:
        """Return what an actor needs that has found the behavior.

        Args:
            number: of the actor.
            start: how often it was started again before.
            num_actors: of the run.
            noise: see ``Learn``.
        """
        end, policy = self.end, self.end.policy
        self._ties[number] = _Tie(policy.num_loads, policy.version)
        memory = end.settings.network_settings.memory
        return Learn(
            behavior=end.name,
            settings=end.settings,
            network=copy_of(policy.actor),
            version=policy.version,
            seed=self._seed_of(number, start, f"{end.name} acting"),
            noise=noise,
            evenly_first=policy.evenly_first,
            groups=end.groups,
            sequence_length=1 if memory is None else memory.sequence_length,
            ship_steps=max(1, end.lead // (_CHUNKS * num_actors)),
            learns=end.source is not None,
            self_play=end.self_play is not None,
            allowance=end.pacing.join(number),
        )

    def add_team(self, number: int, start: int, behavior_id: BehaviorId) -> Assignment:
        """Add a team that an actor has met. Returns who plays whom."""
        self_play = self.end.self_play
        assert self_play is not None
        if behavior_id.full not in self._teams:
            self._teams.add(behavior_id.full)
            self_play.join(behavior_id)
        return self._assignment(self_play, number, start)

    def synchronize(self, members: Sequence[Member]) -> None:
        """Send actors what they need to continue: newer weights, other opponents, and then allowances."""
        end = self.end
        self._take_latest_policy()
        policy, self_play = end.policy, end.self_play
        for number, tie in self._ties.items():
            if tie.is_synchronized and tie.loads != policy.num_loads:
                tie.loads, tie.version, tie.is_synchronized = policy.num_loads, policy.version, False
                self.publish(number, end.name, policy.version, self._bytes_of_weights)
            if self_play is not None and tie.assignment not in (None, self_play.number):
                self.post(number, self._assignment(self_play, number, members[number].quota.used))
        if end.pacing.limits:
            version = end.version()
            # An allowance comes after the policy by which it should be used.
            ready = [number for number, tie in self._ties.items() if tie.version == version]
            for number, allowance in end.pacing.raised(ready):
                self.post(number, allowance)

    def give_turns(self) -> None:
        """Let actors go on that wait for their turn, when the loop has done what follows from the last one."""
        if self.end.pacing.takes_turns and not self._inbox:
            for number, allowance in self.end.pacing.turns():
                self.post(number, allowance)

    def lift_limits(self) -> None:
        """Let actors collect as much as they like: this behavior has what it learns from, and others have not."""
        self.end.pacing = self.end.pacing.lifted()
        for number in self._ties:
            self.post(number, Allowance(self.end.name))

    def leave(self, number: int) -> None:
        """End the unfinished episodes of an actor that is gone."""
        if number in self._ties:
            self._take_turn()
            del self._ties[number]
            self.end.pacing.leave(number)
            first = number * self.stride
            self._inbox.extend(EpisodesAborted(worker) for worker in range(first, first + self.stride))

    def waits(self, number: int) -> bool:
        """Return whether an actor is at its limit here."""
        return number in self._ties and self.end.source is not None and not self.end.pacing.may_collect(number)

    def owes(self, number: int) -> bool:
        """Return whether an actor has still to answer an order."""
        tie = self._ties.get(number)
        return tie is not None and (not tie.is_synchronized or self.end.pacing.accounts[number].is_recalled)

    def _take_latest_policy(self) -> None:
        update = self.end.policies.latest(self.end.name)
        if update is not None:
            self.end.policy.load(update)

    def _bytes_of_weights(self) -> Buffer:
        loads = self.end.policy.num_loads
        if self._bytes is None or self._bytes[0] != loads:
            self._bytes = loads, self._weights.written(self.end.policy.actor.state_dict())
        return self._bytes[1]

    def _assignment(self, self_play: SelfPlay, number: int, start: int) -> Assignment:
        assert self_play.learning is not None
        self._ties[number].assignment = self_play.number
        slots = {}
        for name, slot in self_play.slots.items():
            seed = self._seed_of(number, start, f"{name} opponent {slot.since}")
            weights = {key: tensor.cpu().numpy() for key, tensor in slot.weights.items()}
            slots[name] = OpponentSlot(weights, slot.player.acts, seed)
        return Assignment(self.end.name, self_play.learning, self_play.number[0], slots)

    def _seed_of(self, number: int, start: int, what: str) -> int:
        """Return the seed of what a policy of an actor draws: for the first one's first start that of one loop."""
        which = (number, start, self.end.first_step())
        text = "" if which == (0, 0, 0) else " {} {} {}".format(*which)
        return derived_seeds(self.seed, f"{what}{text}")[0]

    # From the actors.

    def take(self, number: int, report: StatsReport | Experience | Aborted) -> None:
        """Take in a report; in turns, only when the actor pauses: the loop must not act on a part of a turn."""
        if self.end.pacing.takes_turns:
            self._turn.append((number, report))
        else:
            self._take_in(number, report)

    def paused(self, number: int) -> None:
        """Note that an actor waits for its next allowance."""
        self.end.pacing.paused(number)
        self._take_turn()

    def synchronized(self, number: int) -> None:
        """Note that an actor acts by the weights that it was sent."""
        self._ties[number].is_synchronized = True

    def feed(self) -> int:
        """Give the trainer what has come, as far as the pacing admits. Returns how many items it was given."""
        source, pacing, num_fed = self.end.source, self.end.pacing, 0
        while source is not None and self._inbox:
            item = self._inbox[0]
            if isinstance(item, EpisodesAborted):
                source.abort_episodes(item.worker)
            elif pacing.admits(self._inbox):
                pacing.admit(item)
                source.add(item)
            else:
                for number, allowance in pacing.recalls():
                    self.post(number, allowance)
                break
            self._inbox.popleft()
            num_fed += 1
        return num_fed

    def relax(self) -> None:
        """Let actors collect more where all of them wait and the trainer has no use for what they have sent."""
        if not self._inbox:
            self.end.pacing.relax()

    def _take_turn(self) -> None:
        turn, self._turn = self._turn, []
        for number, report in turn:
            self._take_in(number, report)

    def _take_in(self, number: int, report: StatsReport | Experience | Aborted) -> None:
        first = number * self.stride
        match report:
            case StatsReport():
                self._take_stats(number, report)
            case Experience():
                chunk = self.transport.chunk(number, report, self.layout, first)
                if chunk is not None:
                    self._count(number, chunk)
                    self._inbox.append(chunk)
            case Aborted(_, worker):
                self._inbox.append(EpisodesAborted(first + worker))

    def _count(self, number: int, chunk: Chunk) -> None:
        totals, steps = self.totals[number], chunk.num_steps
        self.end.pacing.count(number, chunk.rows, steps)
        totals.agent_steps += steps
        totals.episodes += chunk.num_ended
        totals.lag_sum += chunk.lag_sum(self.end.version())

    def _take_stats(self, number: int, report: StatsReport) -> None:
        for tag, summary in report.statistics.items():
            if summary.aggregation is not Aggregation.MOST_RECENT or number == 0:
                self.end.reporter.add_many(tag, np.asarray(summary.values), summary.aggregation)
        self_play = self.end.self_play
        if self_play is not None:
            self.end.pacing.count_opponents(report.opponent_steps)
            self_play.opponent_steps += report.opponent_steps
            for assignment, num_episodes, num_steps, results in report.matches:
                is_present = assignment == self_play.number[0]
                self_play.count(num_episodes, num_steps, results if is_present else ())
