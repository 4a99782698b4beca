"""Ratings of players that meet in self-play (Elo 1978), as ML-Agents counts them.

See docs/mlagents-behavior.md#self-play.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from trajtrainer.algos.acting import Acts

_SCALE = 400.0
# Weight of a result after one more, so that some hundred of them count: the policy that learns changes.
_FADING = 0.99


@dataclass(slots=True, eq=False)
class Player:
    """A policy as it was at some step, or the present one.

    Attributes:
        name: tells it apart from the others of its behaviour.
        elo: its rating.
        weights: of its actor, never changed; empty for the present policy and for those of files.
        acts: plays as it, if it comes from a file.
        games: results against it, the older ones faded.
        lost: those of them that the policy which learns has won, draws by half.
    """

    name: str
    elo: float
    weights: Mapping[str, Tensor] = field(default_factory=dict)
    acts: Acts | None = None
    games: float = 0.0
    lost: float = 0.0

    @property
    def beaten(self) -> float:
        """Return the probability that it is beaten, above 0 and below 1."""
        return (self.lost + 0.5) / (self.games + 1.0)


def expected_score(elo: float, opponent: float) -> float:
    """Return what a player of rating ``elo`` scores on average, from 0 to 1."""
    return 1.0 / (1.0 + math.pow(10.0, (opponent - elo) / _SCALE))


def rate(learner: Player, opponents: Sequence[Player], result: float) -> None:
    """Change the ratings by one result.

    Args:
        learner: whose result it is.
        opponents: at least one. Each gives its part of what the learner gets; it may be the learner itself.
        result: 1 for a win, 0 for a loss, 0.5 for a draw.
    """
    changes = [(result - expected_score(learner.elo, opponent.elo)) / len(opponents) for opponent in opponents]
    for opponent, change in zip(opponents, changes, strict=True):
        opponent.elo -= change
        opponent.games = opponent.games * _FADING + 1.0
        opponent.lost = opponent.lost * _FADING + result
    learner.elo += sum(changes)
