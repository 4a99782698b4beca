"""What is in a recording: episodes, returns, observations, and how often each action was chosen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trajtrainer.core.columns import Columns
from trajtrainer.core.spec import BehaviorSpec, spec_to_plain
from trajtrainer.demos.pairing import Trajectory
from trajtrainer.demos.source import Source

_BINS = np.linspace(-1, 1, 11)


@dataclass(frozen=True, slots=True)
class Distribution:
    """Some numbers in four."""

    mean: float
    std: float
    min: float
    max: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Distribution:
        """Return that of one or more numbers."""
        found = np.array(values, np.float64)
        return cls(float(found.mean()), float(found.std()), float(found.min()), float(found.max()))


@dataclass(frozen=True, slots=True)
class Summary:
    """What is in a recording.

    Attributes:
        path: of the file.
        behavior: its name.
        spec: what was observed and done.
        steps: decisions.
        episodes: those that ended, by themselves or by their step limit.
        interrupted: those of them that ended by the limit.
        unfinished: trajectories that were cut off.
        returns: sums of rewards of all trajectories; None without any.
        group_returns: those of group rewards; None where no agent has a group.
        lengths: of all trajectories.
        discrete: per branch, how often each choice was made.
        continuous: per action, its mean, standard deviation, smallest and largest value.
        histogram: per continuous action, how many values lie in each of ten equal parts of -1 to 1; those beyond
            are counted in the outermost.
        masked: whether some action was forbidden.
    """

    path: Path
    behavior: str
    spec: BehaviorSpec
    steps: int
    episodes: int
    interrupted: int
    unfinished: int
    returns: Distribution | None
    group_returns: Distribution | None
    lengths: Distribution | None
    discrete: list[list[int]]
    continuous: list[Distribution]
    histogram: list[list[int]]
    masked: bool

    def to_plain(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        counts = {name: getattr(self, name) for name in ("steps", "episodes", "interrupted", "unfinished", "masked")}
        distributions = {name: _plain(getattr(self, name)) for name in ("returns", "group_returns", "lengths")}
        return {
            "file": str(self.path),
            "behavior": self.behavior,
            **counts,
            **distributions,
            **spec_to_plain(self.spec),
            "discrete": self.discrete,
            "continuous": [_plain(each) for each in self.continuous],
            "histogram": self.histogram,
        }


def summarize(source: Source) -> Summary:
    """Read a recording to its end.

    Raises:
        DemonstrationError: a step cannot be read.
    """
    counter = _Counter(source.spec)
    for trajectory in source.trajectories():
        counter.add(trajectory)
    return counter.summary(source)


class _Counter:
    def __init__(self, spec: BehaviorSpec) -> None:
        self._branches = spec.action_spec.discrete_branches
        size = spec.action_spec.continuous_size
        self._returns: list[float] = []
        self._group_returns: list[float] = []
        self._lengths: list[int] = []
        self._num_ended = self._num_interrupted = 0
        self._is_grouped = self._is_masked = False
        self._discrete = [np.zeros(branch, np.int64) for branch in self._branches]
        self._histogram = np.zeros((size, len(_BINS) - 1), np.int64)
        self._sums = np.zeros((2, size))
        self._extremes = np.stack([np.full(size, np.inf), np.full(size, -np.inf)])

    def add(self, trajectory: Trajectory) -> None:
        steps = trajectory.steps
        self._lengths.append(len(steps))
        self._returns.append(float(steps["reward"].sum(dtype=np.float64)))
        self._group_returns.append(float(steps["group_reward"].sum(dtype=np.float64)))
        self._num_ended += bool(steps["done"][-1])
        self._num_interrupted += bool(steps["interrupted"][-1])
        self._is_grouped |= bool(steps["group"].any())
        self._is_masked |= bool(steps["mask"].any())
        for branch, counts in enumerate(self._discrete):
            counts += np.bincount(steps["discrete"][:, branch], minlength=len(counts))
        self._add_continuous(steps)

    def _add_continuous(self, steps: Columns[NDArray[Any]]) -> None:
        values = steps["continuous"].astype(np.float64)
        self._sums += values.sum(0), (values**2).sum(0)
        self._extremes[0] = np.minimum(self._extremes[0], values.min(0, initial=np.inf))
        self._extremes[1] = np.maximum(self._extremes[1], values.max(0, initial=-np.inf))
        for counts, column in zip(self._histogram, values.T, strict=True):
            counts += np.histogram(np.clip(column, -1, 1), _BINS)[0]

    def summary(self, source: Source) -> Summary:
        count = sum(self._lengths)
        has_any = bool(self._lengths)
        means = self._sums[0] / max(1, count)
        deviations = np.sqrt(np.maximum(0, self._sums[1] / max(1, count) - means**2))
        return Summary(
            path=source.path,
            behavior=source.name,
            spec=source.spec,
            steps=count,
            episodes=self._num_ended,
            interrupted=self._num_interrupted,
            unfinished=len(self._lengths) - self._num_ended,
            returns=Distribution.of(self._returns) if has_any else None,
            group_returns=Distribution.of(self._group_returns) if has_any and self._is_grouped else None,
            lengths=Distribution.of(self._lengths) if has_any else None,
            discrete=[counts.tolist() for counts in self._discrete],
            continuous=[
                Distribution(*map(float, each)) for each in zip(means, deviations, *self._extremes, strict=True)
            ]
            if has_any
            else [],
            histogram=self._histogram.tolist(),
            masked=self._is_masked,
        )


def _plain(distribution: Distribution | None) -> dict[str, float] | None:
    if distribution is None:
        return None
    return {name: getattr(distribution, name) for name in Distribution.__slots__}
