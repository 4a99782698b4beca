"""The results of episodes: returns and lengths, with their spread and the confidence interval of the mean."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from html import escape
from typing import Any

import numpy as np

_RESAMPLES = 10_000
_LEVEL = 0.95
_SEED = 0
# Maximum number of values to draw at once, which bounds the memory for any number of episodes.
_MOST_AT_ONCE = 1 << 20


@dataclass(frozen=True, slots=True)
class Episode:
    """One episode of one agent.

    Attributes:
        worker: index of the environment's copy, from 0.
        team: team of the agent.
        number: number of the episode, from 0, in the order in which this worker's and team's episodes started.
        reward: sum of the agent's own rewards.
        group_reward: sum of the rewards that the agent's group received during the episode.
        length: number of decisions.
        interrupted: True if a limit of the environment ended the episode.
        truncated: True if the evaluation's limit on the number of decisions ended the episode.
    """

    worker: int
    team: int
    number: int
    reward: float
    group_reward: float
    length: int
    interrupted: bool
    truncated: bool = False

    @property
    def total(self) -> float:
        """The return, which includes the group reward."""
        return self.reward + self.group_reward


@dataclass(frozen=True, slots=True)
class GroupEpisode:
    """One episode of a group, from the start of its first member's episode to the end of its last member's.

    Attributes:
        worker: index of the environment's copy, from 0.
        team: team of the group.
        number: number of the first member's episode.
        reward: sum of the group's rewards during the longest episode among the members that ended last.
    """

    worker: int
    team: int
    number: int
    reward: float


@dataclass(frozen=True, slots=True)
class EpisodeSample:
    """A sample of one value per episode.

    >>> EpisodeSample((1.0, 2.0, 3.0)).mean
    2.0
    """

    values: tuple[float, ...]

    def __len__(self) -> int:
        return len(self.values)

    @property
    def mean(self) -> float:
        """The mean. Like the other statistics, it is NaN if there are no values."""
        return math.fsum(self.values) / len(self) if self.values else math.nan

    @property
    def std(self) -> float:
        """The standard deviation of the values (normalized by their number, as in numpy)."""
        return float(np.std(self.values)) if self.values else math.nan

    @property
    def min(self) -> float:
        return min(self.values, default=math.nan)

    @property
    def max(self) -> float:
        return max(self.values, default=math.nan)

    def ci95(self) -> tuple[float, float]:
        """Return the 95 % confidence interval of the mean (percentile bootstrap with 10,000 resamples).

        See Efron and Tibshirani (1993), An Introduction to the Bootstrap, chapter 13. The result is deterministic.
        """
        if not self.values:
            return math.nan, math.nan
        values, random = np.array(self.values), np.random.default_rng(_SEED)
        at_once = max(1, _MOST_AT_ONCE // len(values))
        sizes = [min(at_once, _RESAMPLES - start) for start in range(0, _RESAMPLES, at_once)]
        means = [values[random.integers(0, len(values), (size, len(values)))].mean(axis=1) for size in sizes]
        low, high = np.quantile(np.concatenate(means), [(1 - _LEVEL) / 2, (1 + _LEVEL) / 2])
        return float(low), float(high)

    def to_json(self, *, with_interval: bool = True) -> dict[str, Any]:
        """Return all statistics as plain data, with None in place of values that are not finite."""
        found = {name: _plain(getattr(self, name)) for name in ("mean", "std", "min", "max")}
        interval = {"ci95": [_plain(bound) for bound in self.ci95()]} if with_interval else {}
        return {**found, **interval}


@dataclass(frozen=True, slots=True, repr=False)
class EvaluationResult:
    """The episodes of one behavior.

    Attributes:
        behavior: name of the behavior without the team.
        episodes: episodes sorted by team, worker and number.
        groups: episodes of the groups whose members' episodes are all in ``episodes``.
        decisions: number of decisions of all the behavior's agents, including those in episodes that do not count.
        seconds: time that all behaviors of the environment took together.
    """

    behavior: str
    episodes: tuple[Episode, ...]
    groups: tuple[GroupEpisode, ...]
    decisions: int
    seconds: float

    def __repr__(self) -> str:
        returns = self.returns
        spread = f", return {returns.mean:.3f} ± {returns.std:.3f}" if self.episodes else ""
        return f"<EvaluationResult {self.behavior}: {len(self.episodes)} episodes{spread}>"

    def _repr_html_(self) -> str:
        """Return a table with one row, for notebooks."""
        returns = self.returns
        cells = {
            "behavior": self.behavior,
            "episodes": f"{len(self.episodes):,}",
            "return": f"{returns.mean:.3f} ± {returns.std:.3f}",
            "range": f"{returns.min:.3f} to {returns.max:.3f}",
            "mean length": f"{self.lengths.mean:.1f}",
        }
        head = "".join(f"<th>{title}</th>" for title in cells)
        body = "".join(f"<td>{escape(cell)}</td>" for cell in cells.values())
        return f"<table><thead><tr>{head}</tr></thead><tbody><tr>{body}</tr></tbody></table>"

    @property
    def returns(self) -> EpisodeSample:
        """The return of each episode."""
        return EpisodeSample(tuple(episode.total for episode in self.episodes))

    @property
    def lengths(self) -> EpisodeSample:
        """The number of decisions of each episode."""
        return EpisodeSample(tuple(float(episode.length) for episode in self.episodes))

    @property
    def num_truncated(self) -> int:
        """The number of episodes that were ended by the evaluation's limit on the number of decisions."""
        return sum(episode.truncated for episode in self.episodes)

    @property
    def group_returns(self) -> EpisodeSample:
        """The sum of rewards in each group's episode."""
        return EpisodeSample(tuple(group.reward for group in self.groups))

    @property
    def teams(self) -> Mapping[int, EvaluationResult]:
        """The result of each team. The decisions and seconds are those of all teams together."""
        found = {}
        for team in sorted({episode.team for episode in self.episodes}):
            episodes = tuple(episode for episode in self.episodes if episode.team == team)
            groups = tuple(group for group in self.groups if group.team == team)
            found[team] = replace(self, episodes=episodes, groups=groups)
        return found

    @property
    def decisions_per_second(self) -> float:
        """The number of decisions per second; NaN if no time has passed."""
        return self.decisions / self.seconds if self.seconds else math.nan

    def to_json(self) -> dict[str, Any]:
        """Return the result as plain data (docs/measure/evaluation.md#json)."""
        teams = self.teams if len(self.teams) > 1 else {}
        return {
            **self._spread(),
            "length": self.lengths.to_json(with_interval=False),
            "decisions": self.decisions,
            "seconds": self.seconds,
            "decisions_per_second": _plain(self.decisions_per_second),
            **({"teams": {str(team): result._spread() for team, result in teams.items()}} if teams else {}),
        }

    def _spread(self) -> dict[str, Any]:
        groups = {"groups": {"episodes": len(self.groups), **self.group_returns.to_json()}} if self.groups else {}
        return {"episodes": len(self.episodes), "truncated": self.num_truncated, **self.returns.to_json(), **groups}


def actions_in_words(*, deterministic: bool) -> str:
    """Describe how policies acted, for logs and tables."""
    return "most likely actions" if deterministic else "sampled actions"


def difference(result: EvaluationResult, first: EvaluationResult) -> EpisodeSample:
    """Return, for each episode in both results, its return in ``result`` minus its return in ``first``.

    Episodes are matched by worker, team and number.
    """
    earlier = {place(episode): episode.total for episode in first.episodes}
    both = [episode for episode in result.episodes if place(episode) in earlier]
    return EpisodeSample(tuple(episode.total - earlier[place(episode)] for episode in both))


def place(episode: Episode) -> tuple[int, int, int]:
    """Return the team, worker and number of an episode, by which episodes are sorted and compared."""
    return episode.team, episode.worker, episode.number


def _plain(number: float) -> float | None:
    return number if math.isfinite(number) else None
