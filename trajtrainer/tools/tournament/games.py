"""Detects which agents play with each other, and when their games are over (docs/measure/tournament.md#games).

A message contains an agent's team, but not its opponents, and a Unity scene often has several training areas. So all
agents start in one area, which is split when some of its agents start a new episode while the others continue.
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
# An agent that has not been seen for this many messages is assumed to be destroyed.
_LONG_AGO = 100

NUM_SIDES = 2


@dataclass(slots=True, eq=False)
class Area:
    """Agents that play with each other.

    Attributes:
        agents: all agents of the area, including those that have not started an episode yet.
        match: the match that they play; None before the first one. Set by the tournament.
    """

    agents: list[AreaAgent] = field(default_factory=list)
    match: Match | None = None


@dataclass(slots=True, eq=False)
class AreaAgent:
    """One agent of an area, during an episode or between two episodes.

    Attributes:
        id: id of the agent in the messages.
        team: number of its team.
        area: the area in which it plays.
        earned: rewards and group rewards since its area's game started.
        ahead: rewards of its next episode, if that started before the game was over.
        decisions: number of decisions since its area's game started.
        running: True during an episode.
        ended_at: number of the message in which it last ended an episode of this game.
        seen_at: number of the message in which it last decided or finished a game.
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
        """True if an episode of the agent has ended in this game."""
        return self.ended_at != _NOT_ENDED

    def earn(self, reward: float) -> None:
        """Add a reward of the agent's current episode."""
        if self.has_ended:
            self.ahead += reward
        else:
            self.earned += reward

    def end(self, message: int) -> None:
        """End the agent's episode. If it played two episodes in this game, the rewards of both count."""
        self.earned, self.ahead = self.earned + self.ahead, 0.0
        self.running, self.ended_at = False, message

    def leave_game(self, message: int) -> None:
        """Prepare the agent for the next game."""
        self.earned, self.ahead, self.decisions = self.ahead, 0.0, 0
        self.ended_at, self.seen_at = _NOT_ENDED, message


@dataclass(frozen=True, slots=True)
class FinishedGame:
    """A game that is over.

    Attributes:
        area: the area in which it was played, and in which the next one will be played.
        returns: team -> the sum of its agents' rewards in the game.
        parted_from: the area from which ``area`` has just been split, if any.
    """

    area: Area
    returns: Mapping[int, float]
    parted_from: Area | None = None


class _Row(NamedTuple):
    """An agent's row in a message."""

    id: int
    team: int
    reward: float
    is_last: bool


class Areas:
    """The areas of one environment.

    Args:
        number: number of areas, if the user specifies it; 1 to detect the areas.
    """

    def __init__(self, number: int = 1) -> None:
        self._number = number
        self.agents: dict[int, AreaAgent] = {}
        self.teams: list[int] = []  # in the order in which they appeared; sorted within a message
        self._areas: list[Area] = []
        self._message = 0
        self._smallest: Counter[int] | None = None  # agents per team in the smallest known area

    def update(self, event: EnvironmentEvent) -> list[FinishedGame]:
        """Process a message: assign the deciding agents to areas and episodes, and return the finished games."""
        self._message += 1
        rows = [row for behavior, batch in event.steps.items() for row in _rows(BehaviorId.parse(behavior).team, batch)]
        self.teams += sorted({row.team for row in rows} - set(self.teams))
        ended = []
        for row in rows:
            known = self.agents.get(row.id)
            # A known agent that is not running has already ended its episode, and has not decided since then.
            if row.is_last and (known is None or known.running):
                agent = known or self._join(row, self._place_of_new())
                agent.earn(row.reward)
                agent.end(self._message)
                ended.append(agent)
        if ended and self._smallest is None and self._number > 1:
            # Derive the size of an area from the number of areas.
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
        if finished:  # environments may replace their agents in every game
            long_ago = self._message - _LONG_AGO
            idle = (agent for agent in self.agents.values() if not agent.running and not agent.has_ended)
            for agent in [agent for agent in idle if agent.seen_at < long_ago]:
                del self.agents[agent.id]
                agent.area.agents.remove(agent)
            self._areas = [area for area in self._areas if area.agents]
        return finished

    def longer_than(self, limit: int) -> list[FinishedGame]:
        """Return the current state of the games that count and have more than ``limit`` decisions of an agent."""
        counting = [area for area in self._areas if area.match is not None and area.match.number is not None]
        long = [area for area in counting if any(agent.decisions > limit for agent in area.agents)]
        return [FinishedGame(area, self._returns(area.agents)) for area in long]

    def has_game(self, *, counting: bool) -> bool:
        """Return whether a game that counts is being played; with ``counting=False``, a game that does not count."""
        matches = (area.match for area in self._areas)
        return any(match is not None and (match.number is not None) == counting for match in matches)

    def _place_of_new(self) -> Area:
        """Return the area for new agents: the most recently used idle area, or the last one if no area is idle."""
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
        """Finish the games of agents that start a new episode after all teams have ended, while others continue."""
        known = [agent for row in deciding if (agent := self.agents.get(row.id)) is not None]
        back = {agent.id for agent in known if agent.has_ended and not agent.running}
        has_new = len(known) < len(deciding)  # some agents may have returned with new ids
        finished: list[FinishedGame] = []
        for area in list(self._areas) if back or has_new else ():
            absent = [agent for agent in area.agents if agent.has_ended and not agent.running]
            for time in sorted({agent.ended_at for agent in absent if has_new or agent.id in back}, reverse=True):
                if self._is_everyone(agent for agent in absent if agent.ended_at == time):
                    # Agents whose episodes ended earlier in this game return with them. If an agent is still missing
                    # when others of its team return, it has left a game that continues. In turn-based games, a whole
                    # team returns later.
                    came = {agent.team for agent in absent if agent.id in back}
                    gone = [agent for agent in absent if agent.ended_at == time and agent.team not in came]
                    leaving = [agent for agent in absent if agent.id in back or agent in gone]
                    if self._smallest is None or len(leaving) < self._smallest.total():
                        self._smallest = _teams(leaving)
                    finished += [self._finish_apart(block, area) for block in self._alike(leaving)]
                    break
        return finished

    def _alike(self, agents: Sequence[AreaAgent]) -> list[list[AreaAgent]]:
        """Split agents that ended in one message into as many areas of the smallest known size as they can fill.

        This assumes that the agents of each team are numbered area by area.
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
        """Finish the game of some agents of an area, and move them to a new area."""
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
        sides: numbers of the two models. The first model plays the environment's first, third, ... team, and the other
            one plays its second, fourth, ... team.
        number: number of the game in the tournament; None if it does not count.
    """

    sides: tuple[int, int]
    number: int | None = None

    def model(self, team: int) -> int:
        """Return the model that plays the environment's ``team``-th team."""
        return self.sides[team % NUM_SIDES]


def all_matches(num_models: int, games: int) -> list[Match]:
    """Return ``games`` matches per pair, in rounds of all pairs. Models change sides after every round."""
    pairs = list(itertools.combinations(range(num_models), NUM_SIDES))
    rounds = ((b, a) if number % NUM_SIDES else (a, b) for number in range(games) for a, b in pairs)
    return [Match(sides, number) for number, sides in enumerate(rounds)]


class Queue:
    """The games of one worker, in order.

    Games are assigned to workers at the start, so that the results do not depend on the speed of the workers.
    """

    def __init__(self, matches: Iterable[Match]) -> None:
        self._due = deque(matches)
        self._last: Match | None = None
        self._playing: dict[int, Match] = {}

    @property
    def has_due(self) -> bool:
        """True if some games have not started."""
        return bool(self._due)

    @property
    def is_done(self) -> bool:
        """True if all games are over."""
        return not self._due and not self._playing

    def next(self) -> Match:
        """Return the next game, or a repeated game that does not count if no game is left."""
        if not self._due:
            assert self._last is not None
            return replace(self._last, number=None)
        return self._begin(self._due.popleft())

    def another(self, match: Match) -> Match:
        """Return another game with the same sides, for an area that turned out to contain two games."""
        found = next((due for due in self._due if due.sides == match.sides), None)
        if found is None:
            return replace(match, number=None)
        self._due.remove(found)
        return self._begin(found)

    def over(self, match: Match) -> bool:
        """Record that a game is over; return whether it counts."""
        return match.number is not None and self._playing.pop(match.number, None) is not None

    def start_over(self) -> None:
        """Put back the games that are being played, because their environment was restarted."""
        self._due.extendleft(self._playing[number] for number in sorted(self._playing, reverse=True))
        self._playing.clear()

    def _begin(self, match: Match) -> Match:
        assert match.number is not None
        self._last = self._playing[match.number] = match
        return match
