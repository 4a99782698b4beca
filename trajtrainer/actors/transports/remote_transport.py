"""What the transports to actors outside the learner's loop share."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence

from trajtrainer.actors.messages import Report, Take
from trajtrainer.algos.acting import Policy
from trajtrainer.core.stats import StatsReporter
from trajtrainer.core.timers import Timers
from trajtrainer.data.source import ExperienceSource


class RemoteTransport(ABC):
    """See ``Transport``.

    Args:
        timers: of the run.
    """

    runs_meanwhile = True
    shared = None

    def __init__(self, timers: Timers) -> None:
        self.waited_s = 0.0
        self._timers = timers

    def add(  # noqa: B027
        self, behavior: str, policy: Policy, reporter: StatsReporter, source: ExperienceSource | None
    ) -> None:
        """See ``Transport``: these parts stay with the learner."""

    def poll(self, timeout_s: float | None, take: Take) -> int:
        """See ``Transport``."""
        with self._timers("env_step") as step:
            step.part("env_wait")
            begin_s = time.monotonic()
            reports = self.reports(timeout_s)
            self.waited_s += time.monotonic() - begin_s
            step.part("record")
            for number, report in reports:
                take(number, report)
        return len(reports)

    @abstractmethod
    def reports(self, timeout_s: float | None) -> Sequence[tuple[int, Report]]:
        """Wait until something comes from any actor; return all that is there with the numbers of the actors.

        May return nothing before the time is over.
        """
