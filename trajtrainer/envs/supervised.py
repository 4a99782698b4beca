"""Environments that are restarted within a quota when they fail, while the other environments continue.

A single environment runs in this process, which saves a child process and two messages per step. If there are several,
each has its own child process.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, wait
from functools import partial

from trajtrainer.core.errors import EnvironmentFaultError
from trajtrainer.core.image_order import RawImageOrder
from trajtrainer.core.spec import BehaviorSpec
from trajtrainer.core.steps import ActionBatch, EnvironmentEvent
from trajtrainer.envs.children import Children, Connected, EnvironmentMaker, Report, Running, launch_environment
from trajtrainer.envs.protocol import Environment, Parameters, connect, report_device
from trajtrainer.envs.unity.faults import LaunchError, PlayerTimeoutError, PlayerVersionError, PortInUseError
from trajtrainer.envs.workers.process import ChildDiedError
from trajtrainer.envs.workers.supervisor import Member, Phase, Supervisor
from trajtrainer.settings.environment import EnvironmentSettings, Sampler
from trajtrainer.settings.run import RunSettings

_LOGGER = logging.getLogger(__name__)
_SLACK_S = 60.0
# Python handles a signal only when a wait returns, and on Windows, a signal does not interrupt every wait.
_LONGEST_WAIT_S = 0.25
_NO_EVENT = "Worker {} is not waiting for an answer."


def _supervisor(
    count: int,
    settings: EnvironmentSettings,
    start: Callable[[int], None],
    patience_s: float | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Supervisor:
    def is_hopeless(member: Member, fault: EnvironmentFaultError, has_begun: bool) -> bool:
        if isinstance(fault, PlayerVersionError):
            return True
        if isinstance(fault, LaunchError | PortInUseError):
            return not member.has_been_ready
        if isinstance(fault, PlayerTimeoutError) and member.phase is Phase.STARTING:
            # Do not retry if nobody has pressed Play in the Editor, or if no player of the build has ever connected.
            return not has_begun or settings.is_editor
        return False

    return Supervisor(
        count,
        settings,
        start,
        noun="Environment",
        restarting="worker[%d]",
        is_hopeless=is_hopeless,
        patience_s=patience_s,
        clock=clock,
    )


def supervise(
    launch: EnvironmentMaker, settings: RunSettings, *, ports_of_run: int, waits: bool
) -> SupervisedEnvironment | SupervisedChildren:
    """Start the environments of a run whose workers are programs, and supervise them.

    A single program is connected to this process, and several are connected to one child process each.

    Args:
        launch: starts the program of a worker, with the keyword ``waits``: False, and ``busy_wait``.
        settings: settings of the run.
        ports_of_run: 0 if this is the only environment of the run; see ``ports.base_ports``.
        waits: see ``SupervisedChildren``.

    Raises:
        EnvironmentFaultError: see ``SupervisedChildren``.
    """
    environment = settings.env_settings
    if environment.num_envs == 1:
        behaviors = [*settings.behaviors.values(), *([settings.default_settings] if settings.default_settings else [])]
        # Do not busy-wait if learning threads or other environments need the core.
        busy_wait = not ports_of_run and not any(behavior.threaded for behavior in behaviors)
        return SupervisedEnvironment(partial(launch, busy_wait=busy_wait, waits=False), environment, waits=waits)
    # At startup, each of the first two messages may take up to timeout_wait.
    patience_s = 2 * environment.timeout_wait + _SLACK_S
    children = Children(environment.num_envs, partial(launch, waits=False))
    return SupervisedChildren(children, environment, patience_s, waits=waits)


@contextlib.contextmanager
def _closing_after_errors(environment: SupervisedEnvironment | SupervisedChildren) -> Iterator[None]:
    try:
        yield
    except BaseException:
        environment.kill()
        environment.close()
        raise


class _Alike:
    """The properties that all environments of a run must share, even after a restart.

    Attributes:
        image_order: order of raw images; ``AUTO`` until the first environment has detected it.
    """

    def __init__(self) -> None:
        self.image_order = RawImageOrder.AUTO
        self._specs: dict[str, BehaviorSpec] = {}

    def has_another_order(self, event: EnvironmentEvent) -> bool:
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
                    f"previously announced as {known}. All environments of a run must have the same behaviors, even "
                    "after a restart."
                )


class SupervisedEnvironment:
    """An ``Environment`` of one worker in this process, which is restarted when it fails; see ``SupervisedChildren``.

    The first environment is launched by the constructor and connected by ``connect``, both in the calling thread, so
    that a signal can interrupt ``connect``. Later environments are made in a separate thread, so that a run can end
    without waiting for a player that does not start.

    Raises:
        EnvironmentFaultError: see ``SupervisedChildren``.
    """

    num_workers = 1

    def __init__(
        self, make_environment: EnvironmentMaker, settings: EnvironmentSettings, *, waits: bool = True
    ) -> None:
        self._make_environment = make_environment
        self._supervisor = _supervisor(1, settings, self._start)
        self._member = self._supervisor.members[0]
        self._alike = _Alike()
        self._parameters: dict[str, Sampler] = {}
        self._is_running = False
        self._environment: Environment | None = None
        self._starting: Future[Environment] | None = None
        self._fault: EnvironmentFaultError | None = None  # raised by ``reset`` or ``send``, and handled by ``wait``
        self._device: str | None = None
        self._supervisor.start_due()
        if waits:
            self.connect()

    def connect(self) -> None:
        """Wait until the environment is ready; see ``Launched``."""
        with _closing_after_errors(self):
            while not self._supervisor.has_begun:
                if self._environment is None:
                    self._restart(_LONGEST_WAIT_S)
                else:
                    try:
                        connect(self._environment)
                        self._supervisor.ready(0)
                    except EnvironmentFaultError as fault:
                        self._end_environment()
                        self._supervisor.failed(0, fault)

    def report_device(self, device: str) -> None:
        """See ``Launched``."""
        self._device = device

    def reset(self, parameters: Parameters) -> None:
        self._parameters |= parameters
        self._is_running = True
        if self._environment is not None:
            self._reset(self._environment, parameters)

    def set_parameters(self, parameters: Parameters) -> None:
        self._parameters |= parameters
        if self._environment is not None:
            self._environment.set_parameters(parameters)

    def wait(self, timeout_s: float | None = None) -> list[EnvironmentEvent]:
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            if self._environment is None:
                self._restart(timeout_s)
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
        if self._environment is None or self._member.phase is not Phase.READY or not self._is_running:
            raise ValueError(_NO_EVENT.format(worker))
        self._supervisor.working(0)
        try:
            self._environment.send(worker, actions)
        except EnvironmentFaultError as fault:
            self._fault = fault

    def kill(self) -> None:
        """Kill the player for good. One that is still starting is killed by its guard when this process exits."""
        self._supervisor.ends = True
        if self._environment is not None:
            self._environment.kill()

    def close(self) -> None:
        if self._starting is not None:
            self._starting.add_done_callback(lambda made: None if made.exception() else made.result().close())
            self._starting = None
        self._end_environment()

    def _reset(self, environment: Environment, parameters: Parameters) -> None:
        self._supervisor.working(0)
        report_device(environment, self._device)
        try:
            environment.reset(parameters)
        except EnvironmentFaultError as fault:
            self._fault = fault

    def _start(self, number: int) -> None:
        if not self._member.quota.used:
            try:
                self._environment = self._make_environment(number)
            except EnvironmentFaultError as fault:
                self._supervisor.failed(number, fault)
            return
        made = self._starting = Future[Environment]()

        def make() -> None:
            try:
                environment = launch_environment(self._make_environment, number, self._alike.image_order)
                connect(environment)
                made.set_result(environment)
            except BaseException as error:
                made.set_exception(error)

        threading.Thread(target=make, name="start-environment", daemon=True).start()

    def _restart(self, timeout_s: float | None) -> None:
        """Start the environment if a restart is due; otherwise wait for the restart or for a start in progress."""
        self._supervisor.start_due()
        pause_s = self._supervisor.pause_s(timeout_s)
        if self._starting is None:
            time.sleep(pause_s or 0.0)
        elif wait([self._starting], pause_s).done:
            made, self._starting = self._starting, None
            try:
                self._environment = made.result()
            except EnvironmentFaultError as fault:
                self._supervisor.failed(0, fault)
                return
            self._supervisor.ready(0)
            if self._is_running:
                self._reset(self._environment, self._parameters)

    def _end_environment(self) -> None:
        if self._environment is not None:
            try:
                self._environment.close()  # may be interrupted by ``kill``
            finally:
                self._environment = None


class SupervisedChildren:
    """An ``Environment`` of several workers, each in its own child process.

    The constructor starts all workers. If ``waits``, it returns once the first is ready; otherwise, ``connect`` waits
    for that. The others join later.

    A worker that fails is restarted within the quotas of the settings, after a delay that grows with each failure, and
    reset with all parameters; its next event has ``is_reset`` set. When the quota is used up, ``wait`` raises the
    fault. Faults that a restart cannot fix (a build that does not exist, an incompatible API version, a port that is in
    use, a first player that never connects) are raised immediately.

    All workers read raw images in ``raw_image_order`` or, if that is not set, in the order that a worker detects first.
    A worker that detects a different order is restarted with the common order before the collector sees any of its
    events.

    Args:
        children: the children, not started yet.
        settings: settings with the restart quotas.
        patience_s: seconds that a child may be silent when an event is due; None for no limit. Environments have their
            own timeouts, so this limit is for a child process that hangs. It does not include the startup of the
            process.

    Raises:
        EnvironmentFaultError: the first environment cannot be started.
    """

    def __init__(
        self,
        children: Children,
        settings: EnvironmentSettings,
        patience_s: float | None = None,
        clock: Callable[[], float] = time.monotonic,
        *,
        waits: bool = True,
    ) -> None:
        self._children = children
        self._clock = clock
        self._supervisor = _supervisor(len(children), settings, self._start, patience_s, clock)
        # A busy worker is reset after its next event, which is stored in ``_unseen`` instead of going to the collector.
        self._reset_is_due: set[int] = set()
        self._unseen: dict[int, EnvironmentEvent] = {}
        self._alike = _Alike()
        self._parameters: dict[str, Sampler] = {}
        self._is_running = False
        self._device: str | None = None
        with _closing_after_errors(self):
            self._supervisor.start_due()
        if waits:
            self.connect()

    def connect(self) -> None:
        """Wait until the first environment is ready; see ``Launched``."""
        with _closing_after_errors(self):
            while not self._supervisor.has_begun:
                self._advance(None)

    def report_device(self, device: str) -> None:
        """See ``Launched``."""
        self._device = device

    @property
    def num_workers(self) -> int:
        return len(self._children)

    def reset(self, parameters: Parameters) -> None:
        self.set_parameters(parameters)
        self._is_running = True
        for member in self._supervisor.members:
            if member.phase is Phase.READY:
                self._reset(member.number)
            elif member.phase is Phase.WORKING:
                self._reset_is_due.add(member.number)

    def set_parameters(self, parameters: Parameters) -> None:
        self._parameters |= parameters
        for member in self._supervisor.members:
            if member.phase in (Phase.READY, Phase.WORKING):
                self._children[member.number].set_parameters(parameters)

    def wait(self, timeout_s: float | None = None) -> list[EnvironmentEvent]:
        """Wait for events; see ``Environment``. The arrays of an event are valid until it is answered."""
        deadline_s = None if timeout_s is None else self._clock() + timeout_s
        while True:
            events = self._advance(None if deadline_s is None else deadline_s - self._clock())
            if events or (deadline_s is not None and self._clock() >= deadline_s):
                return events

    def send(self, worker: int, actions: Mapping[str, ActionBatch]) -> None:
        if self._supervisor.members[worker].phase is not Phase.READY or not self._is_running:
            raise ValueError(_NO_EVENT.format(worker))
        self._supervisor.working(worker)
        self._children[worker].send(actions)

    def close(self) -> None:
        self._children.close()

    def kill(self) -> None:
        self._supervisor.ends = True
        self._children.kill()

    def _start(self, number: int) -> None:
        self._reset_is_due.discard(number)
        self._unseen.pop(number, None)
        child = self._children[number]
        is_new = child.process is None  # a new process sends ``Running`` first, and is only timed from then on
        child.start(self._alike.image_order)
        if not is_new:
            self._supervisor.heard(number)

    def _reset(self, number: int) -> None:
        self._reset_is_due.discard(number)
        self._supervisor.working(number)
        self._children[number].reset(self._device)

    def _advance(self, timeout_s: float | None) -> list[EnvironmentEvent]:
        """Start the environments that are due, wait for reports, and handle them."""
        self._supervisor.start_due()
        reports = self._children.reports(self._supervisor.pause_s(timeout_s))
        events = [event for event in (self._handle(number, report) for number, report in reports) if event is not None]
        # A child with an unread message is not silent, even if only log records have been read from it.
        for number in self._supervisor.silent(lambda number: self._children[number].has_unread):
            self._children[number].bury(0.0)
            self._supervisor.failed(
                number, ChildDiedError(f"The worker process of environment {number} stopped responding.")
            )
        return events

    def _handle(self, number: int, report: Report) -> EnvironmentEvent | None:
        """Handle a report; return the event if the collector should see it."""
        if isinstance(report, EnvironmentFaultError):
            self._supervisor.failed(number, report)
            return None
        if isinstance(report, Running):
            self._supervisor.heard(number)
            return None
        self._supervisor.ready(number)
        if isinstance(report, Connected):
            self._children[number].set_parameters(self._parameters)
            if self._is_running:
                self._reset(number)
            return None
        if self._alike.has_another_order(report):
            _LOGGER.warning(
                "The raw images of environment %d seem to be in a different order than those of the other "
                "environments. Restarting it; its images will be read as %s, like those of the others. If that is "
                "wrong, set raw_image_order.",
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
