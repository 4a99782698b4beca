"""Which agents play with each other is found out from messages alone; every game is reported once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.envs.unity import recordings
from trajtrainer.core.steps import EnvironmentEvent, StepBatch
from trajtrainer.tools.tournament.games import Areas

# Team, id, reward, whether it is the end.
Record = tuple[int, int, float, bool]


def event(records: Iterable[Record]) -> EnvironmentEvent:
    teams: dict[int, list[Record]] = {}
    for record in records:
        teams.setdefault(record[0], []).append(record)
    return EnvironmentEvent(0, {f"Game?team={team}": batch(rows) for team, rows in teams.items()})


def batch(rows: list[Record]) -> StepBatch:
    rows = sorted(rows, key=lambda row: not row[3])
    count, ended = len(rows), sum(row[3] for row in rows)
    return StepBatch(
        agent=np.array([row[1] for row in rows], np.int64),
        obs=(),
        reward=np.array([row[2] for row in rows], np.float32),
        group=np.zeros(count, np.int32),
        group_reward=np.zeros(count, np.float32),
        mask=np.zeros((count, 0), np.bool_),
        interrupted=np.zeros(ended, np.bool_),
        num_terminal=ended,
    )


def played(events: Iterable[EnvironmentEvent], areas: Areas | None = None) -> list[dict[int, float]]:
    areas = Areas() if areas is None else areas
    return [dict(finished.returns) for one in events for finished in areas.update(one)]


@dataclass
class Field:
    """A training area whose games are known. Members of a team may end earlier than the game."""

    number: int
    sizes: tuple[int, int]
    lengths: list[int]
    by_team: bool  # agents are numbered team by team, and in each area by area
    fresh_ids: bool
    late: bool  # the second team decides in every other message, as in games of turns
    games: list[dict[int, float]] = field(default_factory=list)
    step: int = 0

    def records(self) -> Iterator[Record]:
        game = len(self.games)
        length = self.lengths[game % len(self.lengths)]
        if self.step == 0:
            self.sums = {0: 0.0, 1: 0.0}
        elif self.step == length:
            for team, slot in self._members():
                if not self._fell(team, slot):
                    yield self._record(team, slot, game, 1.0 + team + game, end=True)
            self.games.append(self.sums)
            game, self.step, self.sums = game + 1, 0, {0: 0.0, 1: 0.0}
        for team, slot in self._members():
            if self.step == 1 and self._fell(team, slot):
                yield self._record(team, slot, game, -0.5, end=True)
            elif not (self.late and team and self.step % 2 == 0) and not (self.step and self._fell(team, slot)):
                yield self._record(team, slot, game, 0.25 * (self.step > 0), end=False)
        self.step += 1

    def _members(self) -> Iterator[tuple[int, int]]:
        return ((team, slot) for team in range(2) for slot in range(self.sizes[team]))

    def _fell(self, team: int, slot: int) -> bool:
        return slot > 0 and team == 0 and not self.late

    def _record(self, team: int, slot: int, game: int, reward: float, *, end: bool) -> Record:
        self.sums[team] += reward
        place = 10 * self.number + slot + (500 * team if self.by_team else sum(self.sizes[:team]))
        return team, place + (1000 * game if self.fresh_ids else 0), reward, end


lengths = st.lists(st.integers(2, 6), min_size=1, max_size=4)
sizes = st.tuples(st.integers(1, 2), st.integers(1, 2))


@settings(max_examples=60, deadline=None)
@given(sizes, lengths, st.booleans(), st.booleans(), st.booleans())
def test_of_one_area_every_game_is_exact(
    sizes: tuple[int, int], lengths: list[int], by_team: bool, fresh_ids: bool, late: bool
) -> None:
    area = Field(0, sizes, lengths, by_team, fresh_ids, late)
    found = played(event(area.records()) for _ in range(40))

    assert found == area.games


@settings(max_examples=60, deadline=None)
@given(sizes, st.lists(lengths, min_size=2, max_size=5), st.booleans(), st.booleans())
def test_areas_are_told_apart_once_one_has_ended_alone(
    sizes: tuple[int, int], all_lengths: list[list[int]], by_team: bool, late: bool
) -> None:
    """Before that, areas that end together are one game; after it, those are told apart, too."""
    fields = [Field(n, sizes, lengths, by_team, False, late) for n, lengths in enumerate(all_lengths)]
    areas = Areas()
    fields[0].lengths[0], fields[1].lengths[0] = 2, 3
    for other in fields[2:]:
        other.lengths[0] = max(other.lengths[0], 4)
    found: list[dict[int, float]] = []
    for _ in range(40):
        found += played([event(record for each in fields for record in each.records())], areas)

    true = [game for each in fields for game in each.games]
    assert Counter(map(str, found)) == Counter(map(str, true))


def test_areas_that_always_end_together_are_one() -> None:
    fields = [Field(n, (1, 1), [3], False, False, False) for n in range(2)]
    found = played(event(record for each in fields for record in each.records()) for _ in range(10))

    assert found == [{team: fields[0].games[n][team] * 2 for team in range(2)} for n in range(3)]


@pytest.mark.parametrize("by_team", [False, True])
def test_areas_whose_number_is_told(by_team: bool) -> None:
    fields = [Field(n, (1, 2), [3, 3, 4 + n], by_team, False, False) for n in range(4)]
    events = (event(record for each in fields for record in each.records()) for _ in range(30))
    found = played(events, Areas(4))

    assert Counter(map(str, found)) == Counter(str(game) for each in fields for game in each.games)
    odd = [Field(n, (1, 1), [3], by_team, False, False) for n in range(3)]
    assert len(played((event(r for each in odd for r in each.records()) for _ in range(4)), Areas(2))) == 1


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 4), st.integers(2, 12), st.integers(0, 2**32 - 1))
def test_agents_that_fall_while_another_area_ends_stay_in_theirs(size: int, number: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    areas, brawls = Areas(), [Brawl(n, size, random) for n in range(number)]
    found: list[dict[int, float]] = []
    for step in range(300):
        found += played([event(record for brawl in brawls for record in brawl.records())], areas)
        if step == 150:
            late = len(found), sum(len(brawl.games) for brawl in brawls)

    for agent in areas.agents.values():
        assert {mate.id // 100 for mate in agent.area.agents} == {agent.id // 100}
    assert Counter(map(str, found[late[0] :])) == Counter(
        map(str, [game for _, game in sorted((g for b in brawls for g in b.games), key=lambda g: g[0])][late[1] :])
    )


class Brawl:
    """A training area whose agents fall one by one; its game ends with the last one of a team, for all at once."""

    def __init__(self, number: int, size: int, random: np.random.Generator) -> None:
        self._ids = {100 * number + slot: slot // size for slot in range(2 * size)}
        self._random = random
        self.games: list[tuple[int, dict[int, float]]] = []
        self._message = 0
        self._standing: set[int] = set()

    def records(self) -> Iterator[Record]:
        self._message += 1
        if self._standing:
            yield from self._go_on()
        if not self._standing:
            self._standing, self._sums = set(self._ids), {0: 0.0, 1: 0.0}
        for id_ in self._standing:
            yield self._ids[id_], id_, 0.0, False

    def _go_on(self) -> Iterator[Record]:
        gone = {id_ for id_ in self._standing if self._random.random() < 0.2}
        teams_left = {self._ids[id_] for id_ in self._standing - gone}
        if len(teams_left) < 2:
            gone = self._standing
        for id_ in sorted(gone):
            reward = float(self._random.integers(100))
            self._sums[self._ids[id_]] += reward
            yield self._ids[id_], id_, reward, True
        self._standing = self._standing - gone
        if not self._standing:
            self.games.append((self._message, self._sums))


def test_an_agent_that_comes_back_within_a_game_goes_on_in_it() -> None:
    messages = [
        [(0, 1, 0.0, False), (0, 2, 0.0, False), (1, 3, 0.0, False)],
        [(0, 1, -1.0, True), (0, 1, 0.0, False), (0, 2, 0.5, False), (1, 3, 0.0, False)],
        [(0, 1, 4.0, False), (0, 2, 0.5, False), (1, 3, 0.0, False)],
        [(0, 1, 8.0, True), (0, 2, 0.0, True), (1, 3, -2.0, True)],
    ]
    assert played(map(event, messages)) == [{0: 12.0, 1: -2.0}]


def test_teams_that_end_one_after_the_other() -> None:
    ends = [
        [(0, 1, 1.0, True), (0, 1, 0.0, False), (1, 2, 0.0, False)],
        [(0, 1, 16.0, False), (1, 2, 2.0, True), (1, 2, 0.0, False)],
    ]
    messages = [[(0, 1, 0.0, False), (1, 2, 0.0, False)], *ends, *ends]
    # What the first team earns after its end, the other's being out, belongs to its next game.
    assert played(map(event, messages)) == [{0: 1.0, 1: 2.0}, {0: 17.0, 1: 2.0}]


def test_agents_that_were_destroyed_take_no_memory() -> None:
    area = Field(0, (2, 2), [2], False, True, False)
    areas = Areas()
    found = played((event(area.records()) for _ in range(2000)), areas)

    assert found == area.games
    assert len(areas.agents) < 4 * 150


def events_of(shared_data: Path, name: str) -> Iterator[EnvironmentEvent]:
    """The messages of a recorded session, without their observations."""
    arrays = recordings.load(shared_data, name).arrays
    keys = [key.removesuffix("/id") for key in arrays if key.endswith("/id")]
    for step in sorted({int(key.split("/")[0]) for key in keys}):
        records = []
        for key in keys:
            number, behavior, part = key.split("/")
            if int(number) == step:
                reward = arrays[f"{key}/reward"] + arrays[f"{key}/group_reward"]
                rows = zip(arrays[f"{key}/id"], reward, strict=True)
                team = int(behavior.partition("=")[2])
                records += [(team, int(id_), float(each), part == "t") for id_, each in rows]
        yield event(records)


def test_a_real_duel_in_four_areas(shared_data: Path) -> None:
    """Agents 2i and 2i+1 play with each other; the winner gets 1, the other -1."""
    ends = []
    for one in events_of(shared_data, "pkg3.0_duel"):
        terminal = [(b.agent[: b.num_terminal], b.reward[: b.num_terminal]) for b in one.steps.values()]
        rows = {int(agent): float(reward) for part in terminal for agent, reward in zip(*part, strict=True)}
        ends += [{0: rows[agent], 1: rows[agent + 1]} for agent in sorted(rows) if agent % 2 == 0]

    found = played(events_of(shared_data, "pkg3.0_duel"))
    assert found == ends
    assert len(found) == 3


def test_a_real_game_of_two_against_two(shared_data: Path) -> None:
    found = played(events_of(shared_data, "pkg2.3_soccer"))

    assert len(found) == 6
    assert all(np.allclose(list(game.values()), -2.0) for game in found), "each of two agents has lost 1 in six steps"
