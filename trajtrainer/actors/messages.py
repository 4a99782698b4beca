"""What the learner and its actors tell each other, and the two ends that carry it: a channel and a transport.

The learner sends orders, an actor sends reports; docs/actors.md shows their sequence. Both are plain data. Experience
and weights travel separately, in a place that only channel and transport understand: rows of a pool in the learner's
loop, shared memory for threads and processes, an object store for other machines. ``PackedLayout`` and
``WeightsLayout`` lay out their bytes.
"""

from __future__ import annotations

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

from trajtrainer.algos.acting import Acts, Policy
from trajtrainer.core.errors import EnvironmentFaultError
from trajtrainer.core.image_order import RawImageOrder
from trajtrainer.core.spec import BehaviorId, BehaviorSpec
from trajtrainer.core.stats import StatsReporter, StatsSummary
from trajtrainer.data.rows import RowPool
from trajtrainer.data.source import Chunk, ExperienceSource, PackedLayout
from trajtrainer.data.trajectory import TrajectoryBatch
from trajtrainer.envs.protocol import Environment, Parameters
from trajtrainer.nn.actor import Actor as ActingNetwork
from trajtrainer.settings.trainer import TrainerSettings

_MOST_BYTES = 1 << 20  # of one file: its end
_MOST_FILES = 64
_NAME = re.compile(r"Player-\d{1,9}\.log")


class NodeLogs:
    """The ``PlayerLogs`` of one actor: in its folder of the run, or on another node in a folder to be sent there.

    Args:
        folder: of the run; None if nothing may be written.
        node: that the folder is on.
    """

    def __init__(self, folder: Path | None, node: str) -> None:
        self.folder = folder
        self._node = node
        self._is_away = False
        self._has_own = False

    def arrive(self, node: str) -> None:
        """Note which node the actor runs on."""
        self._is_away = self.folder is not None and node != self._node

    def player_log(self, worker: int) -> Path | None:
        if self._is_away and not self._has_own:
            self.folder, self._has_own = Path(tempfile.mkdtemp(prefix="trajtrainer-logs-")), True
        return None if self.folder is None else self.folder / f"Player-{worker}.log"

    def take(self) -> dict[str, bytes]:
        """Take the ends of all logs that the run's folder does not have: name -> text."""
        if not self._has_own or self.folder is None:
            return {}
        found = {path.name: _end_of(path) for path in sorted(self.folder.glob("Player-*.log"))[:_MOST_FILES]}
        shutil.rmtree(self.folder, ignore_errors=True)
        return found


def write_logs(folder: Path, logs: Mapping[str, bytes]) -> None:
    """Write what ``NodeLogs.take`` gave. The logs of an actor that was started again are continued.

    Raises:
        OSError: they cannot be written.
    """
    for name, text in logs.items():
        if _NAME.fullmatch(name):
            with (folder / name).open("ab") as file:
                file.write(text)


def _end_of(path: Path) -> bytes:
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        file.seek(max(0, size - _MOST_BYTES))
        return file.read(_MOST_BYTES)


Buffer = NDArray[np.uint8]
UNLIMITED = 1 << 62


class ActorEndedError(Exception):
    """The learner has ended this actor, or is gone."""


class ActorDiedError(EnvironmentFaultError):
    """An actor's process or machine is gone."""


@dataclass(frozen=True, slots=True)
class ActorTask:
    """What an actor needs to start. Picklable, unless the actor stays in this process."""

    number: int  # from 0
    make_environment: Callable[[], Environment]  # starts its environments
    cores: Sequence[int] | None  # to which the actor and what it starts are bound; None for all
    log_level: int  # of this package
    logs: NodeLogs | None = None  # of its players, where they may have to be sent to the learner


# Orders, from the learner.


@dataclass(frozen=True, slots=True)
class Reset:
    """Begin all episodes again with these parameters; parameters that are not named stay as they are."""

    parameters: Parameters


@dataclass(frozen=True, slots=True)
class SetParameters:
    """Change parameters of the environments without a reset."""

    parameters: Parameters


@dataclass(frozen=True, slots=True)
class Allowance:
    """How far an actor may collect for one behavior. Replaces the behavior's last allowance.

    Limits are absolute: they count from the start of the actor, which collects until any behavior reaches any limit.

    Attributes:
        rows: of all trajectories, as the learner's buffer counts them: with a memory, in whole sequences.
        steps: agent steps of all trajectories.
        opponent_steps: of the teams that do not learn.
        pauses: hand over nothing until a limit is reached or an episode is aborted; then hand over everything that is
            finished, report ``Paused``, and wait for the next allowance. An allowance below what was collected pauses
            at once. Without this flag the actor hands over from time to time, and waits at a limit without a report.
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
    network: ActingNetwork  # makes the decisions, with the newest weights; on the CPU
    version: int  # of these weights
    seed: int  # of what the policy draws
    noise: float  # exploration noise of its actions (``NoisyPolicy``); 0 for none
    evenly_first: bool  # draw actions uniformly until a policy arrives that has learned (``Policy``)
    groups: bool  # the learner needs the groupmates
    ship_steps: int  # how many are worth handing over
    learns: bool  # the experience is used; False for a behavior that learns from a data set
    self_play: bool  # only one of its teams learns (``Assignment``)
    allowance: Allowance  # the first one


@dataclass(frozen=True, slots=True)
class Weights:
    """Load newer weights of a behavior's policy. Answered by ``Synchronized``."""

    behavior: str
    version: int
    place: Any  # for the channel


class Opponent(NamedTuple):
    """Who plays for a team that does not learn: a player from a file, or a network like the behavior's own."""

    weights: Mapping[str, NDArray[Any]]  # empty if ``acts`` plays
    acts: Acts | None
    seed: int  # of what it draws


@dataclass(frozen=True, slots=True)
class Assignment:
    """Who plays whom in self-play; the answer to ``NewTeam``, and sent again whenever it changes."""

    behavior: str
    learning: int  # the team that learns
    number: int  # how often the learning team has changed; results of matches belong to one such number
    opponents: Mapping[str, Opponent]  # by behavior id, for each team that does not learn


@dataclass(frozen=True, slots=True)
class End:
    """Close the environments and end."""


Order = Reset | SetParameters | Allowance | StartActing | Weights | Assignment | End


# Reports, to the learner.


@dataclass(frozen=True, slots=True)
class Hello:
    """An actor's first report: the version of this package where it runs."""

    version: str


@dataclass(frozen=True, slots=True)
class Connected:
    """The environments are there and wait for their first reset."""


@dataclass(frozen=True, slots=True)
class NewBehavior:
    """A behavior's agents appear for the first time. The actor waits for ``StartActing``."""

    behavior_id: BehaviorId
    spec: BehaviorSpec
    obs_dtypes: Sequence[np.dtype[Any]]  # per sensor
    raw_image_order: RawImageOrder = RawImageOrder.AUTO  # as found in its raw images; ``AUTO`` without any


@dataclass(frozen=True, slots=True)
class NewTeam:
    """A team of a behavior with self-play appears. The actor waits for ``Assignment``."""

    behavior_id: BehaviorId


class Matches(NamedTuple):
    """Episodes of the learning team, for ``SelfPlay.count``."""

    assignment: int  # the number of the one that they were played by
    num_episodes: int
    num_steps: int
    results: Sequence[float]


@dataclass(frozen=True, slots=True)
class StatsReport:
    """Numbers of a behavior since the last such report."""

    behavior: str
    statistics: Mapping[str, StatsSummary]
    matches: Sequence[Matches] = ()
    opponent_steps: int = 0


@dataclass(slots=True)
class Experience:
    """Finished trajectories of a behavior."""

    behavior: str
    rows: int  # that they take in the learner's buffer
    place: Any  # for the transport


@dataclass(frozen=True, slots=True)
class Aborted:
    """The unfinished episodes of a worker have ended (``EpisodesAborted``). In order with ``Experience``."""

    behavior: str
    worker: int


@dataclass(frozen=True, slots=True)
class Paused:
    """The actor has reached an allowance that pauses it, and has handed over everything it finished."""

    behavior: str


@dataclass(frozen=True, slots=True)
class Synchronized:
    """The actor acts by the weights it was sent, and their place is free for the next ones."""

    behavior: str


@dataclass(slots=True)
class Progress:
    """What an actor has done since its start. Times are in seconds. Follows what it has handed over."""

    environment_steps: int = 0  # messages of environments that were answered
    collect_s: float = 0.0  # stepping, acting and recording
    step_s: float = 0.0  # waiting for environments
    act_s: float = 0.0
    wait_s: float = 0.0  # at its limit
    synchronize_s: float = 0.0
    synchronizations: int = 0

    def plus(self, other: Progress) -> Progress:
        return Progress(*(mine + theirs for mine, theirs in zip(astuple(self), astuple(other), strict=True)))


@dataclass(frozen=True, slots=True)
class Failed:
    """The actor ends because of this error."""

    error: Exception


BehaviorReport = StatsReport | Experience | Aborted | Paused | Synchronized
Report = Hello | Connected | NewBehavior | NewTeam | Progress | Failed | BehaviorReport


class Channel(Protocol):
    """An actor's end: orders in, reports out. Both raise ``ActorEndedError`` if the learner is gone."""

    def orders(self, *, wait: bool) -> Sequence[Order]:
        """Return the orders that have come, in order; with ``wait`` at least one."""

    def report(self, report: Report) -> None: ...

    def begin(self, order: StartActing, found: NewBehavior) -> tuple[Policy, StatsReporter]:
        """Return the policy that acts for a new behavior, and the reporter of its statistics."""

    def hand_over(self, order: StartActing, pool: RowPool, batches: Sequence[TrajectoryBatch], rows: int) -> None:
        """Report trajectories of the pool as ``Experience``. Their rows belong to the channel from then on."""

    def statistics(self, behavior: str) -> Mapping[str, StatsSummary]:
        """Return the statistics that have to be reported: none where the reporter is the learner's own."""

    def load(self, order: Weights, policy: Policy) -> None:
        """Load newer weights into a policy."""


Take = Callable[[int, Report], None]
"""Takes in a report of the actor with this number."""


class Transport(Protocol):
    """The learner's end: all actors, numbered from 0. Only ``poll`` and ``close`` wait.

    An actor that is gone is reported once, as ``Failed`` with an ``ActorDiedError``; ``start`` makes another.

    Attributes:
        runs_meanwhile: actors run between two calls of ``poll``, so what is sent after one is of use to them.
        waited_s: seconds in which the learner had nothing to do but wait for actors.
    """

    runs_meanwhile: bool
    waited_s: float

    def __len__(self) -> int: ...

    @property
    def present(self) -> Sequence[int]:
        """The numbers of the actors that have not ended. Safe in signal handlers."""

    @property
    def shared(self) -> tuple[Environment, Mapping[str, BehaviorSpec]] | None:
        """The environment in this loop, which others may step between two polls, and its specs; None elsewhere."""

    def add(self, behavior: str, policy: Policy, reporter: StatsReporter, source: ExperienceSource | None) -> None:
        """Let an actor in the learner's own loop use these parts of a behavior that has appeared."""

    def start(self, number: int) -> None:
        """Start an actor, in place of the last one of this number."""

    def post(self, number: int, order: Order) -> None:
        """Send an order. If the actor is gone, ``poll`` reports it."""

    def publish(self, number: int, behavior: str, version: int, weights: Callable[[], Buffer]) -> None:
        """Send newer weights, as ``Weights``, once the actor has taken the last ones of this behavior.

        ``weights`` gives bytes that never change: the same object means the same weights.
        """

    def chunk(self, number: int, report: Experience, layout: PackedLayout, first_worker: int) -> Chunk | None:
        """Return the experience of a report; None if the actor is gone, and its memory with it.

        ``first_worker`` is the learner's number for the actor's worker 0.
        """

    def poll(self, timeout_s: float | None, take: Take) -> int:
        """Pass on what actors report; wait if there is nothing.

        Returns how much came: reports, or in the loop messages of the environment. May be 0 before the timeout.
        """

    def drop(self, number: int) -> None:
        """End an actor at once. Nothing more is reported of it."""

    def close(self) -> None:
        """End all actors and wait for their end. May be called again."""

    def kill(self) -> None:
        """End all actors at once and do not wait. Safe in signal handlers: quick, and takes no lock."""
