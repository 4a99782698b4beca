"""The messages between the learner and its actors, and the two ends that carry them: a channel and a transport.

The learner sends orders and an actor sends reports, which are plain data (docs/explanation/architecture.md#messages).
Experience and weights travel separately, in a place that only the channel and the transport understand: rows of a pool
in the learner's loop, shared memory for threads and processes, an object store for other machines. ``PackedLayout`` and
``WeightsLayout`` define the layout of their bytes.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from trajtrainer.core.errors import EnvironmentFaultError
from trajtrainer.core.image_order import RawImageOrder
from trajtrainer.core.spec import BehaviorId, BehaviorSpec
from trajtrainer.core.stats import StatsReporter, StatsSummary
from trajtrainer.envs.protocol import Environment, Parameters
from trajtrainer.experience.rows import RowPool
from trajtrainer.experience.source import Chunk, ExperienceSource, PackedChunk, PackedLayout
from trajtrainer.experience.trajectory import TrajectoryBatch, of_workers
from trajtrainer.learning.algos.acting import ActorPolicy, Policy
from trajtrainer.learning.nn.actor import Actor
from trajtrainer.settings.trainer import TrainerSettings

Buffer = NDArray[np.uint8]
UNLIMITED = 1 << 62

_MOST_BYTES = 1 << 20  # number of bytes sent from the end of each log
_MOST_FILES = 64
_LOG_NAME = re.compile(r"Player-\d{1,9}\.log")


class ActorEndedError(Exception):
    """The learner has told this actor to end, or is gone itself."""


class TransportLostError(EnvironmentFaultError):
    """All actors are gone, and restarts cannot bring them back."""


class ActorDiedError(EnvironmentFaultError):
    """An actor's process or machine has died."""


# Orders from the learner.


@dataclass(frozen=True, slots=True)
class Reset:
    """Restart all episodes with these parameters. Parameters that are not listed keep their values."""

    parameters: Parameters


@dataclass(frozen=True, slots=True)
class SetParameters:
    """Change parameters of the environments without a reset."""

    parameters: Parameters


@dataclass(frozen=True, slots=True)
class Allowance:
    """Limits on what an actor may collect for one behavior. Replaces the behavior's previous allowance.

    Limits are absolute: they count from the start of the actor, which collects until any behavior reaches any limit.

    Attributes:
        rows: rows of all trajectories, as the learner's buffer counts them: with a memory, in whole sequences.
        steps: agent steps of all trajectories.
        opponent_steps: agent steps of the teams that do not learn.
        pauses: if True, the actor hands over nothing until a limit is reached or an episode is aborted. It then hands
            over everything that is finished, reports ``Paused``, and waits for the next allowance. If it has already
            collected more than an allowance permits, it pauses at once. If False, it hands over as it collects, and
            waits at a limit without reporting that.
    """

    behavior: str
    rows: int = UNLIMITED
    steps: int = UNLIMITED
    opponent_steps: int = UNLIMITED
    pauses: bool = False


@dataclass(frozen=True, slots=True)
class StartActing:
    """Act for a behavior; the answer to ``NewBehavior``."""

    behavior: str
    settings: TrainerSettings
    network: Actor  # makes the decisions, with the newest weights; on the CPU
    version: int  # version of these weights
    seed: int  # seed for the policy's random choices
    noise: float  # exploration noise of its actions (``NoisyPolicy``); 0 for none
    evenly_first: bool  # draw actions uniformly until the first trained policy arrives (``ActorPolicy``)
    groups: bool  # True if the learner needs data of groupmates
    ship_steps: int  # number of finished steps that are worth handing over
    learns: bool  # False for a behavior that learns from a data set: its experience is not used
    self_play: bool  # True if only one team learns (``Assignment``)
    allowance: Allowance  # the first one


@dataclass(frozen=True, slots=True)
class LoadWeights:
    """Load newer weights into a behavior's policy. Answered by ``Synchronized``."""

    behavior: str
    version: int
    place: Any  # where the channel finds the weights


class Opponent(NamedTuple):
    """The player of a team that does not learn: a policy from a file, or a network like the behavior's own."""

    weights: Mapping[str, NDArray[Any]]  # empty if ``acts`` plays
    acts: Policy | None
    seed: int  # seed for its random choices


@dataclass(frozen=True, slots=True)
class Assignment:
    """Who plays whom in self-play; the answer to ``NewTeam``, and sent again whenever it changes."""

    behavior: str
    learning: int  # the team that learns
    number: int  # number of changes of the learning team so far; match results refer to it
    opponents: Mapping[str, Opponent]  # behavior id -> opponent, for each team that does not learn


@dataclass(frozen=True, slots=True)
class End:
    """Close the environments and exit."""


Order = Reset | SetParameters | Allowance | StartActing | LoadWeights | Assignment | End


# Reports to the learner.


@dataclass(frozen=True, slots=True)
class Hello:
    """An actor's first report, with the version of this package that it runs."""

    version: str


@dataclass(frozen=True, slots=True)
class Ready:
    """The environments have started and wait for their first reset."""


@dataclass(frozen=True, slots=True)
class NewBehavior:
    """A behavior's agents appear for the first time. The actor waits for ``StartActing``."""

    behavior_id: BehaviorId
    spec: BehaviorSpec
    obs_dtypes: Sequence[np.dtype[Any]]  # per sensor
    raw_image_order: RawImageOrder = RawImageOrder.AUTO  # as detected in its raw images; ``AUTO`` without raw images


@dataclass(frozen=True, slots=True)
class NewTeam:
    """A team of a behavior with self-play appears. The actor waits for ``Assignment``."""

    behavior_id: BehaviorId


class Matches(NamedTuple):
    """Finished episodes of the learning team, for ``SelfPlay.count``."""

    assignment: int  # ``Assignment.number`` when they were played
    num_episodes: int
    num_steps: int
    results: Sequence[float]


@dataclass(frozen=True, slots=True)
class StatsReport:
    """A behavior's statistics and counters since the last such report."""

    behavior: str
    statistics: Mapping[str, StatsSummary]
    matches: Sequence[Matches] = ()
    opponent_steps: int = 0


@dataclass(slots=True)
class Experience:
    """Finished trajectories of a behavior, from an actor elsewhere."""

    behavior: str
    rows: int  # number of rows that they take up in the learner's buffer
    place: Any  # for the transport, which replaces it with (counts, bytes, function that frees the bytes)

    def chunk(self, layout: PackedLayout, first_worker: int) -> PackedChunk:
        """Return the experience as a chunk. ``first_worker`` is the learner's number for the actor's worker 0."""
        counts, buffer, free = self.place
        return PackedChunk(of_workers(layout.over(buffer, counts), first_worker), self.rows, free)


@dataclass(frozen=True, slots=True)
class Aborted:
    """The unfinished episodes of a worker were aborted (``EpisodesAborted``). Sent in order with ``Experience``."""

    behavior: str
    worker: int


@dataclass(frozen=True, slots=True)
class Paused:
    """The actor has reached an allowance that pauses, and has handed over everything it had finished."""

    behavior: str


@dataclass(frozen=True, slots=True)
class Synchronized:
    """The actor now uses the weights it was sent; the memory that they arrived in may be reused."""

    behavior: str


@dataclass(slots=True)
class Progress:
    """Counters of an actor since its start; times in seconds. Reported after the experience that they count."""

    environment_steps: int = 0  # messages from environments that were answered
    collect_s: float = 0.0  # stepping, acting and recording
    step_s: float = 0.0  # waiting for environments
    act_s: float = 0.0
    wait_s: float = 0.0  # at a limit
    synchronize_s: float = 0.0
    synchronizations: int = 0

    def plus(self, other: Progress) -> Progress:
        return Progress(*(mine + theirs for mine, theirs in zip(astuple(self), astuple(other), strict=True)))


@dataclass(frozen=True, slots=True)
class Failed:
    """The actor exits because of this error."""

    error: Exception


BehaviorReport = StatsReport | Experience | Aborted | Paused | Synchronized
Report = Hello | Ready | NewBehavior | NewTeam | Progress | Failed | BehaviorReport


class Channel(Protocol):
    """An actor's end. ``orders`` and ``report`` raise ``ActorEndedError`` once the learner is gone."""

    def orders(self, *, wait: bool) -> Sequence[Order]:
        """Return the orders that have arrived, oldest first. With ``wait``, block until there is at least one."""

    def report(self, report: Report) -> None: ...

    def begin(self, order: StartActing, found: NewBehavior) -> tuple[ActorPolicy, StatsReporter]:
        """Make the policy that acts for a new behavior, and the reporter of its statistics."""

    def hand_over(self, order: StartActing, pool: RowPool, batches: Sequence[TrajectoryBatch], rows: int) -> None:
        """Report trajectories of the pool as ``Experience``. From then on the channel owns their rows."""

    def statistics(self, behavior: str) -> Mapping[str, StatsSummary]:
        """Return the statistics to send; none if the reporter is the learner's own."""

    def load(self, order: LoadWeights, policy: ActorPolicy) -> None:
        """Load newer weights into a policy."""


ReportHandler = Callable[[int, Report], None]
"""Handles a report from the actor with this number."""


class LearnerEnd(Protocol):
    """The learner's end of one behavior (``link.BehaviorLink``), which an actor in the same loop uses directly.

    Attributes:
        name: name of the behavior.
        policy: the policy that acts.
        reporter: reporter of the behavior's statistics.
        source: passes experience to the trainer; None if nothing is learned from it.
    """

    name: str
    policy: ActorPolicy
    reporter: StatsReporter
    source: ExperienceSource | None

    def add_experience(self, number: int, chunk: Chunk) -> None:
        """Add finished trajectories of the actor with this number."""


class Transport(Protocol):
    """The learner's end of the connection to all actors, numbered from 0. Only ``poll`` and ``close`` wait.

    An actor that dies is reported once, as ``Failed`` with an ``ActorDiedError``; ``start`` starts a new one.

    Attributes:
        runs_meanwhile: True if actors run between two calls of ``poll``, so that sending them messages then is useful.
        waited_s: seconds that the learner spent waiting for actors, with nothing else to do.
    """

    runs_meanwhile: bool
    waited_s: float

    def __len__(self) -> int: ...

    @property
    def present(self) -> Sequence[int]:
        """The numbers of the actors that have not ended. May be read in a signal handler."""

    @property
    def shared(self) -> tuple[Environment, Mapping[str, BehaviorSpec]] | None:
        """The environment in this loop and its specs, for use between two polls; None if actors run elsewhere."""

    def add(self, behavior: LearnerEnd) -> None:
        """Add a new behavior. An actor in the learner's loop uses the objects of ``behavior`` directly."""

    def start(self, number: int) -> None:
        """Start an actor, replacing the previous one with this number."""

    def post(self, number: int, order: Order) -> None:
        """Send an order. If the actor has died, ``poll`` reports that."""

    def publish(self, number: int, behavior: str, version: int, weights: Callable[[], Buffer]) -> None:
        """Send newer weights, as ``LoadWeights``. The actor must have answered the previous ones of this behavior.

        ``weights`` returns bytes that never change: the same object means the same weights.
        """

    def poll(self, timeout_s: float | None, handle: ReportHandler) -> int:
        """Pass reports from actors to ``handle``, waiting for the first one if there is none yet.

        Returns the number of reports or, with the actor in the loop, the number of messages from its environment. It
        may be 0 even before the timeout.
        """

    def wake(self) -> None:
        """Wake up ``poll`` if it waits for the trainer, which has made progress. May be called in any thread."""

    def drop(self, number: int) -> None:
        """Kill an actor. Nothing more is reported about it."""

    def close(self) -> None:
        """End all actors and wait until they are gone. May be called more than once."""

    def kill(self) -> None:
        """Kill all actors without waiting. Safe in a signal handler: it is quick and takes no lock."""


# Data for starting an actor.


class NodeLogs:
    """The ``PlayerLogs`` of one actor that may run on another node.

    On the node of the run, players write directly into the run's ``folder`` (None if nothing may be written). On other
    nodes, they write into a temporary folder, and ``collect`` returns the logs for the actor to send to the learner.
    """

    def __init__(self, folder: Path | None, node: str) -> None:
        self.folder = None if folder is None else folder.absolute()  # the actor may have another working directory
        self._node = node
        self._is_away = False
        self._is_temporary = False

    def arrive(self, node: str) -> None:
        """Note which node the actor runs on."""
        self._is_away = self.folder is not None and node != self._node

    def player_log(self, worker: int) -> Path | None:
        if self._is_away and not self._is_temporary:
            self.folder, self._is_temporary = Path(tempfile.mkdtemp(prefix="trajtrainer-logs-")), True
        return None if self.folder is None else self.folder / f"Player-{worker}.log"

    def collect(self) -> dict[str, bytes]:
        """Return the ends of all logs in the temporary folder, name -> text, and delete the folder."""
        if not self._is_temporary or self.folder is None:
            return {}
        logs = {}
        for path in sorted(self.folder.glob("Player-*.log"))[:_MOST_FILES]:
            with path.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                file.seek(max(0, size - _MOST_BYTES))
                logs[path.name] = file.read(_MOST_BYTES)
        shutil.rmtree(self.folder, ignore_errors=True)
        return logs


def write_logs(folder: Path, logs: Mapping[str, bytes]) -> None:
    """Append a result of ``NodeLogs.collect``, so that the logs of a restarted actor continue.

    Raises:
        OSError: the logs cannot be written.
    """
    for name, text in logs.items():
        if _LOG_NAME.fullmatch(name):  # the names come from another machine
            with (folder / name).open("ab") as file:
                file.write(text)


@dataclass(frozen=True, slots=True)
class ActorTask:
    """Everything an actor needs to start. Picklable, unless the actor stays in this process."""

    number: int  # from 0
    make_environment: Callable[[], Environment]  # starts its environments
    cores: Sequence[int] | None  # cores that the actor and its child processes are bound to; None for all
    log_level: int  # level of this package's log
    logs: NodeLogs | None = None  # logs of its players, if they may have to be sent to the learner


def log_level(number: int, *, debug: bool) -> int:
    """Return the log level of one actor.

    All actors log the same lines while they start, so those of the first actor are enough. Warnings come from all.
    """
    level = logging.getLogger("trajtrainer").getEffectiveLevel()
    return level if number == 0 or debug else max(level, logging.WARNING)
