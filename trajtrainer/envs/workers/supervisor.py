"""Tracks which members of a group are working, and decides when a failed member is restarted.

    DOWN --start_due--> STARTING --ready--> READY --working--> WORKING
      ^                    |                  ^      ready        |
      |                    |                  +-------------------+
      +------failed--------+------------------+-------------------+------failed, leave_out--> OUT

A supervisor handles only numbers, phases, quotas and times. Its owner provides the members (environments, actors), and
the code to start them and communicate with them.
"""

from __future__ import annotations

import enum
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from trajtrainer.core.errors import EnvironmentFaultError, UnsupportedError
from trajtrainer.settings.environment import EnvironmentSettings

_LOGGER = logging.getLogger(__name__)

UNLIMITED = -1
FIRST_DELAY_S = 0.25
LONGEST_DELAY_S = 30.0
# A member that has worked for this long gets the shortest delay again, no matter how long its last delay was. If longer
# delays required more work first, a member that crashes every few seconds would soon spend all its time waiting.
RECOVERED_S = 5.0


class RestartQuota:
    """Limits how often and how soon one member is restarted.

    It allows ``max_lifetime_restarts`` per run, and ``restarts_rate_limit_n`` within any
    ``restarts_rate_limit_period_s`` seconds; -1 means no limit. Each delay is twice as long as the one before, unless
    the member worked for a while in between. A member that never starts successfully is therefore retried less and less
    often, and one that crashes occasionally is restarted quickly.
    """

    def __init__(self, settings: EnvironmentSettings) -> None:
        self._lifetime = settings.max_lifetime_restarts
        self._rate = settings.restarts_rate_limit_n
        self._period_s = float(settings.restarts_rate_limit_period_s)
        self._recent: list[float] = []
        self._delay_s = 0.0
        self.used = 0

    def refusal(self, now_s: float) -> str | None:
        """Return why a restart is not allowed now, as part of a message; None if it is allowed."""
        if self._lifetime != UNLIMITED and self.used >= self._lifetime:
            return f"it has already been restarted {self.used} times (max_lifetime_restarts: {self._lifetime})"
        self._recent = [then_s for then_s in self._recent if now_s - then_s < self._period_s]
        if self._rate != UNLIMITED and len(self._recent) >= self._rate:
            return (
                f"it has already been restarted {len(self._recent)} times within the last {self._period_s:g} seconds "
                f"(restarts_rate_limit_n: {self._rate}, restarts_rate_limit_period_s: {self._period_s:g})"
            )
        return None

    def grant(self, now_s: float, worked_s: float) -> float:
        """Count a restart of a member that worked for ``worked_s`` seconds. Return the delay before it, in seconds."""
        self.used += 1
        if self._rate != UNLIMITED:
            self._recent.append(now_s)
        doubled_s = 2 * self._delay_s if worked_s < RECOVERED_S else 0.0
        self._delay_s = min(max(FIRST_DELAY_S, doubled_s), LONGEST_DELAY_S)
        return self._delay_s


class Phase(enum.Enum):
    """The state of a member."""

    STARTING = enum.auto()
    READY = enum.auto()  # waiting for work from its owner
    WORKING = enum.auto()  # its owner is waiting for a result
    DOWN = enum.auto()  # will be started at ``start_s``
    OUT = enum.auto()  # will not be started again


@dataclass(slots=True, eq=False)
class Member:
    """A supervisor's record of one member. Times are seconds on the supervisor's clock.

    Attributes:
        start_s: when to start it, if it is down.
        ready_s: when it last became ready after a start.
        heard_s: time of the last message to it or from it; None if there have been no messages since its start.
    """

    number: int
    quota: RestartQuota
    phase: Phase = Phase.DOWN
    has_been_ready: bool = False
    start_s: float = float("-inf")
    ready_s: float = 0.0
    heard_s: float | None = None


class Supervisor:
    """Starts all members of a group, and restarts those that fail.

    Args:
        count: number of members.
        settings: settings with the restart quotas.
        start: starts the member with a given number. ``ready`` or ``failed`` must be called then or later.
        noun: name of a member in messages, such as ``Environment``.
        restarting: name of a member in the message about a restart, such as ``worker[%d]``.
        is_hopeless: returns whether a restart cannot fix a member's fault. The last argument is ``has_begun``.
        spares_others: whether the others continue without a member that is left out.
        patience_s: seconds that a member may be silent while its owner waits for it; None for no limit.

    Attributes:
        ends: True once the owner has killed all members, so that none is restarted.
    """

    def __init__(
        self,
        count: int,
        settings: EnvironmentSettings,
        start: Callable[[int], None],
        *,
        noun: str,
        restarting: str,
        is_hopeless: Callable[[Member, EnvironmentFaultError, bool], bool],
        spares_others: bool = False,
        patience_s: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.members = [Member(number, RestartQuota(settings)) for number in range(count)]
        self.patience_s = patience_s
        self.ends = False
        self._max_restarts = settings.max_lifetime_restarts
        self._start = start
        self._noun, self._restarting = noun, restarting
        self._is_hopeless = is_hopeless
        self._spares_others = spares_others
        self._clock = clock
        self._logged: Exception | None = None

    @property
    def has_begun(self) -> bool:
        """True if any member has ever been ready."""
        return any(member.has_been_ready for member in self.members)

    def start_due(self) -> None:
        """Start the members that are due.

        Raises:
            EnvironmentFaultError: all members have been killed.
        """
        if self.ends:
            raise EnvironmentFaultError(f"{self._noun} 0 has been killed.")
        for member in self.members:
            if member.phase is Phase.DOWN and member.start_s <= self._clock():
                member.phase, member.heard_s = Phase.STARTING, None
                self._start(member.number)

    def restart(self, number: int) -> None:
        """Schedule an immediate restart of a member, without counting it against the quota."""
        member = self.members[number]
        member.phase, member.start_s = Phase.DOWN, self._clock()

    def ready(self, number: int) -> None:
        """Record that a member has started or has finished its work."""
        member = self.members[number]
        if member.phase is Phase.STARTING:
            member.has_been_ready, member.ready_s = True, self._clock()
        member.phase = Phase.READY

    def working(self, number: int) -> None:
        """Record that a member has been given work."""
        self.members[number].phase = Phase.WORKING
        self.heard(number)

    def heard(self, number: int) -> None:
        """Record that a message was sent to a member or received from it."""
        self.members[number].heard_s = self._clock()

    def failed(self, number: int, error: Exception, refusal: str | None = None) -> bool:
        """Schedule the restart of a member that has failed, or leave it out.

        Args:
            number: number of the member.
            error: what went wrong.
            refusal: why it must not be restarted; None leaves the decision to its quota.

        Returns:
            True if the member will be restarted.

        Raises:
            Exception: ``error`` itself, if no restart can fix it.
            EnvironmentFaultError: the member is not restarted, and the others do not continue without it.
        """
        member, now_s = self.members[number], self._clock()
        if self.ends or not isinstance(error, EnvironmentFaultError):
            raise error
        if self._is_hopeless(member, error, self.has_begun):
            raise error
        refusal = refusal or member.quota.refusal(now_s)
        if refusal is not None:
            member.phase = Phase.OUT
            others = sum(each.phase is not Phase.OUT for each in self.members)
            if not others or not self._spares_others:
                raise EnvironmentFaultError(
                    f"{self._noun} {number} failed and will not be restarted, because {refusal}. {error}"
                ) from error
            _LOGGER.error(
                "%s %d failed and will not be restarted, because %s; %d remaining. %s",
                self._noun,
                number,
                refusal,
                others,
                error,
            )
            return False
        worked_s = now_s - member.ready_s if member.phase in (Phase.READY, Phase.WORKING) else 0.0
        delay_s = member.quota.grant(now_s, worked_s)
        member.phase, member.start_s = Phase.DOWN, now_s + delay_s
        is_logged, self._logged = error is self._logged, error  # warn only once if one error affects several members
        _LOGGER.log(
            logging.DEBUG if is_logged else logging.WARNING,
            "Restarting %s in %.2f s (restart %d%s) after: %s",
            self._restarting % number,
            delay_s,
            member.quota.used,
            "" if self._max_restarts == UNLIMITED else f" of {self._max_restarts}",
            error,
        )
        return True

    def leave_out(self, number: int, reason: str) -> None:
        """Leave out a member that differs from the others. Raises ``UnsupportedError`` if no other is left."""
        self.members[number].phase = Phase.OUT
        message = f"{self._noun} {number} is excluded from the run: {reason}"
        if all(member.phase is Phase.OUT for member in self.members):
            raise UnsupportedError(message)
        _LOGGER.error("%s", message)

    def pause_s(self, timeout_s: float | None) -> float | None:
        """Return how long the owner may wait: ``timeout_s``, or less if a member is due sooner. None means no limit."""
        pause_s = timeout_s
        for member in self.members:
            if member.phase is Phase.DOWN:
                due_s = max(0.0, member.start_s - self._clock())
                pause_s = due_s if pause_s is None else min(pause_s, due_s)
        return pause_s

    def silent(self, rests: Callable[[int], bool] = lambda _: False) -> list[int]:
        """Return the members that have been silent for too long, except those for which ``rests`` is True."""
        if self.patience_s is None:
            return []
        latest_s = self._clock() - self.patience_s
        return [
            member.number
            for member in self.members
            if member.phase in (Phase.STARTING, Phase.WORKING)
            and member.heard_s is not None
            and member.heard_s < latest_s
            and not rests(member.number)
        ]
