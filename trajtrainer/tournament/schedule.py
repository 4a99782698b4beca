"""Who plays whom, on which side: every pair of models, all games settled before the first."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace

NUM_SIDES = 2


@dataclass(frozen=True, slots=True)
class Match:
    """A game to play.

    Attributes:
        sides: the two models, by their number. The environment's first, third, ... team is played by the first of them,
            the second, fourth, ... by the other.
        number: of the game in the tournament; None for one that does not count.
    """

    sides: tuple[int, int]
    number: int | None = None

    def model(self, team: int) -> int:
        """Return the model that plays the environment's ``team``-th team."""
        return self.sides[team % NUM_SIDES]


def all_matches(num_models: int, games: int) -> list[Match]:
    """Return ``games`` of each pair, who change sides after each; one round of all pairs follows the other."""
    pairs = list(itertools.combinations(range(num_models), NUM_SIDES))
    rounds = ((b, a) if number % NUM_SIDES else (a, b) for number in range(games) for a, b in pairs)
    return [Match(sides, number) for number, sides in enumerate(rounds)]


class Queue:
    """The games of one worker, in their order.

    They are its own from the start, so that it does not matter which worker is the quickest.
    """

    def __init__(self, matches: Iterable[Match]) -> None:
        self._due = deque(matches)
        self._last: Match | None = None
        self._playing: dict[int, Match] = {}

    @property
    def has_due(self) -> bool:
        """Whether some of its games have not begun."""
        return bool(self._due)

    @property
    def is_done(self) -> bool:
        """Whether all its games are over."""
        return not self._due and not self._playing

    def next(self) -> Match:
        """Return the next game; when none is left, one that does not count."""
        if not self._due:
            assert self._last is not None
            return replace(self._last, number=None)
        return self._begin(self._due.popleft())

    def another(self, match: Match) -> Match:
        """Return a game of the same sides: it turns out that they have played two at once."""
        found = next((due for due in self._due if due.sides == match.sides), None)
        if found is None:
            return replace(match, number=None)
        self._due.remove(found)
        return self._begin(found)

    def over(self, match: Match) -> bool:
        """Note that a game is over. Returns whether it counts."""
        return match.number is not None and self._playing.pop(match.number, None) is not None

    def start_over(self) -> None:
        """Put back the games that are being played: their environment was started anew."""
        self._due.extendleft(self._playing[number] for number in sorted(self._playing, reverse=True))
        self._playing.clear()

    def _begin(self, match: Match) -> Match:
        assert match.number is not None
        self._last = self._playing[match.number] = match
        return match
