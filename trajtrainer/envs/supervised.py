"""Environments that may fail: each is started again, within its quota, while the others go on.

One environment is in this process, which spares it a child and two hops per step. Several have a child each.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from concurrent import futures
from functools import partial

from trajtrainer.core.errors import EnvironmentFaultError
from trajtrainer.core.image_order import RawImageOrder
from trajtrainer.core.spec import BehaviorSpec
from trajtrainer.core.steps import ActionBatch, EnvironmentEvent
from trajtrainer.envs.child import EnvironmentMaker, start_environment
from trajtrainer.envs.children import Children, Connected, Report
from trajtrainer.envs.protocol import Environment, Parameters
from trajtrainer.settings.environment import EnvironmentSettings, Sampler
from trajtrainer.unity.faults import LaunchError, PlayerTimeoutError, PlayerVersionError, PortInUseError
from trajtrainer.workers.process import ChildDiedError
from trajtrainer.workers.supervisor import Member, Phase, Rules, Supervisor

_LOGGER = logging.getLogger(__name__)
_NO_EVENT = "Worker {} has sent no event that waits for an answer."


def _rules(settings: EnvironmentSettings) -> Rules:
    def is_hopeless(member: Member, fault: EnvironmentFaultError, has_begun: bool) -> bool:
        if isinstance(fault, PlayerVersionError):
            return True
        if isinstance(fault, LaunchError | PortInUseError):
            return not member.has_been_ready
        if isinstance(fault, PlayerTimeoutError) and member.phase is Phase.STARTING:
            # Ten more tries are not worth it for an Editor in which nobody presses Play again, nor for a build that
            # never came.
            return not has_begun or settings.env_path is None
        return False

    return Rules("Environment", "worker[%d]", is_hopeless)


class _Alike:
    """What all environments of a run must have in common, and keep when they start again.

    Attributes:
        image_order: in which they read raw images; ``AUTO`` before the first has some.
    """

    def __init__(self) -> None:
        self.image_order = RawImageOrder.AUTO
        self._specs: dict[str, BehaviorSpec] = {}

    def has_another_order(self, event: EnvironmentEvent) -> bool:
        """Return whether raw images of an event were read in another order than those of the others before."""
        found = next(iter(event.raw_images.values()), RawImageOrder.AUTO)
        if self.image_order is RawImageOrder.AUTO:
            self.image_order = found
        return found not in (RawImageOrder.AUTO, self.image_order)

    def check_specs(self, event: EnvironmentEvent) -> None:
        for name, spec in event.new_specs.items():
            known = self._specs.setdefault(name, spec)
            if known != spec:
                raise EnvironmentFaultError(
                    f"Environment {event.worker} announces the behavior {name!r} as {spec}, but it was "
                    f"announced as {known} before. All environments of a run must be alike, and stay so when they "
                    "start again."
                )


class SupervisedEnvironment:
    """An ``Environment`` of one in this process, which is started again when it fails; see ``SupervisedChildren``.

    The first environment is made by the constructor itself, which a signal may interrupt. Later ones are made in a
    thread, so that a run that is to end does not wait for a player that does not come.

    Args:
        make_environment: makes the one environment of worker 0.
        settings: quotas.

    Raises:
        EnvironmentFaultError: see ``SupervisedChildren``.
    """

    num_workers = 1

    def __init__(self, make_environment: EnvironmentMaker, settings: EnvironmentSettings) -> None:
        self._make_environment = make_environment
        self._supervisor = Supervisor(1, settings, self._start, _rules(settings))
        self._member = self._supervisor.members[0]
        self._alike = _Alike()
        self._parameters: dict[str, Sampler] = {}
        self._is_running = False
        self._environment: Environment | None = None
        self._starting: futures.Future[Environment] | None = None
        self._fault: EnvironmentFaultError | None = None  # of ``reset`` or ``send``
        try:
            while self._environment is None:
                self._come_back(None)
        except BaseException:
            self.kill()
            self.close()
            raise

    def reset(self, parameters: Parameters) -> None:
        """See ``Environment``."""
        self._parameters |= parameters
        self._is_running = True
        if self._environment is not None:
            self._reset(self._environment, parameters)

    def set_parameters(self, parameters: Parameters) -> None:
        """See ``Environment``."""
        self._parameters |= parameters
        if self._environment is not None:
            self._environment.set_parameters(parameters)

    def wait(self, timeout_s: float | None = None) -> list[EnvironmentEvent]:
        """See ``Environment``."""
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            if self._environment is None:
                self._come_back(timeout_s)
            else:
                try:
                    if self._fault is not None:
                        raise self._fault
                    events = self._environment.wait(timeout_s)
                except EnvironmentFaultError as fault:
                    self._fault = None
                    self._end_environment()
                    self._supervisor.failed(0, fault)
                else:
                    if events:
                        self._supervisor.ready(0)
                        self._alike.has_another_order(events[0])
                        self._alike.check_specs(events[0])
                        return events
            if deadline_s is not None:
                timeout_s = max(0.0, deadline_s - time.monotonic())
                if not timeout_s:
                    return []

    def send(self, worker: int, actions: Mapping[str, ActionBatch]) -> None:
        """See ``Environment``. That it is gone shows in ``wait``."""
        if self._environment is None or self._member.phase is not Phase.READY or not self._is_running:
            raise ValueError(_NO_EVENT.format(worker))
        self._supervisor.working(0)
        try:
            self._environment.send(worker, actions)
        except EnvironmentFaultError as fault:
            self._fault = fault

    def kill(self) -> None:
        """See ``Environment``. A player that is just starting has a guard that ends it after this process."""
        if self._environment is not None:
            self._environment.kill()

    def close(self) -> None:
        """See ``Environment``."""
        if self._starting is not None:
            self._starting.add_done_callback(_close_made)
            self._starting = None
        self._end_environment()

    def _reset(self, environment: Environment, parameters: Parameters) -> None:
        self._supervisor.working(0)
        try:
            environment.reset(parameters)
        except EnvironmentFaultError as fault:
            self._fault = fault

    def _start(self, number: int) -> None:
        make = partial(start_environment, self._make_environment, number, self._alike.image_order)
        if not self._member.quota.used:
            self._take(make)
            return
        self._starting = futures.Future()
        threading.Thread(target=_make, args=(make, self._starting), name="start-environment", daemon=True).start()

    def _come_back(self, timeout_s: float | None) -> None:
        """Start the environment if it is due, and wait until it is there, or may be started."""
        self._supervisor.start_due()
        pause_s = self._supervisor.pause_s(timeout_s)
        if self._starting is not None:
            if futures.wait([self._starting], pause_s).done:
                starting, self._starting = self._starting, None
                self._take(starting.result)
        elif self._environment is None:
            time.sleep(pause_s or 0.0)  # there is nothing to wait on

    def _take(self, made: Callable[[], Environment]) -> None:
        try:
            self._environment = made()
        except EnvironmentFaultError as fault:
            self._supervisor.failed(0, fault)
            return
        self._supervisor.ready(0)
        if self._is_running:
            self._reset(self._environment, self._parameters)

    def _end_environment(self) -> None:
        if self._environment is not None:
            try:
                self._environment.close()  # ``kill`` may have to help
            finally:
                self._environment = None


def _make(make: Callable[[], Environment], made: futures.Future[Environment]) -> None:
    try:
        made.set_result(make())
    except BaseException as error:
        made.set_exception(error)


def _close_made(made: futures.Future[Environment]) -> None:
    if made.exception() is None:
        made.result().close()


class SupervisedChildren:
    """An ``Environment`` of several, each in a child of its own.

    The constructor starts all of them and returns when the first is there. The others come when they are ready.

    One that fails is started again within the quotas of the settings, after a delay that grows, and is reset with all
    parameters; its next event has ``is_reset``. Beyond the quota ``wait`` raises what went wrong. Faults that a restart
    cannot heal (a build that does not exist, another version of the wire, a port that is taken, a first player that
    never connects) are raised at once.

    All of them read raw images in one order: as the first that has some, or as ``raw_image_order`` says. One that has
    found another order is started again with this one, before anything of it is seen.

    Args:
        children: they run in, none started yet.
        settings: quotas.
        patience_s: how long a child may be silent when it is its turn. Environments have limits of their own; this is
            for a child that itself is stuck.
        clock: seconds.

    Raises:
        EnvironmentFaultError: see above.
    """

    def __init__(
        self,
        children: Children,
        settings: EnvironmentSettings,
        patience_s: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._children = children
        self._clock = clock
        self._supervisor = Supervisor(
            len(children), settings, self._start, _rules(settings), patience_s=patience_s, clock=clock
        )
        # Workers whose next event will be answered with a reset before the collector sees it, and events that were.
        self._reset_is_due: set[int] = set()
        self._unseen: dict[int, EnvironmentEvent] = {}
        self._alike = _Alike()
        self._parameters: dict[str, Sampler] = {}
        self._is_running = False
        try:
            while not self._supervisor.has_begun:
                self._advance(None)
        except BaseException:
            self.kill()
            self.close()
            raise

    @property
    def num_workers(self) -> int:
        """The number of workers."""
        return len(self._children)

    def reset(self, parameters: Parameters) -> None:
        """See ``Environment``."""
        self.set_parameters(parameters)
        self._is_running = True
        for member in self._supervisor.members:
            if member.phase is Phase.READY:
                self._reset(member.number)
            elif member.phase is Phase.WORKING:
                self._reset_is_due.add(member.number)

    def set_parameters(self, parameters: Parameters) -> None:
        """See ``Environment``."""
        self._parameters |= parameters
        for member in self._supervisor.members:
            if member.phase in (Phase.READY, Phase.WORKING):
                self._children[member.number].set_parameters(parameters)

    def wait(self, timeout_s: float | None = None) -> list[EnvironmentEvent]:
        """See ``Environment``. The arrays of an event are valid until it is answered."""
        deadline_s = None if timeout_s is None else self._clock() + timeout_s
        while True:
            events = self._advance(None if deadline_s is None else deadline_s - self._clock())
            if events or (deadline_s is not None and self._clock() >= deadline_s):
                return events

    def send(self, worker: int, actions: Mapping[str, ActionBatch]) -> None:
        """See ``Environment``. That a worker is gone shows in ``wait``."""
        if self._supervisor.members[worker].phase is not Phase.READY or not self._is_running:
            raise ValueError(_NO_EVENT.format(worker))
        self._supervisor.working(worker)
        self._children[worker].send(actions)

    def close(self) -> None:
        """See ``Environment``."""
        self._children.close()

    def kill(self) -> None:
        """See ``Environment``."""
        self._children.kill()

    def _start(self, number: int) -> None:
        self._reset_is_due.discard(number)
        self._unseen.pop(number, None)
        self._children[number].start(self._alike.image_order)
        self._supervisor.heard(number)

    def _reset(self, number: int) -> None:
        self._reset_is_due.discard(number)
        self._supervisor.working(number)
        self._children[number].reset()

    def _advance(self, timeout_s: float | None) -> list[EnvironmentEvent]:
        """Start the environments that are due, wait until something happens, handle it."""
        self._supervisor.start_due()
        reports = self._children.reports(self._supervisor.pause_s(timeout_s))
        events = [event for event in (self._take(number, report) for number, report in reports) if event is not None]
        # Of a child that has something unread, only a record of its log was read so far.
        for number in self._supervisor.silent(lambda number: self._children[number].has_unread):
            self._children[number].bury(0.0)
            self._supervisor.failed(
                number, ChildDiedError(f"The worker process of environment {number} stopped answering.")
            )
        return events

    def _take(self, number: int, report: Report) -> EnvironmentEvent | None:
        """Take a report in; return the event if the collector is to see it."""
        if isinstance(report, EnvironmentFaultError):
            self._supervisor.failed(number, report)
            return None
        self._supervisor.ready(number)
        if isinstance(report, Connected):
            self._children[number].set_parameters(self._parameters)
            if self._is_running:
                self._reset(number)
            return None
        if self._alike.has_another_order(report):
            _LOGGER.warning(
                "The raw images of environment %d seem to come in another order than those of the others. It is "
                "started again and read as they are, as %s. If that is wrong, set raw_image_order.",
                number,
                self._alike.image_order.value,
            )
            self._supervisor.restart(number)
            self._supervisor.start_due()
            return None
        self._alike.check_specs(report)
        report.take_over(self._unseen.pop(number, None))
        if number in self._reset_is_due:
            self._unseen[number] = report
            self._reset(number)
            return None
        return report
