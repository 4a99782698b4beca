"""How often, and after which delay."""

from __future__ import annotations

from itertools import pairwise
from random import Random

from trajtrainer.envs.workers.supervisor import FIRST_DELAY_S, LONGEST_DELAY_S, RECOVERED_S, RestartQuota
from trajtrainer.settings.environment import EnvironmentSettings


def quota(lifetime: int, rate: int, period_s: int = 60) -> RestartQuota:
    return RestartQuota(
        EnvironmentSettings(
            max_lifetime_restarts=lifetime, restarts_rate_limit_n=rate, restarts_rate_limit_period_s=period_s
        )
    )


def test_the_defaults_allow_one_restart_a_minute_and_ten_in_all() -> None:
    restarts = RestartQuota(EnvironmentSettings())
    for count in range(10):
        now_s = 60.0 * count
        assert restarts.refusal(now_s) is None
        restarts.grant(now_s, 50.0)
        if count < 9:
            assert "within the last 60 seconds" in str(restarts.refusal(now_s + 59.9))
    assert "max_lifetime_restarts: 10" in str(restarts.refusal(1e6))
    assert restarts.used == 10


def test_several_in_a_period() -> None:
    restarts = quota(-1, 3, 10)
    for now_s in (0.0, 4.0, 8.0):
        assert restarts.refusal(now_s) is None
        restarts.grant(now_s, 0.0)
    assert restarts.refusal(9.9) is not None
    assert restarts.refusal(10.0) is None
    restarts.grant(10.0, 0.0)
    assert restarts.refusal(13.9) is not None


def test_no_limits() -> None:
    restarts = quota(-1, -1)
    for _ in range(1000):
        assert restarts.refusal(0.0) is None
        restarts.grant(0.0, 0.0)


def test_none_at_all() -> None:
    assert quota(0, -1).refusal(0.0) is not None
    assert quota(-1, 0).refusal(0.0) is not None


def test_the_delay_doubles_while_it_does_not_work() -> None:
    restarts = quota(-1, -1)
    delays = [restarts.grant(0.0, 0.0) for _ in range(12)]
    assert delays[0] == FIRST_DELAY_S
    assert all(later == min(2 * earlier, LONGEST_DELAY_S) for earlier, later in pairwise(delays))
    assert delays[-1] == LONGEST_DELAY_S


def test_the_delay_is_the_shortest_again_after_good_work() -> None:
    restarts = quota(-1, -1)
    for _ in range(20):
        assert restarts.grant(0.0, 0.9 * RECOVERED_S) <= LONGEST_DELAY_S
    assert restarts.grant(0.0, RECOVERED_S) == FIRST_DELAY_S


def test_one_that_crashes_every_few_seconds_still_works_most_of_the_time() -> None:
    """Lives of random length, the mean of which is 8 s: the delays must not take over."""
    draw = Random(1)
    restarts = quota(-1, -1)
    worked_s = [draw.expovariate(1 / 8) for _ in range(1000)]
    waited_s = sum(restarts.grant(0.0, each) for each in worked_s)
    assert waited_s < 0.25 * sum(worked_s)
