"""The actors of a run, as its loop sees them: one or many, in the loop itself, in threads, processes or on nodes.

Who waits for whom, and who owns what::

    actor                       transport         pool, in the loop          trainer
    synchronize  <-- weights, assignment, allowance -- synchronize <= queue = publish
    step                                              |                       |
      waits for environments                          |                       |
    hand over    -- experience, statistics, progress -> take -> inbox         |
      waits at its limit                              feed ===== source ====> advance
                                                      |                       |
                                          waits for actors,             in its own thread
                                          0.25 s at most                waits for experience

A chunk is the actor's until it is handed over, and the source's until it is drained. Weights on their way are the
transport's until the actor answers (``Synchronized``). Killing an actor costs its unfinished episodes and what it has
not handed over; killing the learner, what came since the last checkpoint; killing a player, its own episodes.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from trajtrainer.actors.collector import look
from trajtrainer.actors.link import BehaviorLink, LearnerEnd
from trajtrainer.actors.messages import (
    Aborted,
    ActorDiedError,
    Buffer,
    Connected,
    Counters,
    Experience,
    Failed,
    Found,
    Hello,
    Joined,
    NewBehavior,
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
from trajtrainer.actors.transports.cluster import ClusterLostError
from trajtrainer.core.errors import EnvironmentFaultError, UnsupportedError
from trajtrainer.core.image_order import RawImageOrder
from trajtrainer.core.timers import Timers
from trajtrainer.core.version import __version__
from trajtrainer.envs.protocol import Parameters
from trajtrainer.settings.environment import EnvironmentSettings, Sampler
from trajtrainer.unity.faults import LaunchError, PlayerTimeoutError, PlayerVersionError, PortInUseError
from trajtrainer.workers.supervisor import Member, Phase, Rules, Supervisor

_LOGGER = logging.getLogger(__name__)

EndFactory = Callable[[NewBehavior], LearnerEnd]
"""Makes the learner's end of a behavior. Called once per name, when it first appears."""


@dataclass(slots=True)
class ActorHistory:
    """What an actor has done.

    Attributes:
        before: until its last start.
        counters: since then.
        first_s: when it came up first; None before.
    """

    before: Counters = field(default_factory=Counters)
    counters: Counters = field(default_factory=Counters)
    first_s: float | None = None

    @property
    def total(self) -> Counters:
        """What it has done in the whole run."""
        return self.before.plus(self.counters)


class ActorPool:
    """Steps the actors of a run: takes in what they report, and gives them allowances, policies and parameters.

    The constructor starts all actors and returns when the first has its environments; the others come when they are
    ready. An actor that dies is started again within the quotas of the settings; beyond them it is left out, and the
    others go on. All read raw images in one order: an actor that has found another than the first is started again with
    this one, before it acts.

    Args:
        transport: of the actors, none started yet.
        settings: quotas.
        workers: of each actor, at most.
        seed: of the run.
        timers: of the run.
        own_parameters: actor -> environment parameters that go before those of the run.
        noise: actor -> exploration noise, of those that have any.
        patience_s: how long an actor that could collect may be silent; None for as long as it likes.
        clock: seconds.

    Raises:
        EnvironmentFaultError: none of them can be started.
        TrajtrainerError: there is a mistake that no restart heals.

    Attributes:
        transport: of the actors.
        make_end: makes the learner's end of a behavior that appears; set before the first ``collect``.
        links: name -> a behavior with its actors, in order of appearance.
        members: by number, as their supervisor knows them.
        histories: by number, what they have done.
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
        self.links: dict[str, BehaviorLink] = {}
        self.histories = [ActorHistory() for _ in range(len(transport))]
        self.image_order = RawImageOrder.AUTO
        self.transport = transport
        self._stride = workers
        self._seed = seed
        self._timers = timers
        self._own_parameters = own_parameters or {}
        self._noise = noise or {}
        self._clock = clock
        self._parameters: dict[str, Sampler] = {}
        self._is_running = False
        self.make_end: EndFactory | None = None
        rules = Rules("Actor", "actor %d", _is_hopeless, spares_others=True)
        self._supervisor = Supervisor(
            len(transport), settings, transport.start, rules, patience_s=patience_s, clock=clock
        )
        self.members = self._supervisor.members
        try:
            while not self._supervisor.has_begun:
                self._supervisor.start_due()
                transport.poll(self._supervisor.pause_s(None), self._take)
                self._restart_silent()
        except BaseException:
            self.kill()
            self.close()
            raise

    # The environment.

    def reset(self, parameters: Parameters) -> None:
        """Let all actors begin all episodes anew."""
        self._is_running = True
        self._parameters |= parameters
        self._set(Reset, parameters, self.members)

    def set_parameters(self, parameters: Parameters) -> None:
        """Change parameters of all environments without a reset."""
        self._parameters |= parameters
        self._set(SetParameters, parameters, self.members)

    def close(self) -> None:
        """End all actors and wait for their end. May be called again."""
        self.transport.close()

    def kill(self) -> None:
        """End all actors at once and do not wait. For signal handlers: quick, and takes no lock."""
        self.transport.kill()

    def _set(self, order: type[Reset | SetParameters], parameters: Parameters, members: Sequence[Member]) -> None:
        for member in members:
            if member.phase in (Phase.READY, Phase.WORKING):
                self._post(member.number, order({**parameters, **self._own_parameters.get(member.number, {})}))

    def _post(self, number: int, order: Order) -> None:
        self._supervisor.working(number)
        self.transport.post(number, order)

    def _publish(self, number: int, behavior: str, version: int, weights: Callable[[], Buffer]) -> None:
        self._supervisor.working(number)
        self.transport.publish(number, behavior, version, weights)

    # The collector.

    @property
    def num_messages(self) -> int:
        """Environment steps of all actors."""
        return sum(each.before.environment_steps + each.counters.environment_steps for each in self.histories)

    def collect(self, timeout_s: float | None = None) -> None:
        """Take in what actors have reported, and let them go on. Waits at most this long for something.

        Raises:
            EnvironmentFaultError: the last actor failed for good.
            TrajtrainerError: there is a mistake that no restart heals.
        """
        links = self.links.values()
        with self._timers("actor_pool"):
            self._supervisor.start_due()
            self._synchronize()
            num_seen = 0
            for link in links:
                link.give_turns()
                num_seen += link.feed()
        num_seen += self.transport.poll(0.0 if num_seen else self._supervisor.pause_s(timeout_s), self._take)
        with self._timers("actor_pool"):
            self._restart_silent()
            for link in links:
                num_seen += link.feed()
            full = [link for link in links if link.end.pacing.is_full]
            if 0 < len(full) < len(links):
                for link in full:
                    link.lift_limits()
            if self.transport.runs_meanwhile:
                self._synchronize()
            if not num_seen:
                for link in links:
                    link.relax()

    def look(self) -> int:
        """Take in what has come meanwhile, during an update, too. Returns how many reports came."""
        num_reports = self.transport.poll(0.0, self._take)
        self._synchronize()
        return num_reports

    def add(self, found: NewBehavior) -> BehaviorLink:
        """Make the link of a behavior that appears."""
        assert self.make_end is not None
        end = self.make_end(found)
        link = self.links[end.name] = BehaviorLink(
            end, self.transport, self._post, self._publish, self._seed, self._stride
        )
        if end.source is not None:
            end.source.on_progress = self.look
        self.transport.add(end.name, end.policy, end.reporter, end.source)
        return link

    def _synchronize(self) -> None:
        for link in self.links.values():
            link.synchronize(self.members)

    def _take(self, number: int, report: Report) -> None:
        self._supervisor.heard(number)
        match report:
            case StatsReport() | Experience() | Aborted():
                self.links[report.behavior].take(number, report)
            case Progress(counters):
                self.histories[number].counters = counters
            case Synchronized(behavior):
                self.links[behavior].synchronized(number)
            case Paused(behavior):
                self.links[behavior].paused(number)
            case Found(found):
                self._meet(number, found)
            case Joined(behavior_id):
                link = self.links[behavior_id.name]
                self._post(number, link.add_team(number, self.members[number].quota.used, behavior_id))
            case Hello(version):
                if version != __version__:
                    reason = (
                        f"it runs trajtrainer {version}, and this is {__version__}. Install the same version there."
                    )
                    self._leave_out(number, reason)
            case Connected():
                self._supervisor.ready(number)
                history = self.histories[number]
                history.first_s = self._clock() if history.first_s is None else history.first_s
                if self._is_running:
                    self._set(Reset, self._parameters, [self.members[number]])
            case Failed(error):
                self._fail(number, error)

    def _meet(self, number: int, found: NewBehavior) -> None:
        """Tell an actor how to act for a behavior that it has found."""
        name = found.behavior_id.name
        if self.image_order is RawImageOrder.AUTO:
            self.image_order = found.raw_image_order
        elif found.raw_image_order not in (RawImageOrder.AUTO, self.image_order):
            self._restart_with_order(number)
            return
        link = self.links.get(name) or self.add(found)
        expected, seen = look(link.end.spec, link.end.obs_dtypes), look(found.spec, found.obs_dtypes)
        if expected == seen:
            noise = self._noise.get(number, 0.0)
            self._post(number, link.join(number, self.members[number].quota.used, len(self.members), noise))
        elif link.end.source is None:
            raise UnsupportedError(
                f"Behavior {found.behavior_id.full!r} of the environment has {seen}, but the data set that it is "
                f"learned from was recorded with {expected}. Record it anew with this environment."
            )
        else:
            self._leave_out(
                number,
                f"behavior {name!r} has {seen} there, and {expected} in the other actors. All actors need the same "
                "scene: the same build, and env_args that leave agents alike.",
            )

    # Actors that fail.

    def _leave_out(self, number: int, reason: str) -> None:
        self._leave(number)
        self.transport.drop(number)
        self._supervisor.leave_out(number, reason)

    def _restart_with_order(self, number: int) -> None:
        """Start an actor again, which then gets the order of raw images that the run has settled (``ActorTask``)."""
        _LOGGER.warning(
            "The raw images of actor %d seem to come in another order than those of the others. It is started again "
            "and reads them as they do, as %s. If that is wrong, set raw_image_order.",
            number,
            self.image_order.value,
        )
        self._leave(number)
        self.transport.drop(number)
        self._supervisor.restart(number)

    def _restart_silent(self) -> None:
        """Restart actors that are alive, have something to do, and do not report any more: stopped, or stuck."""
        for number in self._supervisor.silent(self._rests):
            self.transport.drop(number)
            self._fail(
                number, ActorDiedError(f"Actor {number} reported nothing for {self._supervisor.patience_s:.0f} s.")
            )

    def _rests(self, number: int) -> bool:
        """Return whether nothing is to come from an actor before it is sent something."""
        links = self.links.values()
        waits = any(link.waits(number) for link in links) and not any(link.owes(number) for link in links)
        return self.members[number].phase is Phase.WORKING and (waits or not self._is_running)

    def _fail(self, number: int, error: Exception) -> None:
        self._leave(number)
        # Its environments have used up their own quotas: restarting the whole actor would not help.
        died = isinstance(error, ActorDiedError)
        self._supervisor.failed(number, error, None if died else "its environments have failed for good")

    def _leave(self, number: int) -> None:
        """End the unfinished episodes of an actor that is gone, and let others have what it might have collected."""
        history = self.histories[number]
        history.before, history.counters = history.total, Counters()
        for link in self.links.values():
            link.leave(number)


def _is_hopeless(_member: Member, fault: EnvironmentFaultError, has_begun: bool) -> bool:
    """Return whether no restart can heal this fault; some are hopeless only until a first actor has come up."""
    if isinstance(fault, PlayerVersionError | ClusterLostError):
        return True
    return not has_begun and isinstance(fault, LaunchError | PortInUseError | PlayerTimeoutError)
