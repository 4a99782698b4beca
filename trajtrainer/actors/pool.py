"""All actors of a run, as its loop sees them: a collector and an environment in one (docs/actors.md)."""

from __future__ import annotations

import enum
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from torch import Tensor

from trajtrainer.actors.actor import rows_of
from trajtrainer.actors.collector import NewBehavior, look
from trajtrainer.actors.messages import (
    UNLIMITED,
    Aborted,
    ActorDiedError,
    Allowance,
    Assignment,
    Buffer,
    Connected,
    Counters,
    Experience,
    Failed,
    Found,
    Hello,
    Joined,
    Learn,
    OpponentSlot,
    Order,
    Paused,
    Progress,
    Report,
    Reset,
    SetParameters,
    StatsReport,
    Synchronized,
    Transport,
)
from trajtrainer.actors.pacing import Credit
from trajtrainer.actors.source import ActorSource, Chunk
from trajtrainer.actors.weights import WeightsLayout
from trajtrainer.algos.acting import Policy
from trajtrainer.core.errors import EnvironmentFaultError, UnsupportedError
from trajtrainer.core.image_order import RawImageOrder
from trajtrainer.core.queues import EpisodesAborted, PolicyQueue
from trajtrainer.core.spec import BehaviorSpec
from trajtrainer.core.stats import StatsReporter
from trajtrainer.core.steps import WORKER_SHIFT, Aggregation
from trajtrainer.core.timers import Timers
from trajtrainer.core.version import __version__
from trajtrainer.data.packed_layout import PackedLayout
from trajtrainer.envs.protocol import Parameters
from trajtrainer.envs.workers.restart_quota import UNLIMITED as UNLIMITED_RESTARTS
from trajtrainer.envs.workers.restart_quota import RestartQuota
from trajtrainer.nn.actor import copy_of
from trajtrainer.nn.init import derived_seeds
from trajtrainer.settings.environment import EnvironmentSettings, Sampler
from trajtrainer.settings.trainer import TrainerSettings
from trajtrainer.trainers.self_play import SelfPlay
from trajtrainer.unity.faults import LaunchError, PlayerTimeoutError, PlayerVersionError, PortInUseError

_LOGGER = logging.getLogger(__name__)

# Chunks that the part of an actor is divided into, so that the learner need not wait for all of it.
_CHUNKS = 8


@dataclass(eq=False)
class ActingElsewhere:
    """The learner's part of a behaviour whose actors are elsewhere.

    Attributes:
        name: of the behaviour.
        spec: what its agents see and do.
        obs_dtypes: numpy types of their observations, per sensor.
        settings: of its trainer.
        policy: a copy of what acts, on the CPU.
        policies: the channel from the trainer.
        reporter: of its statistics.
        source: the experience of all actors; None if nobody learns from it.
        self_play: the teams; None if all learn.
        groups: whether the learner needs the groupmates.
        version: gives that of the newest policy.
        is_due: gives whether the trainer does something with what it has been given.
        lead: rows that acting may be ahead of learning by.
        max_lag: policies by which experience may be older than the newest, where updates use it up; 0 lets acting wait
            for the policy that the next buffer must come from. None where learning keeps pace with acting.
        first_step: gives the step at which it begins, not 0 if it is resumed.
        max_steps: at which its training ends; None without training.
        turn: where the only actor takes turns with the learner: gives the rows and steps that have to come before the
            trainer does something. None where it does not.
    """

    name: str
    spec: BehaviorSpec
    obs_dtypes: Sequence[np.dtype[Any]]
    settings: TrainerSettings
    policy: Policy
    policies: PolicyQueue[Tensor]
    reporter: StatsReporter
    source: ActorSource | None
    self_play: SelfPlay | None
    groups: bool
    version: Callable[[], int]
    is_due: Callable[[], bool]
    lead: int
    max_lag: int | None
    first_step: Callable[[], int]
    max_steps: int | None
    turn: Callable[[], tuple[int, int]] | None = None

    @property
    def steps_left(self) -> int:
        """The agent steps that end the training when they have come."""
        return UNLIMITED if self.max_steps is None else self.max_steps + 1 - self.first_step()

    @property
    def in_turn(self) -> bool:
        """Whether acting waits for learning and learning for acting."""
        return self.max_lag == 0

    @property
    def sequence_length(self) -> int:
        """L; 1 without a memory."""
        memory = self.settings.network_settings.memory
        return 1 if memory is None else memory.sequence_length


ElsewhereFactory = Callable[[NewBehavior], ActingElsewhere]
"""Makes the learner's part of a behaviour. Called once per name, when it first appears."""


@dataclass(slots=True)
class _Tie:
    """What an actor has of a behaviour.

    Attributes:
        loads: ``Policy.num_loads`` of the weights that it was sent last.
        version: of these.
        is_synchronized: whether it acts by them.
        cast: ``SelfPlay.cast_number`` that it was sent last.
        opponent_steps: of the teams that do not learn, which it has reported since its start.
        is_paused: it waits for its next turn.
        is_recalled: it was told to pause, and has not said that it has.
    """

    loads: int
    version: int
    is_synchronized: bool = True
    opponent_steps: int = 0
    is_paused: bool = False
    is_recalled: bool = False
    cast: tuple[int, int] | None = None


@dataclass(eq=False)
class _Part:
    """One behaviour with its actors."""

    acting: ActingElsewhere
    layout: PackedLayout
    weights: WeightsLayout
    credit: Credit
    ties: dict[int, _Tie] = field(default_factory=dict)
    inbox: deque[Chunk | EpisodesAborted] = field(default_factory=deque)
    teams: set[str] = field(default_factory=set)
    turn: list[tuple[ActorState, StatsReport | Experience | Aborted]] = field(default_factory=list)
    seen_version: int = 0
    learnt: int = 0  # rows that all updates were made of
    fed: int = 0  # rows since the last one
    flat: tuple[int, Buffer] | None = None  # ``Policy.num_loads``, weights

    def bytes_of_weights(self) -> Buffer:
        loads = self.acting.policy.num_loads
        if self.flat is None or self.flat[0] != loads:
            self.flat = loads, self.weights.written(self.acting.policy.actor.state_dict())
        return self.flat[1]


class _Phase(enum.Enum):
    STARTING = enum.auto()
    WORKING = enum.auto()
    DOWN = enum.auto()  # it will be started again
    OUT = enum.auto()  # it will not


@dataclass(slots=True, eq=False)
class ActorState:
    """One actor as the learner knows it.

    Attributes:
        number: of the actor.
        quota: its restarts.
        phase: whether it works.
        before: what it has done until its last start.
        counters: since then.
        has_connected: whether it ever came up.
        agent_steps: that came from it.
        episodes: that ended with them.
        lag_sum: policies by which these steps were older than the newest one as they came.
        start_s: when it is started again, while it is down.
        connected_s: when it came up.
        active_s: when it last reported something or was sent something; None before its first report.
        first_s: when it came up first.
    """

    number: int
    quota: RestartQuota
    phase: _Phase = _Phase.STARTING
    before: Counters = field(default_factory=Counters)
    counters: Counters = field(default_factory=Counters)
    has_connected: bool = False
    agent_steps: int = 0
    episodes: int = 0
    lag_sum: int = 0
    start_s: float = 0.0
    connected_s: float = 0.0
    active_s: float | None = None
    first_s: float = 0.0

    @property
    def is_working(self) -> bool:
        """Whether its environments are there."""
        return self.phase is _Phase.WORKING

    @property
    def total(self) -> Counters:
        """What it has done in the whole run."""
        return self.before.plus(self.counters)


class ActorPool:
    """Steps the actors of a run: takes in what they report, and gives them credit, policies and parameters.

    Stands in the loop for the collector and for the environment. The constructor starts all actors and returns when the
    first has its environments; the others come when they are ready. An actor that dies is started again within the
    quotas of the settings; beyond them it is left out, and the others go on. All read raw images in one order: an actor
    that has found another than the first is started again with this one, before it acts.

    Args:
        transport: of the actors, none started yet.
        settings: quotas.
        workers: of each actor, at most.
        seed: of the run.
        own_parameters: actor -> environment parameters that go before those of the run.
        noise: actor -> exploration noise, of those that have any.
        patience_s: how long an actor that could collect may be silent; None for as long as it likes.
        timers: of the run.
        clock: seconds.

    Raises:
        EnvironmentFaultError: none of them can be started.
        TrajtrainerError: there is a mistake that no restart heals.

    Attributes:
        behaviors: name -> the learner's part of a behaviour.
        specs: behaviour id -> what was announced.
        actors: by number.
        waited_s: seconds in which the learner had nothing to do but to wait for them.
        image_order: of the raw images of all actors; ``AUTO`` before the first has some.
    """

    def __init__(
        self,
        transport: Transport,
        settings: EnvironmentSettings,
        *,
        workers: int,
        seed: int,
        timers: Timers,
        own_parameters: Mapping[int, Parameters] | None = None,
        noise: Mapping[int, float] | None = None,
        patience_s: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.behaviors: dict[str, ActingElsewhere] = {}
        self.specs: dict[str, BehaviorSpec] = {}
        self.actors = [ActorState(number, RestartQuota(settings)) for number in range(len(transport))]
        self._transport = transport
        self._settings = settings
        self._stride = workers
        self._seed = seed
        self._timers = timers
        self._own_parameters = own_parameters or {}
        self._noise = noise or {}
        self._patience_s = patience_s
        self._clock = clock
        self._parts: dict[str, _Part] = {}
        self._parameters: dict[str, Sampler] = {}
        self._is_running = False
        self._begin_s = clock()
        self.waited_s = 0.0
        self.image_order = RawImageOrder.AUTO
        self._make: ElsewhereFactory | None = None
        try:
            for actor in self.actors:
                transport.start(actor.number)
            while not any(actor.has_connected for actor in self.actors):
                self._start_again()
                for number, report in transport.reports(self._pause_s(None)):
                    self._take(number, report)
                self._end_stuck_actors()
        except BaseException:
            self.kill()
            self.close()
            raise

    # The environment.

    @property
    def num_workers(self) -> int:
        """The number of workers of all actors."""
        return len(self.actors) * self._stride

    def reset(self, parameters: Parameters) -> None:
        """Let all actors begin all episodes anew."""
        self._parameters |= parameters
        self._is_running = True
        for actor in self.actors:
            if actor.phase is _Phase.WORKING:
                self._post(actor.number, Reset(self._parameters_of(actor.number, parameters)))

    def set_parameters(self, parameters: Parameters) -> None:
        """Change parameters of all environments without a reset."""
        self._parameters |= parameters
        for actor in self.actors:
            if actor.phase is _Phase.WORKING:
                own = self._parameters_of(actor.number, parameters)
                self._post(actor.number, SetParameters(own))

    def close(self) -> None:
        """End all actors and wait for their end. May be called again."""
        self._transport.close()

    @property
    def present(self) -> Sequence[int]:
        """The numbers of the actors that have not ended."""
        return self._transport.present

    def kill(self) -> None:
        """End all actors at once and do not wait. For signal handlers: quick, and takes no lock."""
        self._transport.kill()

    def _parameters_of(self, number: int, parameters: Parameters) -> Parameters:
        return {**parameters, **self._own_parameters.get(number, {})}

    def _post(self, number: int, order: Order) -> None:
        self.actors[number].active_s = self._clock()
        self._transport.post(number, order)

    # The collector.

    def use(self, make: ElsewhereFactory) -> None:
        """Make behaviours that appear by ``make`` from now on."""
        self._make = make

    @property
    def num_messages(self) -> int:
        """Environment steps of all actors."""
        return sum(actor.total.environment_steps for actor in self.actors)

    def collect(self, timeout_s: float | None = None) -> int:
        """Take in what actors have reported, and let them go on.

        Returns:
            How many reports there were; 0 after ``timeout_s`` seconds without any.

        Raises:
            EnvironmentFaultError: the last actor failed for good.
            TrajtrainerError: there is a mistake that no restart heals.
        """
        with self._timers("env_step") as step:
            step.part("env_send")
            self._start_again()
            self.pump()
            self._give_turns()
            num_seen = self.look()  # first of all who acts by the last policy, and so may be sent the newest one
            has_fed = self._feed()
            step.part("env_wait")
            reports = self._reports(0.0 if has_fed or num_seen else self._pause_s(timeout_s))
            step.part("record")
            for number, report in reports:
                self._take(number, report)
            self._end_stuck_actors()
            has_fed |= self._feed()
            step.part("env_send")
            self.pump()
            if not reports and not num_seen and not has_fed:
                self._see_that_it_goes_on()
        return num_seen + len(reports)

    def _reports(self, timeout_s: float | None) -> Sequence[tuple[int, Report]]:
        begin_s = self._clock()
        try:
            return self._transport.reports(timeout_s)
        finally:
            self.waited_s += self._clock() - begin_s

    @property
    def seconds(self) -> float:
        """Seconds since there are actors."""
        return self._clock() - self._begin_s

    def seconds_of(self, actor: ActorState) -> float:
        """Return the seconds since an actor's environments were first there; 0 before."""
        return self._clock() - actor.first_s if actor.has_connected else 0.0

    def pump(self) -> None:
        """Send what actors need to go on: newer policies, other opponents, credit. Does not wait."""
        for part in self._parts.values():
            acting = part.acting
            update = acting.policies.latest(acting.name)
            if update is not None:
                acting.policy.load(update)
            for number, tie in part.ties.items():
                self._send_weights(part, number, tie)
                self._send_cast(part, number, tie)
            self._send_credit(part)

    def _give_turns(self) -> None:
        """Let actors go on that wait for their turn. Called when the loop has done what follows from the last one."""
        for part in self._parts.values():
            for number, tie in part.ties.items():
                if tie.is_paused and not part.inbox:
                    tie.is_paused = False
                    self._post(number, self._turn(part, number))

    def _turn(self, part: _Part, number: int) -> Allowance:
        """Return the allowance up to the point where the trainer would do something in one loop."""
        acting = part.acting
        assert acting.turn is not None
        rows, steps = acting.turn()
        opponent_steps = UNLIMITED
        if acting.self_play is not None:
            own_steps, more_steps = acting.self_play.steps_until_due()
            steps = min(steps, own_steps)
            opponent_steps = part.ties[number].opponent_steps + more_steps
        counted_rows, counted_steps = part.credit.counted(number)
        return Allowance(acting.name, counted_rows + rows, counted_steps + steps, opponent_steps, pauses=True)

    def look(self) -> int:
        """Do the same after what has come meanwhile, in the midst of an update, too. Return how many reports came."""
        reports = self._transport.reports(0.0)
        for number, report in reports:
            self._take(number, report)
        self.pump()
        return len(reports)

    def _send_weights(self, part: _Part, number: int, tie: _Tie) -> None:
        policy = part.acting.policy
        if tie.is_synchronized and tie.loads != policy.num_loads:
            tie.loads, tie.version, tie.is_synchronized = policy.num_loads, policy.version, False
            self.actors[number].active_s = self._clock()
            self._transport.publish(number, part.acting.name, policy.version, part.bytes_of_weights())

    def _send_cast(self, part: _Part, number: int, tie: _Tie) -> None:
        self_play = part.acting.self_play
        if self_play is None or tie.cast in (None, self_play.cast_number):
            return
        tie.cast = self_play.cast_number
        self._post(number, self._cast(part, self_play, number))

    def _cast(self, part: _Part, self_play: SelfPlay, number: int) -> Assignment:
        assert self_play.learning is not None
        slots = {}
        for name, (player, weights, since) in self_play.seats().items():
            seed = self._seed_of(part.acting, self.actors[number], f"{name} opponent {since}")
            slots[name] = OpponentSlot({key: tensor.numpy() for key, tensor in weights.items()}, player.acts, seed)
        return Assignment(part.acting.name, self_play.learning, self_play.cast_number[0], slots)

    def _send_credit(self, part: _Part) -> None:
        acting, credit = part.acting, part.credit
        source, version = acting.source, acting.version()
        if source is None or acting.turn is not None:
            return
        if acting.max_lag is None:
            credit.consumed = source.rows_taken - int(source.rows_held)
        else:
            if version != part.seen_version:
                part.seen_version, part.learnt, part.fed = version, source.rows_taken, 0
            # What the next update is made of is gone from the lead as soon as it is known, so that with a lag the one
            # after it is collected meanwhile, whole, even if this one takes more than it needs.
            more = part.fed - acting.settings.hyperparameters.buffer_size - 1
            credit.consumed = max(credit.consumed, part.learnt + max(0, more))
        # Credit comes behind the policy that is to use it up.
        ready = [
            number
            for number, tie in part.ties.items()
            if not tie.is_recalled and (acting.max_lag is None or tie.version == version)
        ]
        for number, (rows, steps) in credit.grants(ready).items():
            self._post(number, Allowance(acting.name, rows, steps))

    def _see_that_it_goes_on(self) -> None:
        """Let actors collect more where all of them wait and the trainer has no use for what they have sent.

        It may have left out what was too old.
        """
        for part in self._parts.values():
            source = part.acting.source
            takes_turns = part.acting.turn is not None
            if source is not None and not takes_turns and part.credit.is_used_up and not part.inbox:
                if len(source):
                    source.request_drain()
                else:
                    part.credit.consumed = part.credit.collected

    def _feed(self) -> bool:
        """Give trainers what has come; of on-policy ones no more than an update is made of.

        Returns:
            Whether there was anything.
        """
        has_fed = False
        for part in self._parts.values():
            source = part.acting.source
            while source is not None and part.inbox and self._may_feed(part):
                item = part.inbox.popleft()
                has_fed = True
                if isinstance(item, EpisodesAborted):
                    source.abort_episodes(item.worker)
                else:
                    part.fed += item.rows
                    source.put(item)
        return has_fed

    def _may_feed(self, part: _Part) -> bool:
        acting, item = part.acting, part.inbox[0]
        if acting.max_lag is None or isinstance(item, EpisodesAborted):
            return True
        if acting.in_turn:
            return not _completes_update(part) or self._are_at_rest(part)
        # Of what makes an update something was too old, so that more is needed, if the trainer is not due.
        if part.fed <= acting.settings.hyperparameters.buffer_size or not acting.source or not acting.is_due():
            return True
        # What would be too old after the update is better learnt from now.
        lag = acting.version() + 1 - int(item.packed["version"][item.packed.offset[1:] - 1].max())
        return lag > acting.max_lag

    def _are_at_rest(self, part: _Part) -> bool:
        """Let all actors of a behaviour stop, and return whether they have.

        What they finished while an update is under way would be too old for the next one.
        """
        for number, tie in part.ties.items():
            if part.credit.outstanding(number) and not tie.is_recalled:
                tie.is_recalled = True
                self._post(number, Allowance(part.acting.name, rows=0, pauses=True))
        return not any(tie.is_recalled for tie in part.ties.values())

    def _take(self, number: int, report: Report) -> None:
        actor = self.actors[number]
        actor.active_s = self._clock()
        match report:
            case Hello(version):
                if version != __version__:
                    self._refuse(
                        actor,
                        f"it runs trajtrainer {version}, and this is {__version__}. Install the same version there.",
                    )
            case Connected():
                self._connect(actor)
            case Found(found):
                self._meet(actor, found)
            case Joined(behavior_id):
                self._join(actor, self._parts[behavior_id.name], behavior_id)
            case StatsReport() | Experience() | Aborted():
                part = self._parts[report.behavior]
                if part.acting.turn is None:
                    self._take_in(actor, report)
                else:  # the loop may do nothing with a part of it
                    part.turn.append((actor, report))
            case Paused(behavior):
                part = self._parts[behavior]
                if part.acting.turn is None:
                    part.ties[number].is_recalled = False
                    part.credit.stop(number)
                else:
                    part.ties[number].is_paused = True
                    self._take_turn(part)
            case Synchronized(behavior):
                self._parts[behavior].ties[number].is_synchronized = True
            case Progress(counters):
                actor.counters = counters
            case Failed(error):
                self._fail(actor, error)

    def _take_turn(self, part: _Part) -> None:
        turn, part.turn = part.turn, []
        for actor, report in turn:
            self._take_in(actor, report)

    def _take_in(self, actor: ActorState, report: StatsReport | Experience | Aborted) -> None:
        match report:
            case StatsReport():
                self._take_stats(actor, report)
            case Experience():
                self._take_experience(actor, report)
            case Aborted(behavior, worker):
                self._parts[behavior].inbox.append(EpisodesAborted(actor.number * self._stride + worker))

    def _connect(self, actor: ActorState) -> None:
        actor.phase = _Phase.WORKING
        actor.connected_s = self._clock()
        if not actor.has_connected:
            actor.has_connected, actor.first_s = True, actor.connected_s
        if self._is_running:
            self._post(actor.number, Reset(self._parameters_of(actor.number, self._parameters)))

    def _meet(self, actor: ActorState, found: NewBehavior) -> None:
        """Tell an actor how to act for a behaviour that it has found."""
        number, name = actor.number, found.behavior_id.name
        if self.image_order is RawImageOrder.AUTO:
            self.image_order = found.raw_image_order
        elif found.raw_image_order not in (RawImageOrder.AUTO, self.image_order):
            self._start_with_order(actor)
            return
        part = self._parts.get(name)
        if part is None:
            part = self.add(found)
        expected, seen = look(part.acting.spec, part.acting.obs_dtypes), look(found.spec, found.obs_dtypes)
        if expected != seen:
            self._refuse(
                actor,
                f"behavior {name!r} has {seen} there, and {expected} in the other actors. All actors need the same "
                "scene: the same build, and env_args that leave agents alike.",
            )
            return
        acting, policy = part.acting, part.acting.policy
        part.credit.join(number)
        part.ties[number] = _Tie(policy.num_loads, policy.version)
        self._post(
            number,
            Learn(
                behavior=name,
                settings=acting.settings,
                network=copy_of(policy.actor),
                version=policy.version,
                seed=self._seed_of(acting, actor, f"{name} acting"),
                noise=self._noise.get(number, 0.0),
                evenly_first=policy.evenly_first,
                groups=acting.groups,
                sequence_length=acting.sequence_length,
                ship_steps=max(1, acting.lead // (_CHUNKS * len(self.actors))),
                bystander=acting.source is None,
                self_play=acting.self_play is not None,
                allowance=self._first_allowance(part, number),
            ),
        )

    def _first_allowance(self, part: _Part, number: int) -> Allowance:
        acting = part.acting
        if acting.source is None:
            return Allowance(acting.name)
        if acting.turn is not None:
            return self._turn(part, number)
        return Allowance(acting.name, *part.credit.grants([number]).get(number, (0, UNLIMITED)))

    def add(self, found: NewBehavior) -> _Part:
        """Make the learner's part of a behaviour that appears."""
        assert self._make is not None
        acting = self._make(found)
        self.behaviors[acting.name] = acting
        self.specs[found.behavior_id.full] = found.spec
        policy = acting.policy
        layout = PackedLayout(acting.spec, acting.obs_dtypes, memory_size=policy.memory_size, groups=acting.groups)
        in_updates = acting.max_lag is not None
        credit = Credit(acting.lead, acting.steps_left, in_updates=in_updates, in_turn=acting.in_turn)
        update = acting.policies.latest(acting.name)
        if update is not None:
            policy.load(update)
        part = _Part(acting, layout, WeightsLayout(policy.actor.state_dict()), credit, seen_version=acting.version())
        self._parts[acting.name] = part
        if acting.source is not None:
            acting.source.on_progress = self.look
        return part

    def _seed_of(self, acting: ActingElsewhere, actor: ActorState, what: str) -> int:
        """Return the seed of what a policy of an actor draws: for the first one's first start that of a run without."""
        which = (actor.number, actor.quota.used, acting.first_step())
        text = "" if which == (0, 0, 0) else " {} {} {}".format(*which)
        return derived_seeds(self._seed, f"{what}{text}")[0]

    def _join(self, actor: ActorState, part: _Part, behavior_id: Any) -> None:
        self_play = part.acting.self_play
        assert self_play is not None
        if behavior_id.full not in part.teams:
            part.teams.add(behavior_id.full)
            self.specs.setdefault(behavior_id.full, part.acting.spec)
            self_play.join(behavior_id)
        part.ties[actor.number].cast = self_play.cast_number
        self._post(actor.number, self._cast(part, self_play, actor.number))

    def _take_stats(self, actor: ActorState, stats: StatsReport) -> None:
        acting = self._parts[stats.behavior].acting
        for tag, summary in stats.statistics.items():
            if summary.aggregation is not Aggregation.MOST_RECENT or actor.number == 0:
                acting.reporter.add_many(tag, np.asarray(summary.values), summary.aggregation)
        if acting.self_play is not None:
            self._parts[stats.behavior].ties[actor.number].opponent_steps += stats.opponent_steps
            acting.self_play.tracker.num_steps += stats.opponent_steps
            for cast, num_episodes, num_steps, results in stats.matches:
                is_present = cast == acting.self_play.cast_number[0]
                acting.self_play.count_episodes(num_episodes, num_steps, results if is_present else ())

    def _take_experience(self, actor: ActorState, report: Experience) -> None:
        part = self._parts[report.behavior]
        try:
            buffer, release = self._transport.experience(actor.number, report.place)
        except OSError:  # it is gone, and what it has sent with it
            return
        packed = part.layout.over(buffer, report.counts)
        workers = np.int64(actor.number * self._stride) << WORKER_SHIFT
        rows = rows_of(packed.lengths, part.acting.sequence_length)
        part.credit.count(actor.number, rows, len(packed))
        actor.agent_steps += len(packed)
        actor.episodes += int(np.count_nonzero(packed.ended))
        actor.lag_sum += len(packed) * part.acting.version() - int(packed["version"].sum(dtype=np.int64))
        part.inbox.append(Chunk(replace(packed, agent=packed.agent + workers), rows, release))

    # Actors that fail.

    def _refuse(self, actor: ActorState, reason: str) -> None:
        """Leave out an actor that is not like the others."""
        message = f"Actor {actor.number} is left out: {reason}"
        self._leave(actor)
        actor.phase = _Phase.OUT
        self._transport.drop(actor.number)
        if all(each.phase is _Phase.OUT for each in self.actors):
            raise UnsupportedError(message)
        _LOGGER.error("%s", message)

    def _start_with_order(self, actor: ActorState) -> None:
        """Start an actor again, which then gets the order of raw images that the run has settled (``ActorTask``)."""
        _LOGGER.warning(
            "The raw images of actor %d seem to come in another order than those of the others. It is started again "
            "and reads them as they do, as %s. If that is wrong, set raw_image_order.",
            actor.number,
            self.image_order.value,
        )
        self._leave(actor)
        self._transport.drop(actor.number)
        actor.phase, actor.start_s = _Phase.DOWN, self._clock()

    def _fail(self, actor: ActorState, error: Exception) -> None:
        now_s = self._clock()
        worked_s = now_s - actor.connected_s if actor.phase is _Phase.WORKING else 0.0
        is_first = not any(each.has_connected for each in self.actors)
        self._leave(actor)
        if not isinstance(error, EnvironmentFaultError) or _is_hopeless(error, is_first=is_first):
            raise error
        others = [each for each in self.actors if each is not actor and each.phase is not _Phase.OUT]
        # What its own environments could not do within their quotas no restart of all will.
        refusal = None if isinstance(error, ActorDiedError) else "its environments have failed for good"
        refusal = refusal or actor.quota.refusal(now_s)
        if refusal is not None:
            actor.phase = _Phase.OUT
            if not others:
                raise EnvironmentFaultError(
                    f"Actor {actor.number} failed and is not started again, as {refusal}. {error}"
                ) from error
            _LOGGER.error(
                "Actor %d failed and is left out, as %s; %d go on. %s", actor.number, refusal, len(others), error
            )
            return
        delay_s = actor.quota.grant(now_s, worked_s)
        actor.phase = _Phase.DOWN
        actor.start_s = now_s + delay_s
        most = self._settings.max_lifetime_restarts
        _LOGGER.warning(
            "Restarting actor %d in %.2f s (restart %d%s) after: %s",
            actor.number,
            delay_s,
            actor.quota.used,
            "" if most == UNLIMITED_RESTARTS else f" of {most}",
            error,
        )

    def _end_stuck_actors(self) -> None:
        """Restart actors that are alive, have something to do, and do not report any more: stopped, or stuck."""
        if self._patience_s is None:
            return
        for actor in self.actors:
            if actor.active_s is None or self._clock() - actor.active_s <= self._patience_s or self._rests(actor):
                continue
            self._transport.drop(actor.number)
            self._fail(actor, ActorDiedError(f"Actor {actor.number} reported nothing for {self._patience_s:.0f} s."))

    def _rests(self, actor: ActorState) -> bool:
        """Return whether an actor is not expected to do anything before it is sent something."""
        if actor.phase is not _Phase.WORKING:
            return actor.phase is not _Phase.STARTING
        ties = [(part, part.ties[actor.number]) for part in self._parts.values() if actor.number in part.ties]
        waits = any(
            tie.is_paused if part.acting.turn is not None else not part.credit.outstanding(actor.number)
            for part, tie in ties
            if part.acting.source is not None
        )
        owes = any(tie.is_recalled or not tie.is_synchronized for _, tie in ties)
        return not self._is_running or (waits and not owes)

    def _leave(self, actor: ActorState) -> None:
        """End the unfinished episodes of an actor that is gone, and let others have its credit."""
        actor.before, actor.counters = actor.total, Counters()
        actor.active_s = None
        for part in self._parts.values():
            if actor.number not in part.ties:
                continue
            self._take_turn(part)
            del part.ties[actor.number]
            part.credit.leave(actor.number)
            first = actor.number * self._stride
            part.inbox.extend(EpisodesAborted(worker) for worker in range(first, first + self._stride))

    def _start_again(self) -> None:
        now_s = self._clock()
        for actor in self.actors:
            if actor.phase is _Phase.DOWN and actor.start_s <= now_s:
                actor.phase = _Phase.STARTING
                self._transport.start(actor.number)

    def _pause_s(self, timeout_s: float | None) -> float | None:
        """Return how long to wait: until the next restart, but no longer than asked for."""
        ends = [actor.start_s - self._clock() for actor in self.actors if actor.phase is _Phase.DOWN]
        if timeout_s is not None:
            ends.append(timeout_s)
        return max(0.0, min(ends)) if ends else None


def _completes_update(part: _Part) -> bool:
    """Return whether what a behaviour has been given and what waits for it make an update."""
    waiting = sum(item.rows for item in part.inbox if isinstance(item, Chunk))
    return part.fed + waiting > part.acting.settings.hyperparameters.buffer_size


def _is_hopeless(fault: EnvironmentFaultError, *, is_first: bool) -> bool:
    """Return whether a restart cannot heal this fault, of an actor that is the first of all, or not."""
    if isinstance(fault, PlayerVersionError):
        return True
    return is_first and isinstance(fault, LaunchError | PortInUseError | PlayerTimeoutError)
