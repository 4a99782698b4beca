"""Phases, restarts and silence of members that do nothing at all."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from trajtrainer.core.errors import EnvironmentFaultError, SettingsError, UnsupportedError
from trajtrainer.envs.workers.supervisor import FIRST_DELAY_S, RECOVERED_S, Member, Phase, Supervisor
from trajtrainer.settings.environment import EnvironmentSettings

PATIENCE_S = 7.0
UNLIMITED = EnvironmentSettings(max_lifetime_restarts=-1, restarts_rate_limit_n=-1)


class HopelessError(EnvironmentFaultError):
    pass


def never_at_first(_: Member, fault: EnvironmentFaultError, has_begun: bool) -> bool:
    return isinstance(fault, HopelessError) and not has_begun


class Rig:
    def __init__(
        self, count: int = 2, settings: EnvironmentSettings = UNLIMITED, *, spares_others: bool = False
    ) -> None:
        self.now_s = 50.0
        self.started: list[int] = []
        self.supervisor = Supervisor(
            count,
            settings,
            self.started.append,
            noun="Member",
            restarting="the %d.",
            is_hopeless=never_at_first,
            spares_others=spares_others,
            patience_s=PATIENCE_S,
            clock=lambda: self.now_s,
        )

    def take(self) -> list[int]:
        started = list(self.started)
        self.started.clear()
        return started

    @property
    def phases(self) -> list[Phase]:
        return [member.phase for member in self.supervisor.members]


def at_work(count: int = 2, settings: EnvironmentSettings = UNLIMITED, *, spares_others: bool = False) -> Rig:
    rig = Rig(count, settings, spares_others=spares_others)
    rig.supervisor.start_due()
    for number in range(count):
        rig.supervisor.ready(number)
        rig.supervisor.working(number)
    rig.take()
    return rig


def test_all_are_started_once_and_work_when_they_are_told_to() -> None:
    rig = Rig()
    assert rig.supervisor.pause_s(3.0) == 0.0
    rig.supervisor.start_due()
    rig.supervisor.start_due()
    assert rig.take() == [0, 1]
    assert rig.phases == [Phase.STARTING] * 2
    begun = [rig.supervisor.has_begun]
    rig.supervisor.ready(1)
    begun.append(rig.supervisor.has_begun)
    assert begun == [False, True]
    rig.supervisor.working(1)
    assert rig.phases == [Phase.STARTING, Phase.WORKING]
    assert rig.supervisor.pause_s(3.0) == 3.0
    assert rig.supervisor.pause_s(None) is None


def test_a_failed_one_is_started_after_its_delay(caplog: pytest.LogCaptureFixture) -> None:
    rig = at_work()
    assert rig.supervisor.failed(1, EnvironmentFaultError("It fell."))
    assert "Restarting the 1. in 0.25 s (restart 1) after: It fell." in caplog.text
    assert rig.phases == [Phase.WORKING, Phase.DOWN]
    assert rig.supervisor.pause_s(None) == FIRST_DELAY_S
    rig.supervisor.start_due()
    assert rig.take() == []
    rig.now_s += FIRST_DELAY_S
    rig.supervisor.start_due()
    assert rig.take() == [1]


def test_the_delay_depends_on_how_long_it_worked_since_it_last_came_up() -> None:
    rig = at_work(1)
    delays = []
    for works_s in (RECOVERED_S, 0.0, 0.0, RECOVERED_S):
        rig.now_s += works_s
        rig.supervisor.ready(0)  # it has answered, which is not its coming up
        rig.supervisor.working(0)
        rig.supervisor.failed(0, EnvironmentFaultError("It fell."))
        delays.append(rig.supervisor.pause_s(None))
        rig.now_s += 100.0
        rig.supervisor.start_due()
        rig.supervisor.ready(0)
    assert delays == [FIRST_DELAY_S * factor for factor in (1, 2, 4, 1)]


def test_errors_that_no_restart_heals_are_raised() -> None:
    rig = Rig()
    rig.supervisor.start_due()
    with pytest.raises(HopelessError):
        rig.supervisor.failed(0, HopelessError("No such build."))
    with pytest.raises(SettingsError):
        rig.supervisor.failed(0, SettingsError("A mistake."))
    rig.supervisor.ready(1)
    assert rig.supervisor.failed(0, HopelessError("It is another one's fault, then."))


@pytest.mark.parametrize("own_reason", [None, "it said so"])
def test_beyond_the_quota_everything_ends_or_the_others_go_on(
    own_reason: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    none = EnvironmentSettings(max_lifetime_restarts=0)
    reason = own_reason or "it has already been restarted 0 times (max_lifetime_restarts: 0)"
    settings = UNLIMITED if own_reason else none
    fault = EnvironmentFaultError("It fell.")
    with pytest.raises(EnvironmentFaultError) as raised:
        at_work(2, settings).supervisor.failed(1, fault, own_reason)
    assert str(raised.value) == f"Member 1 failed and will not be restarted, because {reason}. It fell."
    rig = at_work(2, settings, spares_others=True)
    assert not rig.supervisor.failed(1, fault, own_reason)
    assert f"Member 1 failed and will not be restarted, because {reason}; 1 remaining. It fell." in caplog.text
    assert rig.phases == [Phase.WORKING, Phase.OUT]
    with pytest.raises(EnvironmentFaultError, match="Member 0 failed and will not be restarted"):
        rig.supervisor.failed(0, fault, own_reason)


def test_one_that_is_left_out_is_not_started_again(caplog: pytest.LogCaptureFixture) -> None:
    rig = at_work()
    rig.supervisor.leave_out(0, "it is another scene.")
    assert "Member 0 is excluded from the run: it is another scene." in caplog.text
    rig.now_s += 1e6
    rig.supervisor.start_due()
    assert rig.take() == []
    with pytest.raises(UnsupportedError, match="Member 1 is excluded from the run: so is this"):
        rig.supervisor.leave_out(1, "so is this.")


def test_a_restart_at_once_uses_up_nothing() -> None:
    rig = at_work(1, EnvironmentSettings(max_lifetime_restarts=1, restarts_rate_limit_n=-1))
    for _ in range(5):
        rig.supervisor.restart(0)
        rig.supervisor.start_due()
        rig.supervisor.ready(0)
    assert rig.take() == [0] * 5
    assert rig.supervisor.failed(0, EnvironmentFaultError("It fell."))


def heard(supervisor: Supervisor) -> None:
    supervisor.heard(0)


def told(supervisor: Supervisor) -> None:
    supervisor.working(0)


@pytest.mark.parametrize("sign", [heard, told])
def test_silence_is_counted_from_the_last_sign(sign: Callable[[Supervisor], None]) -> None:
    rig = at_work()
    rig.now_s += PATIENCE_S
    assert rig.supervisor.silent() == []
    sign(rig.supervisor)
    rig.now_s += 0.1
    assert rig.supervisor.silent() == [1]
    assert rig.supervisor.silent(lambda number: number == 1) == []
    rig.now_s += PATIENCE_S
    assert rig.supervisor.silent() == [0, 1]


def test_silence_is_nothing_unusual_where_nothing_is_to_come() -> None:
    rig = at_work(4)
    rig.supervisor.ready(0)
    rig.supervisor.leave_out(1, "it is another scene.")
    rig.supervisor.restart(2)
    rig.supervisor.start_due()  # and it is not heard of before it is there
    rig.now_s += 10 * PATIENCE_S
    assert rig.supervisor.silent() == [3]
