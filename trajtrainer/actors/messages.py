"""Orders to actors, their reports, and what carries both: a channel at the actor's end, a transport at the learner's.

An actor follows orders and answers with reports; docs/actors.md shows the order of messages. Both are plain data.
Experience and weights travel beside them, in a place that only the channel and the transport know: rows of the pool
where the actor runs in the learner's loop, shared memory for processes and threads, an object store for other machines.
In shared memory and in the store, ``PackedLayout`` lays out the bytes of experience and ``WeightsLayout`` those of
weights.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from trajtrainer.actors.node_logs import NodeLogs
from trajtrainer.algos.acting import Acts, Policy
from trajtrainer.core.errors import EnvironmentFaultError
from trajtrainer.core.image_order import RawImageOrder
from trajtrainer.core.spec import BehaviorId, BehaviorSpec
from trajtrainer.core.stats import StatsReporter, StatsSummary
from trajtrainer.data.packed_layout import PackedLayout
from trajtrainer.data.rows import RowPool
from trajtrainer.data.source import Chunk, ExperienceSource
from trajtrainer.data.trajectory import TrajectoryBatch
from trajtrainer.envs.protocol import Environment, Parameters
from trajtrainer.nn.actor import Actor as ActingNetwork
from trajtrainer.settings.trainer import TrainerSettings

Buffer = NDArray[np.uint8]
UNLIMITED = 1 << 62


class ActorEndedError(Exception):
    """The learner has said that this is the end of an actor, or is gone."""


class ActorDiedError(EnvironmentFaultError):
    """An actor's process or machine is gone."""


@dataclass(frozen=True, slots=True)
class NewBehavior:
    """A behavior whose agents appear for the first time.

    Attributes:
        behavior_id: whose agents these are.
        spec: what they see and do.
        obs_dtypes: numpy types of their observations, per sensor.
        raw_image_order: of its raw images (see ``EnvironmentEvent``); ``AUTO`` without any.
    """

    behavior_id: BehaviorId
    spec: BehaviorSpec
    obs_dtypes: Sequence[np.dtype[Any]]
    raw_image_order: RawImageOrder = RawImageOrder.AUTO


@dataclass(frozen=True, slots=True)
class ActorTask:
    """The task that an actor is given at its start.

    Attributes:
        number: of the actor, from 0.
        make_environment: starts its environments; must be picklable unless the actor stays in this process.
        cores: of the processor, to which it and what it starts are bound; None for all.
        log_level: of this package.
        logs: of its players, where they may have to be sent to the learner.
    """

    number: int
    make_environment: Callable[[], Environment]
    cores: Sequence[int] | None
    log_level: int
    logs: NodeLogs | None = None


# Orders, from the learner.


@dataclass(frozen=True, slots=True)
class Reset:
    """Let all episodes begin anew, with these parameters; the others stay as they are."""

    parameters: Parameters


@dataclass(frozen=True, slots=True)
class SetParameters:
    """Change parameters of the environments without a reset."""

    parameters: Parameters


@dataclass(frozen=True, slots=True)
class Allowance:
    """How far an actor may collect for one behavior. It replaces the behavior's last allowance.

    The limits are absolute: they count what came since the actor started. An actor collects until one of its behaviors
    reaches one of its limits.

    Attributes:
        behavior: its name.
        rows: of all trajectories, as the learner's buffer counts them: with a memory, those of whole sequences.
        steps: agent steps of all trajectories.
        opponent_steps: of the teams that do not learn, as ``SelfPlay`` counts them.
        pauses: the actor ships nothing until it reaches a limit or an episode is broken off. Then it ships all that is
            finished, reports ``Paused``, and waits for the next allowance. An allowance below what was collected
            pauses the actor at once. Otherwise it ships from time to time, and waits at a limit without a report.
    """

    behavior: str
    rows: int = UNLIMITED
    steps: int = UNLIMITED
    opponent_steps: int = UNLIMITED
    pauses: bool = False


@dataclass(frozen=True, slots=True)
class Learn:
    """What an actor needs to act for a behavior that it has found; the answer to ``Found``.

    Attributes:
        behavior: its name.
        settings: of its trainer.
        network: makes the decisions, with the newest weights; on the CPU.
        version: of these weights.
        seed: of what the policy draws.
        noise: that is added to its actions; see ``NoisyPolicy``. 0 for none.
        evenly_first: whether actions are drawn evenly until there is a policy that has learnt; see ``Policy``.
        groups: whether the learner needs the groupmates.
        sequence_length: L, of the rows that count; 1 without a memory.
        ship_steps: steps that are worth being shipped together.
        learns: whether anything learns from its experience. False for a behavior that is learned from a data set.
        self_play: whether only one of its teams learns (``Assignment``).
        allowance: the first one.
    """

    behavior: str
    settings: TrainerSettings
    network: ActingNetwork
    version: int
    seed: int
    noise: float
    evenly_first: bool
    groups: bool
    sequence_length: int
    ship_steps: int
    learns: bool
    self_play: bool
    allowance: Allowance


@dataclass(frozen=True, slots=True)
class Weights:
    """Newer weights of a behavior's policy. Answered by ``Synchronized``.

    Attributes:
        behavior: its name.
        version: of the weights.
        place: where they stand, for the channel.
    """

    behavior: str
    version: int
    place: Any


@dataclass(frozen=True, slots=True)
class OpponentSlot:
    """Who plays for a team that does not learn.

    Attributes:
        weights: of a network like the behavior's own; empty if ``acts`` plays.
        acts: plays, if it comes from a file.
        seed: of what it draws.
    """

    weights: Mapping[str, NDArray[Any]]
    acts: Acts | None
    seed: int


@dataclass(frozen=True, slots=True)
class Assignment:
    """Who plays whom in self-play; the answer to ``Joined``, and sent again whenever it changes.

    Attributes:
        behavior: name of the behavior.
        learning: the team that learns.
        number: how often another team has begun to learn. Results of matches are of one such number.
        slots: behavior id -> who plays for a team that does not learn.
    """

    behavior: str
    learning: int
    number: int
    slots: Mapping[str, OpponentSlot]


@dataclass(frozen=True, slots=True)
class End:
    """Close the environments and end."""


Order = Reset | SetParameters | Allowance | Learn | Weights | Assignment | End


# Reports, to the learner.


@dataclass(frozen=True, slots=True)
class Hello:
    """The first report of an actor.

    Attributes:
        version: of this package where it runs.
    """

    version: str


@dataclass(frozen=True, slots=True)
class Connected:
    """The environments are there and wait for their first reset."""


@dataclass(frozen=True, slots=True)
class Found:
    """A behavior has appeared. The actor waits for ``Learn``."""

    found: NewBehavior


@dataclass(frozen=True, slots=True)
class Joined:
    """A team of a behavior with self-play has appeared. The actor waits for ``Assignment``."""

    behavior_id: BehaviorId


class Matches(NamedTuple):
    """The outcome of the learning team's episodes; see ``SelfPlay.count``.

    Attributes:
        assignment: number of the assignment by which they played.
        num_episodes: that ended.
        num_steps: of the trajectories.
        results: of matches.
    """

    assignment: int
    num_episodes: int
    num_steps: int
    results: Sequence[float]


@dataclass(frozen=True, slots=True)
class StatsReport:
    """Numbers of a behavior since the last report of this kind.

    Attributes:
        behavior: its name.
        statistics: tag -> values.
        matches: of self-play.
        opponent_steps: of the teams that do not learn.
    """

    behavior: str
    statistics: Mapping[str, StatsSummary]
    matches: Sequence[Matches] = ()
    opponent_steps: int = 0


@dataclass(slots=True)
class Experience:
    """Finished trajectories of a behavior.

    Attributes:
        behavior: its name.
        rows: that they take in the learner's buffer.
        place: where they stand. Only the transport knows what it means.
    """

    behavior: str
    rows: int
    place: Any


@dataclass(frozen=True, slots=True)
class Aborted:
    """The unfinished episodes of a worker have ended; see ``queues.EpisodesAborted``. In order with ``Experience``."""

    behavior: str
    worker: int


@dataclass(frozen=True, slots=True)
class Paused:
    """The actor has reached an allowance that pauses it, and has reported everything it finished."""

    behavior: str


@dataclass(frozen=True, slots=True)
class Synchronized:
    """The weights of an order are those that act now, and their place is free for the next ones."""

    behavior: str


@dataclass(slots=True)
class Counters:
    """What an actor has done since its start.

    Attributes:
        environment_steps: messages of environments that were answered.
        collect_s: seconds of collecting: all below but waiting and synchronizing.
        step_s: waiting for environments.
        act_s: deciding.
        wait_s: waiting at its limit.
        synchronize_s: taking over weights.
        synchronizations: how often.
    """

    environment_steps: int = 0
    collect_s: float = 0.0
    step_s: float = 0.0
    act_s: float = 0.0
    wait_s: float = 0.0
    synchronize_s: float = 0.0
    synchronizations: int = 0

    def plus(self, other: Counters) -> Counters:
        """Return the sum of both."""
        return Counters(*(mine + theirs for mine, theirs in zip(astuple(self), astuple(other), strict=True)))


@dataclass(frozen=True, slots=True)
class Progress:
    """How far an actor is. Comes behind what it has shipped."""

    counters: Counters


@dataclass(frozen=True, slots=True)
class Failed:
    """The actor ends because of this error."""

    error: Exception


Report = (
    Hello | Connected | Found | Joined | StatsReport | Experience | Aborted | Paused | Synchronized | Progress | Failed
)


class Channel(Protocol):
    """An actor's end: orders in, reports and experience out."""

    def orders(self, *, wait: bool) -> Sequence[Order]:
        """Return the orders that have come, in order; with ``wait`` at least one.

        Raises:
            ActorEndedError: the learner is gone.
        """

    def report(self, report: Report) -> None:
        """Send a report. Raises ``ActorEndedError`` if the learner is gone."""

    def begin(self, order: Learn, found: NewBehavior) -> tuple[Policy, StatsReporter]:
        """Return the policy that acts for a new behavior, and the reporter of its statistics."""

    def hand_over(self, order: Learn, pool: RowPool, batches: Sequence[TrajectoryBatch], rows: int) -> None:
        """Report trajectories of the pool as ``Experience``. Their rows belong to the channel from then on."""

    def statistics(self, behavior: str) -> Mapping[str, StatsSummary]:
        """Return the statistics that have to be reported: none where the reporter is the learner's own."""

    def load(self, order: Weights, policy: Policy) -> None:
        """Load newer weights into a policy."""


Take = Callable[[int, Report], None]
"""Takes in a report of the actor with this number."""


class Transport(Protocol):
    """The learner's end: all actors, numbered from 0. Nothing here waits but ``poll`` and ``close``.

    An actor that is gone is reported once as ``Failed`` with an ``ActorDiedError``; ``start`` makes another.

    Attributes:
        runs_meanwhile: whether actors run between two ``poll``, so that they can use what they are sent after one.
        waited_s: seconds in which the learner had nothing to do but wait for actors.
    """

    runs_meanwhile: bool
    waited_s: float

    def __len__(self) -> int: ...

    @property
    def present(self) -> Sequence[int]:
        """The numbers of the actors that have not ended. For signal handlers, too."""

    @property
    def shared(self) -> tuple[Environment, Mapping[str, BehaviorSpec]] | None:
        """The environment in this loop, which others may step in between, and what it has announced; None elsewhere."""

    def add(self, behavior: str, policy: Policy, reporter: StatsReporter, source: ExperienceSource | None) -> None:
        """Let an actor in the learner's own loop use these parts of a behavior that has appeared."""

    def start(self, number: int) -> None:
        """Start an actor, in place of the last one of this number."""

    def post(self, number: int, order: Order) -> None:
        """Send an order. If the actor is gone, ``poll`` reports it."""

    def publish(self, number: int, behavior: str, version: int, weights: Callable[[], Buffer]) -> None:
        """Send newer weights, as ``Weights``. The last ones of this behavior were answered (``Synchronized``).

        ``weights`` gives bytes that are not changed in place: the same object stands for the same weights.
        """

    def chunk(self, number: int, report: Experience, layout: PackedLayout, first_worker: int) -> Chunk | None:
        """Return the experience of a report; None if the actor is gone, and its memory with it.

        Args:
            number: of the actor.
            report: names the place.
            layout: of the bytes, where they are bytes.
            first_worker: what the number of the actor's first worker is for the learner.
        """

    def poll(self, timeout_s: float | None, take: Take) -> int:
        """Hand over what actors report, and wait for something if nothing is there.

        Returns:
            How much came: reports, or in the loop messages of the environment. It may be 0 before the timeout.
        """

    def drop(self, number: int) -> None:
        """End an actor at once. Nothing more is reported of it."""

    def close(self) -> None:
        """End all actors and wait for their end. May be called again."""

    def kill(self) -> None:
        """End all actors at once and do not wait. For signal handlers: quick, and takes no lock."""
