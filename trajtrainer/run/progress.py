"""The progress of a run, as plain data for the live view."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from trajtrainer.core.stats import StatsSummary, StatsWriter
from trajtrainer.run.writers import CUMULATIVE_REWARD

_HISTORY = 512


@dataclass(frozen=True, slots=True)
class BehaviorProgress:
    """Progress of one behavior.

    Attributes:
        name: name of the behavior.
        step: trainer step.
        max_steps: step at which training ends.
        rewards: mean reward of each summary so far, oldest first (``RewardHistory.of``).
        training: False if the behavior only acts.
        done: True if training is complete.
        evaluated: mean return of the newest evaluation; None before the first.
        best: the value that the best model is ranked by; None before the first.
    """

    name: str
    step: int
    max_steps: int
    rewards: Sequence[float] = ()
    training: bool = True
    done: bool = False
    evaluated: float | None = None
    best: float | None = None


@dataclass(frozen=True, slots=True)
class RunProgress:
    """The content of the view.

    Attributes:
        behaviors: progress of each behavior.
        lessons: parameter -> name of its current lesson.
        epoch: the current epoch, such as "3 of 10"; empty without epochs.
        actors: state of the actors; empty if there are none outside the loop.
        ended: True if the run has ended.
    """

    behaviors: Sequence[BehaviorProgress]
    lessons: Mapping[str, str] = field(default_factory=dict)
    epoch: str = ""
    actors: str = ""
    ended: bool = False


class ProgressView:
    """Shows the progress of the main loop.

    This base class shows nothing. It is used for pipes, files, CI, ``--debug`` and ``--quiet``, which only show log
    lines.
    """

    def due(self, num_summaries: int = 0) -> bool:  # noqa: ARG002
        """Return whether it is time for ``update``. Saves the cost of creating a ``RunProgress`` if it is not.

        Args:
            num_summaries: number of summaries so far. New summaries are shown soon.
        """
        return False

    def update(self, progress: RunProgress) -> None:
        """Show the progress."""

    def close(self) -> None:
        """Leave the last state on the screen, and release the terminal. Can be called more than once."""

    def abandon(self) -> None:
        """Release the terminal without drawing or taking a lock, as ``StopRequest.on_abort`` requires."""


class RewardHistory(StatsWriter):
    """Keeps the mean reward of each summary for the view.

    Attributes:
        num_summaries: number of summaries of all behaviors so far.
    """

    def __init__(self) -> None:
        self.num_summaries = 0
        self._means: dict[str, deque[float]] = {}
        self._lock = threading.Lock()

    def write_stats(self, category: str, values: Mapping[str, StatsSummary], step: int) -> None:  # noqa: ARG002
        reward = values.get(CUMULATIVE_REWARD)
        with self._lock:
            self.num_summaries += 1
            if reward is not None:
                self._means.setdefault(category, deque(maxlen=_HISTORY)).append(reward.mean)

    def of(self, behavior: str) -> list[float]:
        """Return the newest few hundred mean rewards of a behavior, oldest first."""
        with self._lock:
            return list(self._means.get(behavior, ()))
