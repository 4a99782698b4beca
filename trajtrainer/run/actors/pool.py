"""Manages the actors of a run, which run in the main loop, in threads, in processes or on nodes of a cluster.

Who waits for whom; ``--`` goes through the transport, and ``==`` is one of the two channels::

    actor: in the loop, or in its               pool: in the loop's thread          trainer: in the loop's thread,
    own thread, process or node                                                     or with ``threaded: true`` its own

    ActorLoop         <-- LoadWeights, -------- BehaviorLink.synchronize <= queue ==== publish
                          Assignment, Allowance                                           |
    Collector.collect                                                                     |
      waits for environments                                                              |
    hands over ---------- Experience, stats, -> receive; held back                        |
      waits for an        Progress              by the pacing ======== ExperienceSource => advance
      Allowance at                                waits for reports,                       waits for experience,
      its limit                                   at most 0.25 s                           but only in its own thread

An actor in the loop adds finished steps to the source at once. It only waits for environments: if it is at its limit,
``InlineTransport.poll`` waits for the trainer's thread instead. If actors run outside the loop, the trainer calls
``ActorPool.synchronize`` during its updates.

Ownership: the rows of a chunk belong to the actor until it hands them over. After that, they are in the transport's
memory (a shared memory block, an object in the object store, or the same row pool), and the source holds a reference
until the trainer drains it and frees the rows. Weights in transit belong to the transport until the actor responds with
``Synchronized``. Only the loop's thread uses the pacing and its accounts.

If an actor is killed, its unfinished episodes and the steps that it has not handed over are lost. If the learner is
killed, everything since the last checkpoint is lost. If a player is killed, only that player's episodes are lost.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import suppress

from trajtrainer.core.errors import EnvironmentFaultError, UnsupportedError
from trajtrainer.core.image_order import RawImageOrder
from trajtrainer.core.timers import Timers
from trajtrainer.core.version import __version__
from trajtrainer.envs.protocol import Parameters
from trajtrainer.envs.unity.faults import LaunchError, PlayerTimeoutError, PlayerVersionError, PortInUseError
from trajtrainer.envs.workers.supervisor import Member, Phase, Supervisor
from trajtrainer.run.actors import messages
from trajtrainer.run.actors.collector import describe
from trajtrainer.run.actors.link import ActorHistory, BehaviorLink, Learner
from trajtrainer.settings.actors import ActorSettings
from trajtrainer.settings.environment import EnvironmentSettings, Sampler

_LOGGER = logging.getLogger(__name__)


class ActorPool:
    """Handles the reports of a run's actors, and sends them allowances, policies and parameters.

    The constructor starts all actors and returns when the first one is ready; the others join later. An actor that dies
    is restarted, up to the limits in the settings. After that, the run continues without it. All actors read raw images
    in the same order: an actor that detects a different order than the first one is restarted with the first actor's
    order, before it acts.

    Args:
        transport: the transport, which has not started any actors yet.
        settings: environment settings, including the limits for restarts.
        workers: the largest number of environments that one actor has.
        timers: timers of the run.
        actors: actor settings with overrides for single actors; None without overrides.
        patience_s: an actor that has work to do but sends no report for this many seconds is restarted; None for never.
        clock: returns the time in seconds.

    Raises:
        EnvironmentFaultError: no actor can be started.
        TrajtrainerError: an error that a restart cannot fix.

    Attributes:
        make_learner: makes the learner of a new behavior; set before the first ``collect``.
        on_messages: called with the number of environment messages that actors have recorded since the last call, after
            the trajectories that these messages finished have arrived.
        links: behavior name -> link to its actors, in order of appearance.
        image_order: raw image order of all actors; ``AUTO`` until the first actor has detected it.
        has_met_behaviors: True once an environment has reported a behavior.
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
        self.on_messages: Callable[[int], object] = lambda _: None
        self.has_met_behaviors = False
        self._num_seen = 0
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
                transport.poll(self._supervisor.pause_s(None), self._handle)
                self._restart_silent()
        except BaseException:
            self.kill()
            self.close()
            raise

    # The environment.

    def reset(self, parameters: Parameters) -> None:
        """Restart all episodes of all actors, against the currently assigned opponents."""
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
        """Stop all actors and wait until they have exited. Can be called more than once."""
        self.transport.close()

    def kill(self) -> None:
        """Kill all actors without waiting. Safe in a signal handler: it is quick and takes no lock."""
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
        """Number of environment steps of all actors, including actors that have died."""
        return sum(each.before.environment_steps + each.progress.environment_steps for each in self.histories)

    def collect(self, timeout_s: float | None = None) -> None:
        """Handle reports from actors, and send new allowances. Waits up to ``timeout_s`` seconds for a first report.

        Raises:
            EnvironmentFaultError: the last remaining actor failed.
            TrajtrainerError: an error that a restart cannot fix.
        """
        links = self.links.values()
        with self._timers("actor_pool"):
            self._supervisor.start_due()
            num_seen = 0
            for link in links:
                link.synchronize()
                link.give_turns()
                num_seen += link.feed()
        num_seen += self.transport.poll(0.0 if num_seen else self._supervisor.pause_s(timeout_s), self._handle)
        self._restart_silent()
        for link in links:
            num_seen += link.feed()
        full = [link for link in links if link.pacing.is_full]
        if len(full) < len(links):  # Other behaviors still need experience, so these must not stop the actors.
            for link in full:
                link.lift_limits()
        if self.transport.runs_meanwhile:
            for link in links:
                link.synchronize()
        if not num_seen:
            self._resolve_deadlocks()

    def _resolve_deadlocks(self) -> None:
        """Resolve deadlocks. Called when no reports have arrived, so actors and learner may be waiting for each other.

        Within a behavior, all actors may be at their limits although the learner needs more rows before it can
        continue. There may also be a deadlock between behaviors, because an actor steps all its behaviors together:
        each behavior may need rows from an actor that has used up its share of another behavior. In this case, one
        actor may collect all remaining rows.
        """
        links = self.links.values()
        for link in links:
            link.relax()
        working = [member.number for member in self.members if member.phase is Phase.WORKING]
        is_stuck = working and all(map(self._waits, working))
        if is_stuck and not any(link.pacing.all_wait for link in links):
            for link in links:
                link.lend(working[0])

    def synchronize(self) -> int:
        """Handle reports and send new weights and allowances. Called during updates. Returns the number of reports."""
        num_reports = self.transport.poll(0.0, self._handle)
        for link in self.links.values():
            link.synchronize()
        return num_reports

    def finish(self) -> None:
        """Give the trainers all experience at the end of the run, including experience that the pacing holds back."""
        if self.transport.runs_meanwhile:
            with suppress(EnvironmentFaultError):  # At the end of the run, failed actors do not matter.
                self.transport.poll(0.0, self._handle)
        for link in self.links.values():
            link.feed(everything=True)

    def add(self, learner: Learner) -> BehaviorLink:
        """Add a behavior, which actors may then act for."""
        link = BehaviorLink(learner, self.transport, self._supervisor, self.histories, self._stride)
        self.links[link.name] = link
        if link.source is not None:
            # Actors outside the loop continue during an update. An actor in the loop may be waiting for the trainer in
            # ``poll``.
            link.source.on_progress = self.synchronize if self.transport.runs_meanwhile else self.transport.wake
            link.source.on_consumed = self.transport.wake
        self.transport.add(link)
        return link

    def _handle(self, number: int, report: messages.Report) -> None:
        self._supervisor.heard(number)
        match report:
            case messages.Progress():
                self.histories[number].progress = report
                before, self._num_seen = self._num_seen, self.num_messages
                if self._num_seen > before:
                    self.on_messages(self._num_seen - before)
            case messages.NewBehavior():
                self._meet(number, report)
            case messages.NewTeam(behavior_id):
                self.links[behavior_id.name].add_team(number, behavior_id)
            case messages.Hello(version):
                if version != __version__:
                    self._drop(number)
                    self._supervisor.leave_out(
                        number,
                        f"it runs trajtrainer {version}, but this is version {__version__}. Install the same version "
                        "there.",
                    )
            case messages.Ready():
                self._supervisor.ready(number)
                history = self.histories[number]
                history.first_s = self._clock() if history.first_s is None else history.first_s
                if self._is_running:
                    self._set(messages.Reset, self._parameters, self.members[number])
            case messages.Failed(error):
                self._fail(number, error)
            case _:
                self.links[report.behavior].receive(number, report)

    def _meet(self, number: int, found: messages.NewBehavior) -> None:
        """Let an actor act for a new behavior, if its sensors and actions match those in the other actors."""
        assert self.make_learner is not None
        self.has_met_behaviors = True
        name = found.behavior_id.name
        if self.image_order is RawImageOrder.AUTO:
            self.image_order = found.raw_image_order
        elif found.raw_image_order not in (RawImageOrder.AUTO, self.image_order):
            _LOGGER.warning(
                "The raw images of actor %d seem to be in a different order than those of the other actors. "
                "Restarting it; it will read them as %s, like the others. If that is wrong, set raw_image_order.",
                number,
                self.image_order.value,
            )
            self._drop(number)
            self._supervisor.restart(number)  # Its next ``ActorTask`` specifies the order.
            return
        link = self.links.get(name) or self.add(self.make_learner(found))
        context = link.learner.trainer.context
        expected, seen = describe(context.spec, context.obs_dtypes), describe(found.spec, found.obs_dtypes)
        if expected == seen:
            override = self._overrides[number]
            link.add_actor(number, 0.0 if override is None else override.exploration_noise)
        elif not link.learns:
            raise UnsupportedError(
                f"Behavior {found.behavior_id.full!r} of the environment has {seen}, but its data set was recorded "
                f"with {expected}. Record the data set again with this environment."
            )
        else:
            self._drop(number)
            reason = (
                f"behavior {name!r} has {seen} there, but {expected} in the other actors. All actors need the same "
                "scene: the same build, and env_args that do not change the agents."
            )
            self._supervisor.leave_out(number, reason)

    # Failures.

    def _restart_silent(self) -> None:
        """Restart actors that are running and have work to do, but send no reports: they may be suspended or stuck."""

        def has_no_work(number: int) -> bool:
            return self.members[number].phase is Phase.WORKING and (not self._is_running or self._waits(number))

        for number in self._supervisor.silent(has_no_work):
            self.transport.drop(number)
            reason = f"Actor {number} has not reported anything for {self._supervisor.patience_s:.0f} s."
            self._fail(number, messages.ActorDiedError(reason))

    def _waits(self, number: int) -> bool:
        """Return whether an actor is waiting for the learner: it has reached a limit and answered all orders."""
        links = self.links.values()
        return any(link.is_at_limit(number) for link in links) and not any(link.owes(number) for link in links)

    def _fail(self, number: int, error: Exception) -> None:
        self._reset_actor(number)
        # An actor process that survives has exceeded the restart limits of its environments, so restarting it would not
        # help.
        died = isinstance(error, messages.ActorDiedError)
        self._supervisor.failed(number, error, None if died else "its environments have failed permanently")

    def _drop(self, number: int) -> None:
        self._reset_actor(number)
        self.transport.drop(number)

    def _reset_actor(self, number: int) -> None:
        """Close the accounts of an actor that has ended, so that another actor can use its number."""
        history = self.histories[number]
        history.before, history.progress = history.total, messages.Progress()
        for link in self.links.values():
            link.remove_actor(number)


def _is_hopeless(_member: Member, fault: EnvironmentFaultError, has_begun: bool) -> bool:
    """Return whether restarting cannot fix a fault. For some faults, this only applies before any actor has started."""
    if isinstance(fault, PlayerVersionError | messages.TransportLostError):
        return True
    return not has_begun and isinstance(fault, LaunchError | PortInUseError | PlayerTimeoutError)
