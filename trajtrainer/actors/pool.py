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

A chunk belongs to the actor until it is handed over, then to the source until it is drained. Weights in transit belong
to the transport until the actor answers (``Synchronized``). Killing an actor costs its unfinished episodes and what it
has not handed over; killing the learner, what came since the last checkpoint; killing a player, its own episodes.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import suppress

from trajtrainer.actors import messages
from trajtrainer.actors.collector import describe
from trajtrainer.actors.link import ActorHistory, BehaviorLink, Learner
from trajtrainer.actors.transports.cluster import ClusterLostError
from trajtrainer.core.errors import EnvironmentFaultError, UnsupportedError
from trajtrainer.core.image_order import RawImageOrder
from trajtrainer.core.timers import Timers
from trajtrainer.core.version import __version__
from trajtrainer.envs.protocol import Parameters
from trajtrainer.settings.actors import ActorSettings
from trajtrainer.settings.environment import EnvironmentSettings, Sampler
from trajtrainer.unity.faults import LaunchError, PlayerTimeoutError, PlayerVersionError, PortInUseError
from trajtrainer.workers.supervisor import Member, Phase, Supervisor

_LOGGER = logging.getLogger(__name__)


class ActorPool:
    """Steps the actors of a run: takes in what they report, and gives them allowances, policies and parameters.

    The constructor starts all actors and returns when the first has its environments; the others join when they are
    ready. An actor that dies is started again within the quotas of the settings; beyond them it is left out, and the
    others continue. All read raw images in one order: an actor that has found another order than the first is started
    again with the first one's, before it acts.

    Args:
        transport: of the actors, none started yet.
        settings: quotas.
        workers: of each actor, at most.
        timers: of the run.
        actors: what is different for each actor; None for nothing.
        patience_s: how long an actor that could collect may be silent; None without limit.
        clock: seconds.

    Raises:
        EnvironmentFaultError: no actor can be started.
        TrajtrainerError: there is a mistake that no restart fixes.

    Attributes:
        make_learner: makes the learner of a behavior when it first appears; set before the first ``collect``.
        links: name -> a behavior with its actors, in order of appearance.
        image_order: of the raw images of all actors; ``AUTO`` until the first has some.
        has_met_behaviors: whether an environment has shown one.
    """

    def __init__(
        self,
        transport: messages.Transport,
        settings: EnvironmentSettings,
        *,
        workers: int,
        timers: Timers,
        actors: ActorSettings | None = None,
        patience_s: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.transport = transport
        self.links: dict[str, BehaviorLink] = {}
        self.histories = [ActorHistory() for _ in range(len(transport))]
        self.image_order = RawImageOrder.AUTO
        self.make_learner: Callable[[messages.NewBehavior], Learner] | None = None
        self.has_met_behaviors = False
        self._stride = workers
        self._timers = timers
        self._overrides = [None if actors is None else actors.override(n) for n in range(len(transport))]
        self._clock = clock
        self._parameters: dict[str, Sampler] = {}
        self._is_running = False
        self._supervisor = Supervisor(
            len(transport),
            settings,
            transport.start,
            noun="Actor",
            restarting="actor %d",
            is_hopeless=_is_hopeless,
            spares_others=True,
            patience_s=patience_s,
            clock=clock,
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
        """Let all actors begin all episodes again, with the opponents that the learner has chosen."""
        for link in self.links.values():
            link.synchronize()
        self._is_running = True
        self._parameters |= parameters
        self._set(messages.Reset, parameters, *self.members)

    def set_parameters(self, parameters: Parameters) -> None:
        """Change parameters of all environments without a reset."""
        self._parameters |= parameters
        self._set(messages.SetParameters, parameters, *self.members)

    def close(self) -> None:
        """End all actors and wait for their end. May be called again."""
        self.transport.close()

    def kill(self) -> None:
        """End all actors at once and do not wait. Safe in signal handlers: quick, and takes no lock."""
        self.transport.kill()

    def _set(self, order: type[messages.Reset | messages.SetParameters], given: Parameters, *members: Member) -> None:
        for member in members:
            if member.phase in (Phase.READY, Phase.WORKING):
                self._supervisor.working(member.number)
                override = self._overrides[member.number]
                own = {} if override is None else override.environment_parameters or {}
                self.transport.post(member.number, order({**given, **own}))

    # The collector.

    @property
    def num_messages(self) -> int:
        """Environment steps of all actors."""
        return sum(each.before.environment_steps + each.progress.environment_steps for each in self.histories)

    def collect(self, timeout_s: float | None = None) -> None:
        """Take in what actors have reported, and let them continue. Waits at most this long for something.

        Raises:
            EnvironmentFaultError: the last actor failed for good.
            TrajtrainerError: there is a mistake that no restart fixes.
        """
        links = self.links.values()
        with self._timers("actor_pool"):
            self._supervisor.start_due()
            num_seen = 0
            for link in links:
                link.synchronize()
                link.give_turns()
                num_seen += link.feed()
        num_seen += self.transport.poll(0.0 if num_seen else self._supervisor.pause_s(timeout_s), self._take)
        self._restart_silent()
        num_full = 0
        for link in links:
            num_seen += link.feed()
            num_full += link.pacing.is_full
        if 0 < num_full < len(links):
            for link in links:
                if link.pacing.is_full:
                    link.lift_limits()
        for link in links:
            if self.transport.runs_meanwhile:
                link.synchronize()
        if not num_seen:
            for link in links:
                link.relax()
            self._lend()

    def _lend(self) -> None:
        """Resolve a deadlock: every actor waits at the limit of some behavior, and no behavior is used up."""
        links = self.links.values()
        working = [member.number for member in self.members if member.phase is Phase.WORKING]
        wait = all(
            any(link.is_at_limit(n) for link in links) and not any(link.owes(n) for link in links) for n in working
        )
        if working and wait and not any(link.pacing.all_wait for link in links):
            for link in links:
                link.lend(working[0])

    def synchronize(self) -> int:
        """During an update: take in what has come, and let actors continue. Returns the number of reports."""
        num_reports = self.transport.poll(0.0, self._take)
        for link in self.links.values():
            link.synchronize()
        return num_reports

    def finish(self) -> None:
        """Give the trainers everything that has come, even what the pacing still holds back: the run ends."""
        if self.transport.runs_meanwhile:
            with suppress(EnvironmentFaultError):  # an actor that fails now is no longer needed
                self.transport.poll(0.0, self._take)
        for link in self.links.values():
            link.feed(everything=True)

    def add(self, learner: Learner) -> BehaviorLink:
        """Add a behavior for which actors may act."""
        link = BehaviorLink(learner, self.transport, self._supervisor, self.histories, self._stride)
        self.links[link.name] = link
        trainer = learner.trainer
        if trainer.source is not None:
            trainer.source.on_progress = self.synchronize
        self.transport.add(link.name, learner.policy, trainer.reporter, trainer.source)
        return link

    def _take(self, number: int, report: messages.Report) -> None:
        self._supervisor.heard(number)
        match report:
            case messages.Progress():
                self.histories[number].progress = report
            case messages.NewBehavior():
                self._meet(number, report)
            case messages.NewTeam(behavior_id):
                self.links[behavior_id.name].add_team(number, behavior_id)
            case messages.Hello(version):
                if version != __version__:
                    reason = (
                        f"it runs trajtrainer {version}, and this is {__version__}. Install the same version there."
                    )
                    self._drop(number)
                    self._supervisor.leave_out(number, reason)
            case messages.Connected():
                self._supervisor.ready(number)
                history = self.histories[number]
                history.first_s = self._clock() if history.first_s is None else history.first_s
                if self._is_running:
                    self._set(messages.Reset, self._parameters, self.members[number])
            case messages.Failed(error):
                self._fail(number, error)
            case _:
                self.links[report.behavior].take(number, report)

    def _meet(self, number: int, found: messages.NewBehavior) -> None:
        """Let an actor act for a behavior that it has found, if it sees what the others see."""
        assert self.make_learner is not None
        self.has_met_behaviors = True
        name = found.behavior_id.name
        if self.image_order is RawImageOrder.AUTO:
            self.image_order = found.raw_image_order
        elif found.raw_image_order not in (RawImageOrder.AUTO, self.image_order):
            _LOGGER.warning(
                "The raw images of actor %d seem to come in another order than those of the others. It is started "
                "again and reads them as they do, as %s. If that is wrong, set raw_image_order.",
                number,
                self.image_order.value,
            )
            self._drop(number)
            self._supervisor.restart(number)  # its new task names the order
            return
        link = self.links.get(name) or self.add(self.make_learner(found))
        context = link.learner.trainer.context
        expected, seen = describe(context.spec, context.obs_dtypes), describe(found.spec, found.obs_dtypes)
        if expected == seen:
            override = self._overrides[number]
            link.add_actor(number, 0.0 if override is None else override.exploration_noise)
        elif not link.learns:
            raise UnsupportedError(
                f"Behavior {found.behavior_id.full!r} of the environment has {seen}, but the data set that it is "
                f"learned from was recorded with {expected}. Record it anew with this environment."
            )
        else:
            self._drop(number)
            reason = (
                f"behavior {name!r} has {seen} there, and {expected} in the other actors. All actors need the same "
                "scene: the same build, and env_args that leave agents alike."
            )
            self._supervisor.leave_out(number, reason)

    # Actors that fail.

    def _restart_silent(self) -> None:
        """Restart actors that are alive, have something to do, and no longer report: stopped, or stuck."""
        for number in self._supervisor.silent(self._rests):
            self.transport.drop(number)
            reason = f"Actor {number} reported nothing for {self._supervisor.patience_s:.0f} s."
            self._fail(number, messages.ActorDiedError(reason))

    def _rests(self, number: int) -> bool:
        """Return whether an actor has nothing to do until it is sent something."""
        links = self.links.values()
        waits = any(link.is_at_limit(number) for link in links) and not any(link.owes(number) for link in links)
        return self.members[number].phase is Phase.WORKING and (waits or not self._is_running)

    def _fail(self, number: int, error: Exception) -> None:
        self._forget(number)
        # Its environments have used up their own quotas: restarting the whole actor would not help.
        died = isinstance(error, messages.ActorDiedError)
        self._supervisor.failed(number, error, None if died else "its environments have failed for good")

    def _drop(self, number: int) -> None:
        self._forget(number)
        self.transport.drop(number)

    def _forget(self, number: int) -> None:
        history = self.histories[number]
        history.before, history.progress = history.total, messages.Progress()
        for link in self.links.values():
            link.remove_actor(number)


def _is_hopeless(_member: Member, fault: EnvironmentFaultError, has_begun: bool) -> bool:
    """Return whether no restart can fix this fault; some are hopeless only until the first actor has come up."""
    if isinstance(fault, PlayerVersionError | ClusterLostError):
        return True
    return not has_begun and isinstance(fault, LaunchError | PortInUseError | PlayerTimeoutError)
