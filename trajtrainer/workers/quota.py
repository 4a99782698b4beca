"""Limit how often a failed environment may be started again, and say how long to wait before."""

from __future__ import annotations

from trajtrainer.settings.environment import EnvironmentSettings

UNLIMITED = -1
FIRST_DELAY_S = 0.25
LONGEST_DELAY_S = 30.0
# An environment that worked so long begins with the shortest delay again, whatever the last one was. Were it to work
# for longer the longer the delay has become, one that crashes every few seconds would soon do nothing but wait.
RECOVERED_S = 5.0


class RestartQuota:
    """The restarts of one environment.

    At most ``max_lifetime_restarts`` in a run, and at most ``restarts_rate_limit_n`` within any
    ``restarts_rate_limit_period_s`` seconds; -1 means no such limit. Each delay is twice the one before, unless the
    environment worked well in between. So one that never comes up costs little, and one that crashes now and then is
    back at once.
    """

    def __init__(self, settings: EnvironmentSettings) -> None:
        self._lifetime = settings.max_lifetime_restarts
        self._rate = settings.restarts_rate_limit_n
        self._period_s = float(settings.restarts_rate_limit_period_s)
        self._recent: list[float] = []
        self._delay_s = 0.0
        self.used = 0

    def refusal(self, now_s: float) -> str | None:
        """Return why there may be no restart now; None if there may be one."""
        if self._lifetime != UNLIMITED and self.used >= self._lifetime:
            return f"it has been restarted {self.used} times already (max_lifetime_restarts: {self._lifetime})"
        self._recent = [then_s for then_s in self._recent if now_s - then_s < self._period_s]
        if self._rate != UNLIMITED and len(self._recent) >= self._rate:
            return (
                f"it has been restarted {len(self._recent)} times within the last {self._period_s:g} seconds already "
                f"(restarts_rate_limit_n: {self._rate}, restarts_rate_limit_period_s: {self._period_s:g})"
            )
        return None

    def grant(self, now_s: float, worked_s: float) -> float:
        """Count a restart.

        Args:
            now_s: the time, on any clock that the calls share.
            worked_s: how long the environment worked before it failed.

        Returns:
            How many seconds to wait before it.
        """
        self.used += 1
        if self._rate != UNLIMITED:
            self._recent.append(now_s)
        doubled_s = 2 * self._delay_s if worked_s < RECOVERED_S else 0.0
        self._delay_s = min(max(FIRST_DELAY_S, doubled_s), LONGEST_DELAY_S)
        return self._delay_s
