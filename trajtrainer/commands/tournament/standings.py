"""The table of a tournament: wins, draws and losses of every model and pair, and ratings with their uncertainty."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from openskill.models import BradleyTerryFull

from trajtrainer.commands.tournament.play import GameResult
from trajtrainer.core import atomic
from trajtrainer.play.models import Model

_ORDERS = 20
_SEED = 0


@dataclass(frozen=True, slots=True)
class Score:
    """Games of one model.

    Attributes:
        wins, draws, losses: how many of them.
        truncated: those of them that had not ended at the limit of decisions.
    """

    wins: int
    draws: int
    losses: int
    truncated: int = 0

    @property
    def games(self) -> int:
        return self.wins + self.draws + self.losses

    def to_json(self) -> dict[str, int]:
        return {
            "games": self.games,
            "wins": self.wins,
            "draws": self.draws,
            "losses": self.losses,
            "truncated": self.truncated,
        }


@dataclass(frozen=True, slots=True)
class Standing:
    """One row of the table.

    Attributes:
        entrant: the model.
        score: against all others.
        rating: mean of its skill as estimated from the games; all begin at 25.
        uncertainty: standard deviation of that.
    """

    entrant: Model
    score: Score
    rating: float
    uncertainty: float


def standings(entrants: Sequence[Model], results: Sequence[GameResult]) -> list[Standing]:
    """The table, the best first.

    Ratings are those of Weng and Lin (2011, JMLR 12, algorithm 1), the Bradley-Terry model with Bayesian updates. They
    trust later games more; but models do not learn between games, so that the mean of several orders is taken.
    """
    random = np.random.default_rng(_SEED)
    orders = [random.permutation(len(results)) for _ in range(_ORDERS)]
    means, deviations = np.mean([_rate(len(entrants), [results[n] for n in order]) for order in orders], axis=0)
    rows = [
        Standing(entrant, _score(results, number), float(means[number]), float(deviations[number]))
        for number, entrant in enumerate(entrants)
    ]
    return sorted(rows, key=lambda row: -row.rating)


def _rate(num_models: int, results: Sequence[GameResult]) -> tuple[list[float], list[float]]:
    """The models' ratings and standard deviations after games in this order."""
    model = BradleyTerryFull(tau=0.0)  # nothing is added to the uncertainty between games
    ratings = [model.rating() for _ in range(num_models)]
    for result in results:
        first, second = result.match.sides
        ranks = [-float(result.outcome), float(result.outcome)]
        ((ratings[first],), (ratings[second],)) = model.rate([[ratings[first]], [ratings[second]]], ranks=ranks)
    return [rating.mu for rating in ratings], [rating.sigma for rating in ratings]


def pairs(entrants: Sequence[Model], results: Sequence[GameResult]) -> list[dict[str, Any]]:
    """The games of every pair from the view of its first model: all, and those of each side that it played."""
    found = []
    for first in range(len(entrants)):
        for second in range(first + 1, len(entrants)):
            own = [result for result in results if {first, second} == set(result.match.sides)]
            sides = [[result for result in own if result.match.sides[side] == first] for side in range(2)]
            found.append(
                {
                    "models": [entrants[first].name, entrants[second].name],
                    **_score(own, first).to_json(),
                    "by_side": [_score(side, first).to_json() for side in sides],
                }
            )
    return found


def to_json(table: Sequence[Standing], entrants: Sequence[Model], results: Sequence[GameResult]) -> Mapping[str, Any]:
    """Table and pairs as plain data."""
    models = [
        {
            "name": row.entrant.name,
            "steps": row.entrant.steps,
            "files": {behavior: str(file.path) for behavior, file in row.entrant.policies.items()},
            **row.score.to_json(),
            "rating": row.rating,
            "uncertainty": row.uncertainty,
        }
        for row in table
    ]
    return {"models": models, "pairs": pairs(entrants, results)}


def _score(results: Sequence[GameResult], model: int) -> Score:
    own = [result for result in results if model in result.match.sides]
    outcomes = [result.outcome if result.match.sides[0] == model else -result.outcome for result in own]
    truncated = sum(result.truncated for result in own)
    return Score(outcomes.count(1), outcomes.count(0), outcomes.count(-1), truncated)


_SIZE_INCHES = (8.0, 5.0)


def draw(table: Sequence[Standing], path: Path) -> None:
    """Draw every model's rating and standard deviation: a line for the checkpoints of a run, a point for each other.

    Models whose steps are not known are horizontal lines.

    Raises:
        OSError: the file cannot be written.
    """
    from matplotlib.figure import Figure

    axes = (figure := Figure(figsize=_SIZE_INCHES, layout="constrained")).add_subplot()
    series: dict[str, list[Standing]] = {}
    for row in table:
        series.setdefault(row.entrant.series or row.entrant.name, []).append(row)
    for label, rows in series.items():
        known = [(row.entrant.steps, row.rating, row.uncertainty) for row in rows if row.entrant.steps is not None]
        if known:
            steps, ratings, uncertainties = zip(*sorted(known), strict=True)
            axes.errorbar(steps, ratings, uncertainties, label=label, marker="o", capsize=3)
        else:
            axes.axhline(rows[0].rating, label=label, linestyle="--", color=f"C{list(series).index(label) % 10}")
    axes.set_xlabel("steps")
    axes.set_ylabel("rating")
    axes.grid(alpha=0.3)
    axes.legend()
    atomic.write_with(path, lambda temporary: figure.savefig(temporary, format=path.suffix[1:]))
