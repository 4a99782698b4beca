"""Which members of a group are at work, and when one that has failed is started again.

    DOWN --start_due--> STARTING --ready--> READY --working--> WORKING
      ^                    |                  ^      ready        |
      |                    |                  +-------------------+
      +------failed--------+------------------+-------------------+------failed, leave_out--> OUT

It knows numbers, phases, quotas and times. Its owner knows what a member is (an environment, an actor), how it is
started, and how to talk to it.
"""

from __future__ import annotations

import enum
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from trajtrainer.core.errors import EnvironmentFaultError, UnsupportedError
from trajtrainer.settings.environment import EnvironmentSettings
from trajtrainer.workers.quota import UNLIMITED, RestartQuota

_LOGGER = logging.getLogger(__name__)


class Phase(enum.Enum):
    """The state of a member."""

    STARTING = enum.auto()
    READY = enum.auto()  # it waits until it is told something
    WORKING = enum.auto()  # something is to come from it
    DOWN = enum.auto()  # it will be started, at ``start_s``
    OUT = enum.auto()  # it will not


@dataclass(slots=True, eq=False)
class Member:
    """One member as its supervisor knows it; times are seconds of the supervisor's clock.

    Attributes:
        has_been_ready: whether it ever came up.
        start_s: when it is started, while it is down.
        ready_s: when it last came up.
        heard_s: when something last went to it or came from it; None before that, after each start.
    """

    number: int
    quota: RestartQuota
    phase: Phase = Phase.DOWN
    has_been_ready: bool = False
    start_s: float = float("-inf")
    ready_s: float = 0.0
    heard_s: float | None = None


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules in which groups differ.

    Attributes:
        noun: a member in messages: ``Environment``.
        restarting: the same in the line of a restart, with a place for its number: ``worker[%d]``.
        is_hopeless: whether a restart cannot heal this fault of a member; the last argument is whether any member ever
            came up.
        spares_others: whether the others go on without a member that is not started again.
    """

    noun: str
    restarting: str
    is_hopeless: Callable[[Member, EnvironmentFaultError, bool], bool]
    spares_others: bool = False


class Supervisor:
    """Starts the members of a group, now and after failures.

    Args:
        count: of members, all down and due.
        settings: quotas.
        start: starts the member with this number; it calls ``ready``, perhaps at once, or ``failed``.
        rules: of this group.
        patience_s: how long a member may be silent when something is to come from it; None without limit.
        clock: seconds.
    """

    def __init__(
        self,
        count: int,
        settings: EnvironmentSettings,
        start: Callable[[int], None],
        rules: Rules,
        *,
        patience_s: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.members = [Member(number, RestartQuota(settings)) for number in range(count)]
        self._max_restarts = settings.max_lifetime_restarts
        self._start = start
        self._rules = rules
        self.patience_s = patience_s
        self._clock = clock
        self._told: Exception | None = None

    @property
    def has_begun(self) -> bool:
        """Whether any member ever came up."""
        return any(member.has_been_ready for member in self.members)

    def start_due(self) -> None:
        """Start the members whose time has come."""
        for member in self.members:
            if member.phase is Phase.DOWN and member.start_s <= self._clock():
                member.phase, member.heard_s = Phase.STARTING, None
                self._start(member.number)

    def restart(self, number: int) -> None:
        """Let a member be due at once, in place of what it was. This uses up none of its quota."""
        member = self.members[number]
        member.phase, member.start_s = Phase.DOWN, self._clock()

    def ready(self, number: int) -> None:
        """Note that a member has come up, or has done what it was told."""
        member = self.members[number]
        if member.phase is Phase.STARTING:
            member.has_been_ready, member.ready_s = True, self._clock()
        member.phase = Phase.READY

    def working(self, number: int) -> None:
        """Note that a member was told something, so that something is to come from it."""
        self.members[number].phase = Phase.WORKING
        self.heard(number)

    def heard(self, number: int) -> None:
        """Note that something has gone to a member or come from it."""
        self.members[number].heard_s = self._clock()

    def failed(self, number: int, error: Exception, refusal: str | None = None) -> bool:
        """Let a member that has failed be started again after a delay, or leave it out.

        Args:
            number: of the member.
            error: what went wrong.
            refusal: why it must not be started again, if the owner knows; else its quota decides.

        Returns:
            Whether it will be started again.

        Raises:
            Exception: ``error``, which no restart heals.
            EnvironmentFaultError: it is not started again, and nothing goes on without it.
        """
        member, now_s = self.members[number], self._clock()
        if not isinstance(error, EnvironmentFaultError) or self._rules.is_hopeless(member, error, self.has_begun):
            raise error
        worked_s = now_s - member.ready_s if member.phase in (Phase.READY, Phase.WORKING) else 0.0
        refusal = refusal or member.quota.refusal(now_s)
        if refusal is not None:
            member.phase = Phase.OUT
            others = sum(each.phase is not Phase.OUT for each in self.members)
            if not others or not self._rules.spares_others:
                raise EnvironmentFaultError(
                    f"{self._rules.noun} {number} failed and is not started again, as {refusal}. {error}"
                ) from error
            _LOGGER.error(
                "%s %d failed and is left out, as %s; %d go on. %s", self._rules.noun, number, refusal, others, error
            )
            return False
        delay_s = member.quota.grant(now_s, worked_s)
        member.phase, member.start_s = Phase.DOWN, now_s + delay_s
        is_told, self._told = error is self._told, error  # one error may take several members
        _LOGGER.log(
            logging.DEBUG if is_told else logging.WARNING,
            "Restarting %s in %.2f s (restart %d%s) after: %s",
            self._rules.restarting % number,
            delay_s,
            member.quota.used,
            "" if self._max_restarts == UNLIMITED else f" of {self._max_restarts}",
            error,
        )
        return True

    def leave_out(self, number: int, reason: str) -> None:
        """Leave out a member that is not like the others.

        Raises:
            UnsupportedError: it was the last.
        """
        self.members[number].phase = Phase.OUT
        message = f"{self._rules.noun} {number} is left out: {reason}"
        if all(member.phase is Phase.OUT for member in self.members):
            raise UnsupportedError(message)
        _LOGGER.error("%s", message)

    def pause_s(self, timeout_s: float | None) -> float | None:
        """Return how long to wait: until the next start, but no longer than asked for."""
        ends = [member.start_s - self._clock() for member in self.members if member.phase is Phase.DOWN]
        if timeout_s is not None:
            ends.append(timeout_s)
        return max(0.0, min(ends)) if ends else None

    def silent(self, rests: Callable[[int], bool] = lambda _: False) -> list[int]:
        """Return the members from which something is to come and has not for longer than the patience lasts.

        Args:
            rests: whether the owner knows that nothing can come from a member now.
        """
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
