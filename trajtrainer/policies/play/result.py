"""The outcome of episodes: returns and lengths, their spread, and how certain their mean is."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from typing import Any

import numpy as np

_RESAMPLES = 10_000
_LEVEL = 0.95
_SEED = 0
# Numbers drawn at a time: the memory is bounded however many episodes there are.
_MOST_AT_ONCE = 1 << 20


@dataclass(frozen=True, slots=True)
class Episode:
    """One episode of one agent.

    Attributes:
        worker: the copy of the environment, from 0.
        team: of the agent.
        number: in the order in which the episodes of this worker and team began, from 0.
        reward: sum of the agent's own rewards.
        group_reward: sum of what its group received while it was there.
        length: decisions.
        interrupted: a limit of the environment ended it.
        truncated: the evaluation's limit of decisions ended it.
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
        """The return."""
        return self.reward + self.group_reward


@dataclass(frozen=True, slots=True)
class GroupEpisode:
    """One episode of a group, from its first member's beginning to its last one's end.

    Attributes:
        worker: the copy of the environment, from 0.
        team: of the group.
        number: of the episode of its first member.
        reward: what the group received during the longest episode among the members that ended it together.
    """

    worker: int
    team: int
    number: int
    reward: float


@dataclass(frozen=True, slots=True)
class EpisodeSample:
    """Numbers, one for each episode.

    >>> Sample((1.0, 2.0, 3.0)).mean
    2.0
    """

    values: tuple[float, ...]

    def __len__(self) -> int:
        return len(self.values)

    @property
    def mean(self) -> float:
        """NaN without values, as the other statistics are."""
        return math.fsum(self.values) / len(self) if self.values else math.nan

    @property
    def std(self) -> float:
        """The standard deviation of the values themselves (divided by their number, as in numpy)."""
        return float(np.std(self.values)) if self.values else math.nan

    @property
    def min(self) -> float:
        return min(self.values, default=math.nan)

    @property
    def max(self) -> float:
        return max(self.values, default=math.nan)

    def ci95(self) -> tuple[float, float]:
        """The 95 % interval of the mean: percentiles of the means of 10,000 bootstrap resamples.

        Efron and Tibshirani (1993), An Introduction to the Bootstrap, chapter 13. Equal values have
        equal intervals.
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
        """All statistics as plain data, null where there are no values."""
        found = {name: _plain(getattr(self, name)) for name in ("mean", "std", "min", "max")}
        interval = {"ci95": [_plain(bound) for bound in self.ci95()]} if with_interval else {}
        return {**found, **interval}


@dataclass(frozen=True, slots=True, repr=False)
class EvaluationResult:
    """The episodes of one behavior.

    Attributes:
        behavior: name, without team.
        episodes: by team, worker and number.
        groups: those whose members' episodes are all among ``episodes``.
        decisions: of all its agents, also in episodes that do not count.
        seconds: that all behaviors of the environment took together.
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
        """For a notebook: a table of one row."""
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
        """The number of episodes that the evaluation's limit of decisions ended."""
        return sum(episode.truncated for episode in self.episodes)

    @property
    def group_returns(self) -> EpisodeSample:
        """What each group received."""
        return EpisodeSample(tuple(group.reward for group in self.groups))

    @property
    def teams(self) -> Mapping[int, EvaluationResult]:
        """The result of each team on its own; decisions and seconds are those of all."""
        found = {}
        for team in sorted({episode.team for episode in self.episodes}):
            episodes = tuple(episode for episode in self.episodes if episode.team == team)
            groups = tuple(group for group in self.groups if group.team == team)
            found[team] = replace(self, episodes=episodes, groups=groups)
        return found

    @property
    def decisions_per_second(self) -> float:
        """NaN for nothing in no time."""
        return self.decisions / self.seconds if self.seconds else math.nan

    def to_json(self) -> dict[str, Any]:
        """The result as plain data (docs/measure/evaluation.md#json)."""
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
    """How policies acted, for logs and tables."""
    return "most likely actions" if deterministic else "sampled actions"


def difference(result: EvaluationResult, first: EvaluationResult) -> EpisodeSample:
    """How much better each episode of ``result`` is than the same one of ``first``.

    Two episodes are the same if worker, team and number are. Those that only one of the two has are left out.
    """
    earlier = {_key(episode): episode.total for episode in first.episodes}
    both = [episode for episode in result.episodes if _key(episode) in earlier]
    return EpisodeSample(tuple(episode.total - earlier[_key(episode)] for episode in both))


def _key(episode: Episode) -> tuple[int, int, int]:
    return episode.team, episode.worker, episode.number


def in_order(episodes: Sequence[Episode]) -> tuple[Episode, ...]:
    """Sort episodes by team, worker and number."""
    return tuple(sorted(episodes, key=_key))


def _plain(number: float) -> float | None:
    return number if math.isfinite(number) else None
