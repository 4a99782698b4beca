"""Which agents of an environment play with each other, and when their game is over (docs/measure/tournament.md#games).

A message has an agent's team, but not its opponents, and a Unity scene often has several training areas. So an area
is at first everything there is, and comes apart when some of it begins again while the rest continues.
"""

from __future__ import annotations

import itertools
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from trajtrainer.core.spec import BehaviorId
from trajtrainer.core.steps import EnvironmentEvent, StepBatch

_NOT_ENDED = -1
# An agent that has not been seen for this many messages has been destroyed.
_LONG_AGO = 100

NUM_SIDES = 2


@dataclass(slots=True, eq=False)
class Area:
    """Agents that play with each other.

    Attributes:
        agents: all of them, also those that have not begun yet.
        match: what they play; None before the first. Set by the tournament.
    """

    agents: list[AreaAgent] = field(default_factory=list)
    match: Match | None = None


@dataclass(slots=True, eq=False)
class AreaAgent:
    """One agent of an area, in an episode or between two.

    Attributes:
        id: as in the messages.
        team: its number.
        area: that it plays in.
        earned: rewards and group rewards since its area's game began.
        ahead: rewards of an episode that it began after its last one, while the game was not over.
        decisions: that it was asked for since its area's game began.
        running: it is in an episode.
        ended_at: the message in which it ended an episode of this game.
        seen_at: the last message of it.
    """

    id: int
    team: int
    area: Area
    earned: float = 0.0
    ahead: float = 0.0
    decisions: int = 0
    running: bool = False
    ended_at: int = _NOT_ENDED
    seen_at: int = 0

    @property
    def has_ended(self) -> bool:
        """Whether an episode of it has ended in this game."""
        return self.ended_at != _NOT_ENDED

    def earn(self, reward: float) -> None:
        """Add a reward of its episode."""
        if self.has_ended:
            self.ahead += reward
        else:
            self.earned += reward

    def end(self, message: int) -> None:
        """End its episode. One that came back before the game was over has earned both episodes for it."""
        self.earned, self.ahead = self.earned + self.ahead, 0.0
        self.running, self.ended_at = False, message

    def leave_game(self, message: int) -> None:
        """Get ready for the next game."""
        self.earned, self.ahead, self.decisions = self.ahead, 0.0, 0
        self.ended_at, self.seen_at = _NOT_ENDED, message


@dataclass(frozen=True, slots=True)
class FinishedGame:
    """A game that is over.

    Attributes:
        area: where it was played, and where the next one will be.
        returns: team -> what its agents earned in it.
        parted_from: the area that it was thought part of until now.
    """

    area: Area
    returns: Mapping[int, float]
    parted_from: Area | None = None


class _Row(NamedTuple):
    """An agent's row of a message."""

    id: int
    team: int
    reward: float
    is_last: bool


class Areas:
    """The areas of one environment.

    Args:
        number: of areas, if the user gives it; 1 if that is to be found out.
    """

    def __init__(self, number: int = 1) -> None:
        self._number = number
        self.agents: dict[int, AreaAgent] = {}
        self.teams: list[int] = []  # in order of appearance; those of one message ascending
        self._areas: list[Area] = []
        self._message = 0
        self._smallest: Counter[int] | None = None  # agents per team of the smallest area known

    def update(self, event: EnvironmentEvent) -> list[FinishedGame]:
        """Add a message; afterwards all agents that ask for a decision are in their area and episode."""
        self._message += 1
        rows = [row for behavior, batch in event.steps.items() for row in _rows(BehaviorId.parse(behavior).team, batch)]
        self.teams += sorted({row.team for row in rows} - set(self.teams))
        ended = []
        for row in rows:
            known = self.agents.get(row.id)
            # One that is known but not running has ended already, and has not decided since.
            if row.is_last and (known is None or known.running):
                agent = known or self._join(row, self._place_of_new())
                agent.earn(row.reward)
                agent.end(self._message)
                ended.append(agent)
        if ended and self._smallest is None and self._number > 1:
            # The number of areas gives the size of one.
            sizes = _teams(self.agents.values())
            if not any(size % self._number for size in sizes.values()):
                self._smallest = Counter({team: size // self._number for team, size in sizes.items()})
        finished = self._over(agent.area for agent in ended)
        deciding = [row for row in rows if not row.is_last]
        finished += self._part(deciding)
        place = self._place_of_new()
        for row in deciding:
            agent = self.agents.get(row.id) or self._join(row, place)
            agent.running, agent.seen_at = True, self._message
            agent.decisions += 1
            agent.earn(row.reward)
        if finished:  # an environment may have new agents in every game, and destroy the old ones
            long_ago = self._message - _LONG_AGO
            idle = (agent for agent in self.agents.values() if not agent.running and not agent.has_ended)
            for agent in [agent for agent in idle if agent.seen_at < long_ago]:
                del self.agents[agent.id]
                agent.area.agents.remove(agent)
            self._areas = [area for area in self._areas if area.agents]
        return finished

    def longer_than(self, limit: int) -> list[FinishedGame]:
        """The games that count and in which an agent asks for more than ``limit`` decisions, as they are now."""
        counting = [area for area in self._areas if area.match is not None and area.match.number is not None]
        long = [area for area in counting if any(agent.decisions > limit for agent in area.agents)]
        return [FinishedGame(area, self._returns(area.agents)) for area in long]

    def has_game(self, *, counting: bool) -> bool:
        """Whether a game is being played that counts, or one that does not."""
        matches = (area.match for area in self._areas)
        return any(match is not None and (match.number is not None) == counting for match in matches)

    def _place_of_new(self) -> Area:
        """The area of agents that are new: the last one where no agent is left, or else the newest."""
        if not self._areas:
            self._areas.append(Area())
        empty = [area for area in self._areas if not any(agent.running for agent in area.agents)]
        return max(
            empty, key=lambda area: max((agent.seen_at for agent in area.agents), default=0), default=self._areas[-1]
        )

    def _join(self, row: _Row, area: Area) -> AreaAgent:
        agent = self.agents[row.id] = AreaAgent(row.id, row.team, area)
        area.agents.append(agent)
        return agent

    def _over(self, areas: Iterable[Area]) -> list[FinishedGame]:
        """Finish the games in which every agent has ended an episode."""
        finished = []
        for area in dict.fromkeys(areas):
            ended = [agent for agent in area.agents if agent.has_ended]
            if self._is_everyone(ended) and all(agent.has_ended for agent in area.agents if agent.running):
                first, *others = self._alike(ended)
                finished += [self._finish_apart(block, area) for block in others]
                finished.append(self._finish(first, area))
        return finished

    def _part(self, deciding: Sequence[_Row]) -> list[FinishedGame]:
        """Finish the games of agents that begin again after all teams have ended together, while others continue."""
        known = [agent for row in deciding if (agent := self.agents.get(row.id)) is not None]
        back = {agent.id for agent in known if agent.has_ended and not agent.running}
        has_new = len(known) < len(deciding)  # some may have come back under new ids
        finished: list[FinishedGame] = []
        for area in list(self._areas) if back or has_new else ():
            absent = [agent for agent in area.agents if agent.has_ended and not agent.running]
            for time in sorted({agent.ended_at for agent in absent if has_new or agent.id in back}, reverse=True):
                if self._is_everyone(agent for agent in absent if agent.ended_at == time):
                    # With them come back those whose episodes ended earlier in this game. An agent that stays
                    # away while others of its team come back has left a game that continues; in turn-based games, a
                    # whole team comes back later.
                    came = {agent.team for agent in absent if agent.id in back}
                    gone = [agent for agent in absent if agent.ended_at == time and agent.team not in came]
                    leaving = [agent for agent in absent if agent.id in back or agent in gone]
                    if self._smallest is None or len(leaving) < self._smallest.total():
                        self._smallest = _teams(leaving)
                    finished += [self._finish_apart(block, area) for block in self._alike(leaving)]
                    break
        return finished

    def _alike(self, agents: Sequence[AreaAgent]) -> list[list[AreaAgent]]:
        """The areas that ended in one message: as many of the smallest one's size as there are agents for.

        The agents of each team are numbered area by area.
        """
        sizes = _teams(agents) if self._smallest is None else self._smallest
        number = len(agents) // sizes.total()
        if _teams(agents) != Counter({team: number * size for team, size in sizes.items()}):
            return [list(agents)]
        areas: list[list[AreaAgent]] = [[] for _ in range(number)]
        for team, size in sizes.items():
            own = sorted((agent for agent in agents if agent.team == team), key=lambda agent: agent.id)
            for place, agent in enumerate(own):
                areas[place // size].append(agent)
        return areas

    def _is_everyone(self, agents: Iterable[AreaAgent]) -> bool:
        return {agent.team for agent in agents}.issuperset(self.teams)

    def _finish_apart(self, agents: list[AreaAgent], area: Area) -> FinishedGame:
        """Finish the game of some agents of an area, and let them have one of their own."""
        own = Area(agents)
        area.agents = [agent for agent in area.agents if agent not in agents]
        for agent in agents:
            agent.area = own
        self._areas.append(own)
        return replace(self._finish(agents, own), parted_from=area)

    def _finish(self, agents: Sequence[AreaAgent], area: Area) -> FinishedGame:
        returns = self._returns(agents)
        for agent in agents:
            agent.leave_game(self._message)
        return FinishedGame(area, returns)

    def _returns(self, agents: Sequence[AreaAgent]) -> dict[int, float]:
        return {team: sum(agent.earned for agent in agents if agent.team == team) for team in self.teams}


def _rows(team: int, batch: StepBatch) -> Iterator[_Row]:
    rewards = batch.reward.astype(float) + batch.group_reward
    for number, (id_, reward) in enumerate(zip(batch.agent.tolist(), rewards.tolist(), strict=True)):
        yield _Row(id_, team, reward, number < batch.num_terminal)


def _teams(agents: Iterable[AreaAgent]) -> Counter[int]:
    return Counter(agent.team for agent in agents)


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
        """The model that plays the environment's ``team``-th team."""
        return self.sides[team % NUM_SIDES]


def all_matches(num_models: int, games: int) -> list[Match]:
    """``games`` of each pair, which change sides after each; one round of all pairs follows the other."""
    pairs = list(itertools.combinations(range(num_models), NUM_SIDES))
    rounds = ((b, a) if number % NUM_SIDES else (a, b) for number in range(games) for a, b in pairs)
    return [Match(sides, number) for number, sides in enumerate(rounds)]


class Queue:
    """The games of one worker, in their order.

    They are its own from the start, so that it does not matter which worker is the fastest.
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
        """The next game; when none is left, one that does not count."""
        if not self._due:
            assert self._last is not None
            return replace(self._last, number=None)
        return self._begin(self._due.popleft())

    def another(self, match: Match) -> Match:
        """A second game of the same sides: it turns out that they have played two at once."""
        found = next((due for due in self._due if due.sides == match.sides), None)
        if found is None:
            return replace(match, number=None)
        self._due.remove(found)
        return self._begin(found)

    def over(self, match: Match) -> bool:
        """Note that a game is over. Returns whether it counts."""
        return match.number is not None and self._playing.pop(match.number, None) is not None

    def start_over(self) -> None:
        """Put back the games that are being played: their environment was restarted."""
        self._due.extendleft(self._playing[number] for number in sorted(self._playing, reverse=True))
        self._playing.clear()

    def _begin(self, match: Match) -> Match:
        assert match.number is not None
        self._last = self._playing[match.number] = match
        return match
