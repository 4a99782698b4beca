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
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

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
from trajtrainer.settings.trainer import TrainerSettings

if TYPE_CHECKING:  # An actor's process launches its players before it imports torch.
    from trajtrainer.learning.algos.acting import ActorPolicy, Policy
    from trajtrainer.learning.nn.actor import Actor

Buffer = NDArray[np.uint8]
REPORT = b"r"  # kind of a report's message, in addition to those in ``envs.workers.messages``
UNLIMITED = 1 << 62

_MOST_BYTES = 1 << 20  # maximum number of bytes sent per log, counted from its end
_MOST_FILES = 64
_LOG_NAME = re.compile(r"Player-\d{1,9}\.log")


class ActorEndedError(Exception):
    """The learner told this actor to end, or the learner itself has ended."""


class TransportLostError(EnvironmentFaultError):
    """All actors are lost, and none can be restarted."""


class ActorDiedError(EnvironmentFaultError):
    """An actor's process or machine died."""


# Orders from the learner.


@dataclass(frozen=True, slots=True)
class Reset:
    """Order to restart all episodes with these parameters. Other parameters keep their values."""

    parameters: Parameters


@dataclass(frozen=True, slots=True)
class SetParameters:
    """Order to change environment parameters without a reset."""

    parameters: Parameters


@dataclass(frozen=True, slots=True)
class Allowance:
    """Limits on what an actor may collect for one behavior. Replaces the behavior's previous allowance.

    Limits are totals since the start of the actor. The actor collects until any limit of any of its behaviors is
    reached.

    Attributes:
        rows: rows of all trajectories in the learner's buffer, which recurrent policies pad to whole sequences.
        steps: agent steps of all trajectories.
        opponent_steps: agent steps of the teams that do not learn.
        pauses: if True, the actor hands over nothing until a limit is reached or an episode is aborted. Then it hands
            over all finished steps, reports ``Paused``, and waits for the next allowance. If it has already exceeded
            the new limits, it pauses immediately. If False, it hands over steps while it collects, and does not report
            when it waits at a limit.
    """

    behavior: str
    rows: int = UNLIMITED
    steps: int = UNLIMITED
    opponent_steps: int = UNLIMITED
    pauses: bool = False


@dataclass(frozen=True, slots=True)
class StartActing:
    """Order to act for a behavior, sent in response to ``NewBehavior``."""

    behavior: str
    settings: TrainerSettings
    network: Actor  # the policy network with the newest weights, on the CPU
    version: int  # version of these weights
    seed: int  # seed for the policy's random choices
    noise: float  # exploration noise added to actions (``NoisyPolicy``); 0 for none
    evenly_first: bool  # draw actions uniformly until the first trained policy arrives (``ActorPolicy``)
    groups: bool  # True if the learner needs the groupmates' observations and actions
    ship_steps: int  # hand over finished steps once there are this many
    learns: bool  # False if the experience is not used, because the behavior learns from a data set
    self_play: bool  # True if only one team learns (``Assignment``)
    allowance: Allowance  # initial allowance


@dataclass(frozen=True, slots=True)
class LoadWeights:
    """Order to load newer weights into a behavior's policy. The actor responds with ``Synchronized``."""

    behavior: str
    version: int
    place: Any  # location of the weights, in a format known to the channel


class Opponent(NamedTuple):
    """The policy of a team that does not learn: loaded from a file, or the behavior's network with other weights."""

    weights: Mapping[str, NDArray[Any]]  # empty if ``acts`` is given
    acts: Policy | None
    seed: int  # seed for its random choices


@dataclass(frozen=True, slots=True)
class Assignment:
    """The teams' policies in self-play. Sent in response to ``NewTeam``, and whenever they change."""

    behavior: str
    learning: int  # the team that learns
    number: int  # how often the learning team has changed; match results include this number
    opponents: Mapping[str, Opponent]  # behavior id -> opponent, for each team that does not learn


@dataclass(frozen=True, slots=True)
class End:
    """Order to close the environments and exit."""


Order = Reset | SetParameters | Allowance | StartActing | LoadWeights | Assignment | End


# Reports to the learner.


@dataclass(frozen=True, slots=True)
class Hello:
    """An actor's first report, with the version of this package that it runs."""

    version: str


@dataclass(frozen=True, slots=True)
class Ready:
    """The environments have started, and are waiting for their first reset."""


@dataclass(frozen=True, slots=True)
class NewBehavior:
    """The first agents of a behavior have appeared. The actor waits for ``StartActing``."""

    behavior_id: BehaviorId
    spec: BehaviorSpec
    obs_dtypes: Sequence[np.dtype[Any]]  # one per sensor
    raw_image_order: RawImageOrder = RawImageOrder.AUTO  # detected from its raw images; ``AUTO`` if it has none


@dataclass(frozen=True, slots=True)
class NewTeam:
    """A new team of a behavior with self-play has appeared. The actor waits for ``Assignment``."""

    behavior_id: BehaviorId


class Matches(NamedTuple):
    """Results of the learning team's finished episodes, for ``SelfPlay.count``."""

    assignment: int  # ``Assignment.number`` when they were played
    num_episodes: int
    num_steps: int
    results: Sequence[float]


@dataclass(frozen=True, slots=True)
class StatsReport:
    """A behavior's statistics and counters since its previous ``StatsReport``."""

    behavior: str
    statistics: Mapping[str, StatsSummary]
    matches: Sequence[Matches] = ()
    opponent_steps: int = 0


@dataclass(slots=True)
class Experience:
    """Finished trajectories of a behavior, from an actor outside the learner's loop."""

    behavior: str
    rows: int  # number of rows in the learner's buffer
    place: Any  # location of the bytes; the transport replaces it with (counts, bytes, function that frees the bytes)

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
    """The actor has reached a limit of an allowance with ``pauses``, and has handed over all finished steps."""

    behavior: str


@dataclass(frozen=True, slots=True)
class Synchronized:
    """The actor has loaded the weights it was sent, so their memory may be reused."""

    behavior: str


@dataclass(slots=True)
class Progress:
    """Counters since the start of an actor; times are in seconds. Sent after the experience that they include."""

    environment_steps: int = 0  # answered messages from environments
    collect_s: float = 0.0  # stepping, acting and recording
    step_s: float = 0.0  # waiting for environments
    act_s: float = 0.0
    wait_s: float = 0.0  # waiting at a limit
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
    """The actor's end of the connection. ``orders`` and ``report`` raise ``ActorEndedError`` if the learner ended."""

    def orders(self, *, wait: bool) -> Sequence[Order]:
        """Return the orders that have arrived, oldest first. With ``wait``, block until there is at least one."""

    def report(self, report: Report) -> None: ...

    def begin(self, order: StartActing, found: NewBehavior) -> tuple[ActorPolicy, StatsReporter]:
        """Create the policy that acts for a new behavior, and its statistics reporter."""

    def hand_over(self, order: StartActing, pool: RowPool, batches: Sequence[TrajectoryBatch], rows: int) -> None:
        """Report trajectories as ``Experience``. From then on, the channel owns their rows in ``pool``."""

    def statistics(self, behavior: str) -> Mapping[str, StatsSummary]:
        """Return the statistics to send. Empty if the actor shares the learner's reporter."""

    def load(self, order: LoadWeights, policy: ActorPolicy) -> None:
        """Load newer weights into a policy."""


ReportHandler = Callable[[int, Report], None]
"""Handles a report from the actor with this number."""


class LearnerEnd(Protocol):
    """The learner's side of one behavior (``link.BehaviorLink``). An actor in the same loop uses it directly.

    Attributes:
        name: name of the behavior.
        policy: the policy that acts.
        reporter: reporter of the behavior's statistics.
        source: passes experience to the trainer; None if the trainer does not use it.
    """

    name: str
    policy: ActorPolicy
    reporter: StatsReporter
    source: ExperienceSource | None

    def add_experience(self, number: int, chunk: Chunk) -> None:
        """Add finished trajectories of the actor with this number."""


class Transport(Protocol):
    """The learner's end of the connection to all actors, which are numbered from 0. Only ``poll`` and ``close`` block.

    If an actor dies, ``poll`` reports ``Failed`` with an ``ActorDiedError`` once. ``start`` replaces it.

    Attributes:
        runs_meanwhile: True if actors keep running between two calls of ``poll``, so that they can receive messages
            then.
        waited_s: seconds that the learner was idle, waiting for actors.
    """

    runs_meanwhile: bool
    waited_s: float

    def __len__(self) -> int: ...

    @property
    def present(self) -> Sequence[int]:
        """The numbers of the running actors. Can be read in a signal handler."""

    @property
    def shared(self) -> tuple[Environment, Mapping[str, BehaviorSpec]] | None:
        """The environment of an actor in this loop and its specs, for use between two polls; otherwise None."""

    def add(self, behavior: LearnerEnd) -> None:
        """Add a new behavior. An actor in this loop uses the objects in ``behavior`` directly."""

    def start(self, number: int) -> None:
        """Start an actor. It replaces the previous actor with this number, if any."""

    def post(self, number: int, order: Order) -> None:
        """Send an order. If the actor has died, ``poll`` reports that."""

    def publish(self, number: int, behavior: str, version: int, weights: Callable[[], Buffer]) -> None:
        """Send newer weights, as ``LoadWeights``. The actor must have answered the previous ones of this behavior.

        The bytes that ``weights`` returns must never change, so the same object always means the same weights.
        """

    def poll(self, timeout_s: float | None, handle: ReportHandler) -> int:
        """Pass reports from actors to ``handle``. If there are no reports yet, wait for the first one.

        Returns the number of reports. If the actor runs in this loop, it is the number of messages from its
        environment, which may be 0 even before the timeout.
        """

    def wake(self) -> None:
        """Wake up ``poll`` if it is waiting for the trainer. Can be called from any thread."""

    def drop(self, number: int) -> None:
        """Kill an actor. ``poll`` returns no further reports from it."""

    def close(self) -> None:
        """Stop all actors and wait until they have exited. Can be called more than once."""

    def kill(self) -> None:
        """Kill all actors without waiting. Safe in a signal handler: it is quick and takes no lock."""


# Data for starting an actor.


class NodeLogs:
    """The ``PlayerLogs`` of an actor that may run on another node.

    On the learner's node, players write their logs directly into ``folder`` (None for no logs). On other nodes, they
    write into a temporary folder, and the actor sends the result of ``collect`` to the learner.
    """

    def __init__(self, folder: Path | None, node: str) -> None:
        self.folder = None if folder is None else folder.absolute()  # the actor's working directory may differ
        self._node = node
        self._is_away = False
        self._is_temporary = False

    def arrive(self, node: str) -> None:
        """Set the node that the actor runs on."""
        self._is_away = self.folder is not None and node != self._node

    def player_log(self, worker: int) -> Path | None:
        if self._is_away and not self._is_temporary:
            self.folder, self._is_temporary = Path(tempfile.mkdtemp(prefix="trajtrainer-logs-")), True
        return None if self.folder is None else self.folder / f"Player-{worker}.log"

    def collect(self) -> dict[str, bytes]:
        """Return the last part of each log in the temporary folder, as name -> text, and delete the folder."""
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
    """Append the result of ``NodeLogs.collect`` to the logs, which may have a part from before a restart.

    Raises:
        OSError: the logs cannot be written.
    """
    for name, text in logs.items():
        if _LOG_NAME.fullmatch(name):  # ignore unsafe names from other machines
            with (folder / name).open("ab") as file:
                file.write(text)


@dataclass(frozen=True, slots=True)
class ActorTask:
    """The data for starting an actor. Picklable if the actor runs in another process."""

    number: int  # from 0
    make_environment: Callable[[], Environment]  # creates and starts the environments
    cores: Sequence[int] | None  # CPU cores for the actor and its child processes; None for all cores
    log_level: int  # log level of this package
    logs: NodeLogs | None = None  # the players' logs, if they may have to be sent to the learner


def log_level(number: int, *, debug: bool) -> int:
    """Return the log level of one actor.

    All actors log the same lines when they start, so only the first actor logs more than warnings.
    """
    level = logging.getLogger("trajtrainer").getEffectiveLevel()
    return level if number == 0 or debug else max(level, logging.WARNING)
