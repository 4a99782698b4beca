"""Orders to actors, their reports, and what carries both: a channel at the actor's end, a transport at the learner's.

An actor is told what to do by orders and answers by reports; docs/actors.md shows who says what when. Both are plain
data. Experience and weights are bytes beside them, whose place only the channel and the transport know: shared memory
for processes and threads, an object store for other machines. Bytes of experience are laid out by ``PackedLayout``,
those of weights by ``WeightsLayout``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from trajtrainer.actors.collector import NewBehavior
from trajtrainer.actors.node_logs import NodeLogs
from trajtrainer.algos.acting import Acts
from trajtrainer.core.errors import EnvironmentFaultError
from trajtrainer.core.spec import BehaviorId
from trajtrainer.core.stats import StatsSummary
from trajtrainer.data.packed_layout import Counts
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
class ActorTask:
    """The task that an actor is given at its start.

    Attributes:
        number: of the actor, from 0.
        make_environment: starts its environments; must be picklable unless it stays in this process.
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
    """What an actor needs to act for a behaviour that it has found; the answer to ``Found``.

    Attributes:
        behavior: its name.
        settings: of its trainer.
        network: acts, with the newest weights; on the CPU.
        version: of these weights.
        seed: of what the policy draws.
        noise: that is added to its actions; see ``NoisyPolicy``. 0 for none.
        evenly_first: whether actions are drawn evenly until there is a policy that has learnt; see ``Policy``.
        groups: whether the learner needs the groupmates.
        sequence_length: L, of the rows that count; 1 without a memory.
        ship_steps: steps that are worth being shipped together.
        bystander: its experience is of no use: it learns from a data set.
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
    bystander: bool
    self_play: bool
    allowance: Allowance


@dataclass(frozen=True, slots=True)
class Weights:
    """Newer weights of a behaviour's policy. Answered by ``Synchronized``.

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
        weights: of a network like the behaviour's own; empty if ``acts`` plays.
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
        behavior: name of the behaviour.
        learning: the team that learns.
        number: how often another team has begun to learn. Results of matches are of one such number.
        slots: behaviour id -> who plays for a team that does not learn.
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
    """The environments are there and wait for their first reset.

    Attributes:
        num_workers: how many they are. Workers are numbered from 0 in each actor.
    """

    num_workers: int


@dataclass(frozen=True, slots=True)
class Found:
    """A behaviour has appeared. The actor waits for ``Learn``."""

    found: NewBehavior


@dataclass(frozen=True, slots=True)
class Joined:
    """A team of a behaviour with self-play has appeared. The actor waits for ``Assignment``."""

    behavior_id: BehaviorId


class Matches(NamedTuple):
    """The outcome of the learning team's episodes; see ``SelfPlay.count``.

    Attributes:
        cast: number of the cast that played.
        num_episodes: that ended.
        num_steps: of the trajectories.
        results: of matches.
    """

    cast: int
    num_episodes: int
    num_steps: int
    results: Sequence[float]


@dataclass(frozen=True, slots=True)
class StatsReport:
    """Numbers of a behaviour since the last report of this kind.

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


@dataclass(frozen=True, slots=True)
class Experience:
    """Finished trajectories of a behaviour.

    Attributes:
        behavior: its name.
        counts: their sizes.
        place: where they stand, as the channel gave it with the room.
    """

    behavior: str
    counts: Counts
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
        agent_steps: of finished trajectories.
        episodes: that ended.
        collect_s: seconds of collecting: all below but waiting and synchronising.
        step_s: waiting for environments.
        act_s: deciding.
        wait_s: waiting for credit.
        synchronize_s: taking over weights.
        synchronizations: how often.
    """

    environment_steps: int = 0
    agent_steps: int = 0
    episodes: int = 0
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


class Room(NamedTuple):
    """Room for experience.

    Attributes:
        buffer: to be written into.
        place: names it in ``Experience``.
    """

    buffer: Buffer
    place: Any


class Channel(Protocol):
    """An actor's end: orders in, reports out."""

    def orders(self, *, wait: bool) -> Sequence[Order]:
        """Return the orders that have come, in order; with ``wait`` at least one.

        Raises:
            ActorEndedError: the learner is gone.
        """

    def report(self, report: Report) -> None:
        """Send a report. Raises ``ActorEndedError`` if the learner is gone."""

    def room(self, size: int) -> Room:
        """Return room for so many bytes of experience, which is reported next."""

    def weights(self, place: Any) -> Buffer:
        """Return the weights at this place."""


class Transport(Protocol):
    """The learner's end: all actors, numbered from 0. Nothing here waits but ``reports`` and ``close``.

    An actor that is gone is reported once as ``Failed`` with an ``ActorDiedError``; ``start`` makes another.
    """

    def __len__(self) -> int: ...

    @property
    def present(self) -> Sequence[int]:
        """The numbers of the actors that have not ended. For signal handlers, too."""

    def start(self, number: int) -> None:
        """Start an actor, in place of the last one of this number."""

    def post(self, number: int, order: Order) -> None:
        """Send an order. That an actor is gone shows in ``reports``."""

    def publish(self, number: int, behavior: str, version: int, weights: Buffer) -> None:
        """Send newer weights, as ``Weights``. The last ones of this behaviour were answered (``Synchronized``).

        ``weights`` are not changed in place: whoever gets the same object gets the same weights.
        """

    def experience(self, number: int, place: Any) -> tuple[Buffer, Callable[[], None]]:
        """Return the bytes at this place, and what gives the place back when they have been copied."""

    def reports(self, timeout_s: float | None) -> Sequence[tuple[int, Report]]:
        """Wait until something comes from any actor; return all that is there with the numbers of the actors.

        May return nothing before the time is over.
        """

    def drop(self, number: int) -> None:
        """End an actor at once. Nothing more is reported of it."""

    def close(self) -> None:
        """End all actors and wait for their end. May be called again."""

    def kill(self) -> None:
        """End all actors at once and do not wait. For signal handlers: quick, and takes no lock."""
