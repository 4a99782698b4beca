"""Several environments as one, each of which may fail and is then started again while the others go on."""

from __future__ import annotations

import enum
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from trajtrainer.envs.protocol import Parameters
from trajtrainer.envs.restart_quota import UNLIMITED, RestartQuota
from trajtrainer.envs.seat import Connected, Report, Seat, Seats
from trajtrainer.errors import EnvironmentFaultError
from trajtrainer.settings.environment import EnvironmentSettings, Sampler
from trajtrainer.spec import BehaviorSpec
from trajtrainer.steps import ActionBatch, EnvironmentEvent
from trajtrainer.unity.faults import LaunchError, PlayerTimeoutError, PlayerVersionError, PortInUseError

_LOGGER = logging.getLogger(__name__)


class _Phase(enum.Enum):
    """Whose turn it is with an environment."""

    STARTING = enum.auto()
    CONNECTED = enum.auto()  # it waits for its first reset
    WORKING = enum.auto()  # it owes an event
    WAITING = enum.auto()  # it waits for the answer to its event
    DOWN = enum.auto()  # it will be started again


@dataclass(slots=True)
class _Place:
    """One environment as the others' keeper sees it.

    Attributes:
        seat: where it lives.
        quota: its restarts.
        phase: whose turn it is.
        has_connected: whether it ever came up.
        reset_is_due: its next event will be answered with a reset before anybody sees it.
        changes: parameters that it does not have yet.
        unseen: an event that was answered with a reset before anybody saw it.
        start_s: when it is started again, while it is down.
        connected_s: when it came up.
    """

    seat: Seat
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


class Workers:
    """An ``Environment`` of several, each on a seat of its own.

    The constructor starts all of them and returns when the first is there. The others come when they are ready.

    One that fails is started again within the quotas of the settings, after a delay that grows, and is reset with all
    parameters; its next event has ``is_reset``. Beyond the quota ``wait`` raises what went wrong. Faults that a restart
    cannot heal (a build that does not exist, another version of the wire, a port that is taken, a first player that
    never connects) are raised at once.

    Args:
        seats: where the environments live, none started yet.
        settings: quotas.
        clock: seconds.

    Raises:
        EnvironmentFaultError: see above.
    """

    def __init__(
        self, seats: Seats, settings: EnvironmentSettings, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._seats = seats
        self._settings = settings
        self._clock = clock
        self._places = [_Place(seats[number], RestartQuota(settings)) for number in range(len(seats))]
        self._parameters: dict[str, Sampler] = {}
        self._specs: dict[str, BehaviorSpec] = {}
        self._is_running = False
        self._anyone_connected = False
        try:
            for place in self._places:
                place.seat.start()
            while not self._anyone_connected:
                self._advance(None)
        except BaseException:
            self.kill()
            self.close()
            raise

    @property
    def num_workers(self) -> int:
        return len(self._places)

    def reset(self, parameters: Parameters) -> None:
        """See ``Environment``."""
        self.set_parameters(parameters)
        self._is_running = True
        for place in self._places:
            if place.phase in (_Phase.CONNECTED, _Phase.WAITING):
                self._reset(place)
            elif place.phase is _Phase.WORKING:
                place.reset_is_due = True

    def set_parameters(self, parameters: Parameters) -> None:
        """See ``Environment``."""
        self._parameters |= parameters
        for place in self._places:
            place.changes |= parameters

    def wait(self, timeout_s: float | None = None) -> list[EnvironmentEvent]:
        """See ``Environment``. The arrays of an event are valid until it is answered."""
        deadline_s = None if timeout_s is None else self._clock() + timeout_s
        while True:
            events = self._advance(deadline_s)
            if events or (deadline_s is not None and self._clock() >= deadline_s):
                return events

    def send(self, worker: int, actions: Mapping[str, ActionBatch]) -> None:
        """See ``Environment``. That a worker is gone shows in ``wait``."""
        place = self._places[worker]
        if place.phase is not _Phase.WAITING:
            raise ValueError(f"Worker {worker} has sent no event that waits for an answer.")
        place.phase = _Phase.WORKING
        place.seat.send(actions, place.take_changes())

    def close(self) -> None:
        """See ``Environment``."""
        self._seats.close()

    def kill(self) -> None:
        """See ``Environment``."""
        for place in self._places:
            place.seat.kill()

    def _advance(self, deadline_s: float | None) -> list[EnvironmentEvent]:
        """Starts again who is due, waits until something happens, sees to it."""
        self._start_again()
        events = (
            self._see_to(self._places[number], report)
            for number, report in self._seats.reports(self._pause_s(deadline_s))
        )
        return [event for event in events if event is not None]

    def _pause_s(self, deadline_s: float | None) -> float | None:
        """How long to wait: until the deadline or the next restart."""
        ends = [place.start_s for place in self._places if place.phase is _Phase.DOWN]
        if deadline_s is not None:
            ends.append(deadline_s)
        return max(0.0, min(ends) - self._clock()) if ends else None

    def _see_to(self, place: _Place, report: Report) -> EnvironmentEvent | None:
        """Returns the event if the collector shall see it."""
        if isinstance(report, EnvironmentFaultError):
            self._fail(place, report)
            return None
        if isinstance(report, Connected):
            place.phase = _Phase.CONNECTED
            place.has_connected = self._anyone_connected = True
            place.connected_s = self._clock()
            place.changes = dict(self._parameters)
            if self._is_running:
                self._reset(place)
            return None
        place.phase = _Phase.WAITING
        self._check_specs(place, report.new_specs)
        report.take_over(place.unseen)
        place.unseen = None
        if place.reset_is_due:
            place.unseen = report
            self._reset(place)
            return None
        return report

    def _check_specs(self, place: _Place, specs: Mapping[str, BehaviorSpec]) -> None:
        for name, spec in specs.items():
            known = self._specs.setdefault(name, spec)
            if known != spec:
                raise EnvironmentFaultError(
                    f"Environment {place.seat.number} announces the behaviour {name!r} as {spec}, but it was announced "
                    f"as {known} before. All environments of a run must be alike, and stay so when they start again."
                )

    def _reset(self, place: _Place) -> None:
        place.reset_is_due = False
        place.phase = _Phase.WORKING
        place.seat.reset(place.take_changes())

    def _fail(self, place: _Place, fault: EnvironmentFaultError) -> None:
        now_s = self._clock()
        worked_s = now_s - place.connected_s if place.phase not in (_Phase.STARTING, _Phase.DOWN) else 0.0
        if self._is_hopeless(place, fault):
            raise fault
        refusal = place.quota.refusal(now_s)
        if refusal is not None:
            raise EnvironmentFaultError(
                f"Environment {place.seat.number} failed and is not started again, as {refusal}. {fault}"
            ) from fault
        delay_s = place.quota.grant(now_s, worked_s)
        place.phase = _Phase.DOWN
        place.start_s = now_s + delay_s
        place.reset_is_due = False
        place.unseen = None
        most = self._settings.max_lifetime_restarts
        _LOGGER.warning(
            "Restarting worker[%d] in %.2f s (restart %d%s) after: %s",
            place.seat.number,
            delay_s,
            place.quota.used,
            "" if most == UNLIMITED else f" of {most}",
            fault,
        )

    def _is_hopeless(self, place: _Place, fault: EnvironmentFaultError) -> bool:
        if isinstance(fault, PlayerVersionError):
            return True
        if isinstance(fault, LaunchError | PortInUseError):
            return not place.has_connected
        if isinstance(fault, PlayerTimeoutError) and place.phase is _Phase.STARTING:
            # An Editor in which nobody presses Play again is not worth ten more tries, nor is a build that never came.
            return not self._anyone_connected or self._settings.env_path is None
        return False

    def _start_again(self) -> None:
        now_s = self._clock()
        for place in self._places:
            if place.phase is _Phase.DOWN and place.start_s <= now_s:
                place.phase = _Phase.STARTING
                place.seat.start()
