"""Supervise several environments as one: each may fail, and is then started again while the others go on."""

from __future__ import annotations

import enum
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from trajtrainer.core.errors import EnvironmentFaultError
from trajtrainer.core.image_order import RawImageOrder
from trajtrainer.core.spec import BehaviorSpec
from trajtrainer.core.steps import ActionBatch, EnvironmentEvent
from trajtrainer.envs.protocol import Parameters
from trajtrainer.envs.workers.restart_quota import UNLIMITED, RestartQuota
from trajtrainer.envs.workers.slot import Connected, Report, Slot, Slots
from trajtrainer.settings.environment import EnvironmentSettings, Sampler
from trajtrainer.unity.faults import LaunchError, PlayerTimeoutError, PlayerVersionError, PortInUseError

_LOGGER = logging.getLogger(__name__)


class _Phase(enum.Enum):
    """The state of an environment: whose turn it is."""

    STARTING = enum.auto()
    CONNECTED = enum.auto()  # it waits for its first reset
    WORKING = enum.auto()  # it owes an event
    WAITING = enum.auto()  # it waits for the answer to its event
    DOWN = enum.auto()  # it will be started again


@dataclass(slots=True)
class _Worker:
    """One environment as the supervisor knows it.

    Attributes:
        slot: it runs in.
        quota: its restarts.
        phase: whose turn it is.
        has_connected: whether it ever came up.
        reset_is_due: its next event will be answered with a reset before anybody sees it.
        changes: parameters that it does not have yet.
        unseen: an event that was answered with a reset before anybody saw it.
        start_s: when it is started again, while it is down.
        connected_s: when it came up.
    """

    slot: Slot
    quota: RestartQuota
    phase: _Phase = _Phase.STARTING
    has_connected: bool = False
    reset_is_due: bool = False
    changes: dict[str, Sampler] = field(default_factory=dict)
    unseen: EnvironmentEvent | None = None
    start_s: float = 0.0
    connected_s: float = 0.0

    def take_changes(self) -> dict[str, Sampler]:
        changes, self.changes = self.changes, {}
        return changes


class Supervisor:
    """An ``Environment`` of several, each in a slot of its own.

    The constructor starts all of them and returns when the first is there. The others come when they are ready.

    One that fails is started again within the quotas of the settings, after a delay that grows, and is reset with all
    parameters; its next event has ``is_reset``. Beyond the quota ``wait`` raises what went wrong. Faults that a restart
    cannot heal (a build that does not exist, another version of the wire, a port that is taken, a first player that
    never connects) are raised at once.

    All of them read raw images in one order: as the first that has some, or as ``raw_image_order`` says. One that has
    found another order is started again with this one, before anything of it is seen.

    Args:
        slots: the environments run in, none started yet.
        settings: quotas.
        clock: seconds.

    Raises:
        EnvironmentFaultError: see above.
    """

    def __init__(
        self, slots: Slots, settings: EnvironmentSettings, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._slots = slots
        self._settings = settings
        self._clock = clock
        self._workers = [_Worker(slots[number], RestartQuota(settings)) for number in range(len(slots))]
        self._parameters: dict[str, Sampler] = {}
        self._specs: dict[str, BehaviorSpec] = {}
        self._image_order = RawImageOrder.AUTO
        self._is_running = False
        self._anyone_connected = False
        try:
            for worker in self._workers:
                worker.slot.start()
            while not self._anyone_connected:
                self._advance(None)
        except BaseException:
            self.kill()
            self.close()
            raise

    @property
    def num_workers(self) -> int:
        """The number of workers."""
        return len(self._workers)

    def reset(self, parameters: Parameters) -> None:
        """See ``Environment``."""
        self.set_parameters(parameters)
        self._is_running = True
        for worker in self._workers:
            if worker.phase in (_Phase.CONNECTED, _Phase.WAITING):
                self._reset(worker)
            elif worker.phase is _Phase.WORKING:
                worker.reset_is_due = True

    def set_parameters(self, parameters: Parameters) -> None:
        """See ``Environment``."""
        self._parameters |= parameters
        for worker in self._workers:
            worker.changes |= parameters

    def wait(self, timeout_s: float | None = None) -> list[EnvironmentEvent]:
        """See ``Environment``. The arrays of an event are valid until it is answered."""
        deadline_s = None if timeout_s is None else self._clock() + timeout_s
        while True:
            events = self._advance(deadline_s)
            if events or (deadline_s is not None and self._clock() >= deadline_s):
                return events

    def send(self, worker: int, actions: Mapping[str, ActionBatch]) -> None:
        """See ``Environment``. That a worker is gone shows in ``wait``."""
        known = self._workers[worker]
        if known.phase is not _Phase.WAITING:
            raise ValueError(f"Worker {worker} has sent no event that waits for an answer.")
        known.phase = _Phase.WORKING
        known.slot.send(actions, known.take_changes())

    def close(self) -> None:
        """See ``Environment``."""
        self._slots.close()

    def kill(self) -> None:
        """See ``Environment``."""
        for worker in self._workers:
            worker.slot.kill()

    def _advance(self, deadline_s: float | None) -> list[EnvironmentEvent]:
        """Start again who is due, wait until something happens, handle it."""
        self._start_again()
        events = (
            self._handle(self._workers[number], report)
            for number, report in self._slots.reports(self._pause_s(deadline_s))
        )
        return [event for event in events if event is not None]

    def _pause_s(self, deadline_s: float | None) -> float | None:
        """Return how long to wait: until the deadline or the next restart."""
        ends = [worker.start_s for worker in self._workers if worker.phase is _Phase.DOWN]
        if deadline_s is not None:
            ends.append(deadline_s)
        return max(0.0, min(ends) - self._clock()) if ends else None

    def _handle(self, worker: _Worker, report: Report) -> EnvironmentEvent | None:
        """Take a report in; return the event if the collector shall see it."""
        if isinstance(report, EnvironmentFaultError):
            self._fail(worker, report)
            return None
        if isinstance(report, Connected):
            worker.phase = _Phase.CONNECTED
            worker.has_connected = self._anyone_connected = True
            worker.connected_s = self._clock()
            worker.changes = dict(self._parameters)
            if self._is_running:
                self._reset(worker)
            return None
        if self._has_another_order(report):
            self._start_with_order(worker)
            return None
        worker.phase = _Phase.WAITING
        self._check_specs(worker, report.new_specs)
        report.take_over(worker.unseen)
        worker.unseen = None
        if worker.reset_is_due:
            worker.unseen = report
            self._reset(worker)
            return None
        return report

    def _has_another_order(self, event: EnvironmentEvent) -> bool:
        """Return whether raw images of an event were read in another order than those of the others before."""
        found = next(iter(event.raw_images.values()), RawImageOrder.AUTO)
        if self._image_order is RawImageOrder.AUTO:
            self._image_order = found
        return found not in (RawImageOrder.AUTO, self._image_order)

    def _start_with_order(self, worker: _Worker) -> None:
        _LOGGER.warning(
            "The raw images of environment %d seem to come in another order than those of the others. It is started "
            "again and read as they are, as %s. If that is wrong, set raw_image_order.",
            worker.slot.number,
            self._image_order.value,
        )
        worker.phase = _Phase.STARTING
        worker.reset_is_due = False
        worker.unseen = None
        worker.slot.start(self._image_order)

    def _check_specs(self, worker: _Worker, specs: Mapping[str, BehaviorSpec]) -> None:
        for name, spec in specs.items():
            known = self._specs.setdefault(name, spec)
            if known != spec:
                raise EnvironmentFaultError(
                    f"Environment {worker.slot.number} announces the behavior {name!r} as {spec}, but it was "
                    f"announced as {known} before. All environments of a run must be alike, and stay so when they "
                    "start again."
                )

    def _reset(self, worker: _Worker) -> None:
        worker.reset_is_due = False
        worker.phase = _Phase.WORKING
        worker.slot.reset(worker.take_changes())

    def _fail(self, worker: _Worker, fault: EnvironmentFaultError) -> None:
        now_s = self._clock()
        worked_s = now_s - worker.connected_s if worker.phase not in (_Phase.STARTING, _Phase.DOWN) else 0.0
        if self._is_hopeless(worker, fault):
            raise fault
        refusal = worker.quota.refusal(now_s)
        if refusal is not None:
            raise EnvironmentFaultError(
                f"Environment {worker.slot.number} failed and is not started again, as {refusal}. {fault}"
            ) from fault
        delay_s = worker.quota.grant(now_s, worked_s)
        worker.phase = _Phase.DOWN
        worker.start_s = now_s + delay_s
        worker.reset_is_due = False
        worker.unseen = None
        most = self._settings.max_lifetime_restarts
        _LOGGER.warning(
            "Restarting worker[%d] in %.2f s (restart %d%s) after: %s",
            worker.slot.number,
            delay_s,
            worker.quota.used,
            "" if most == UNLIMITED else f" of {most}",
            fault,
        )

    def _is_hopeless(self, worker: _Worker, fault: EnvironmentFaultError) -> bool:
        if isinstance(fault, PlayerVersionError):
            return True
        if isinstance(fault, LaunchError | PortInUseError):
            return not worker.has_connected
        if isinstance(fault, PlayerTimeoutError) and worker.phase is _Phase.STARTING:
            # An Editor in which nobody presses Play again is not worth ten more tries, nor is a build that never came.
            return not self._anyone_connected or self._settings.env_path is None
        return False

    def _start_again(self) -> None:
        now_s = self._clock()
        for worker in self._workers:
            if worker.phase is _Phase.DOWN and worker.start_s <= now_s:
                worker.phase = _Phase.STARTING
                worker.slot.start(self._image_order)
