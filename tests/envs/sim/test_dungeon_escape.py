"""DungeonEscape against a slow version of its rules, the scores that its description names, and over the wire."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest

from tests.envs.sim.scripts import Policy, make_game, play_game, random_policy
from tests.envs.sim.wire_game import wire_game
from trajtrainer.envs.sim.simulation import SimulatedActions, SimulationStep

MOVES = [(0, 0), (1, 0), (-1, 0), (0, 1), (0, -1)]
AREAS = 8


def escaping(*, brave: bool) -> Policy:
    """Goes to the key and with it to the door; the brave go to the dragon before that, the others stay."""

    def act(step: SimulationStep) -> SimulatedActions:
        seen = step.observations[0]
        carries, lives, lies = seen[:, 2:3] > 0, seen[:, 5:6] > 0, seen[:, 9:10] > 0
        dragon = np.where(lives & brave, seen[:, 3:5], 0.0)
        way = np.where(carries, (-1.0, 0.0) - seen[:, :2], np.where(lies, seen[:, 7:9], dragon))
        along = np.abs(way[:, 0]) >= np.abs(way[:, 1])
        choice = np.where(along, np.where(way[:, 0] > 0.0, 1, 2), np.where(way[:, 1] > 0.0, 3, 4))
        choice[~way.any(axis=1)] = 0
        return SimulatedActions(np.zeros((len(seen), 0), np.float32), choice[:, None].astype(np.int32))

    return act


@pytest.mark.parametrize(("size", "low", "high"), [(2, 0.0, 0.06), (3, 0.03, 0.1), (5, 0.08, 0.18)])
def test_the_brave_always_escape_cowards_never_and_random_actions_hardly(size: int, low: float, high: float) -> None:
    game = make_game("DungeonEscape", agents=size, areas=40)
    (role,) = game.roles.values()
    (scores,) = play_game(game, [escaping(brave=True)], 100)
    assert len(scores) > 200
    assert set(scores) == {1.0}
    (scores,) = play_game(game, [escaping(brave=False)], 100)
    assert set(scores) == {0.0}
    (scores,) = play_game(game, [random_policy(role)], 500)
    assert low < np.mean(scores) < high


@dataclass
class Dungeon:
    """One area, slowly."""

    members: dict[int, tuple[int, int]]
    dragon: tuple[int, int]
    slain: bool = False
    key: tuple[int, int] | None = None
    carrier: int | None = None
    time: int = 0
    died: list[int] = field(default_factory=list)

    def slay(self) -> None:
        for member, place in sorted(self.members.items()):
            if not self.slain and place == self.dragon:
                self.slain, self.key = True, self.dragon
                self.died.append(member)
                del self.members[member]

    def step(self, choices: dict[int, int]) -> tuple[float, bool]:
        """What the group earns and whether its episode is over."""
        self.time += 1
        self.died = []
        for member, (x, y) in self.members.items():
            dx, dy = MOVES[choices[member]]
            self.members[member] = (max(-2, min(2, x + dx)), max(-2, min(2, y + dy)))
        if self.key is not None:
            at = [member for member in sorted(self.members) if self.members[member] == self.key]
            if at:
                self.carrier, self.key = at[0], None
        self.slay()
        if not self.slain and self.time % 2 == 0:
            x, y = self.dragon
            self.dragon = (x, y - 1) if y > 0 else (x, y + 1) if y < 0 else (x + 1, y)
        self.slay()
        if self.carrier is not None and self.members[self.carrier] == (-2, 0):
            return 1.0, True
        return 0.0, not self.slain and self.dragon == (2, 0)


@pytest.mark.parametrize("size", [2, 3, 5])
def test_every_decision_is_what_a_slow_version_says(size: int) -> None:
    game = make_game("DungeonEscape", 4, agents=size, areas=AREAS)
    (role,) = game.roles.values()
    rash, brave = random_policy(role), escaping(brave=True)
    (step,) = game.reset()
    dungeons = [begun(seen) for seen in by_area(step, size)]
    results = {"escaped": 0, "lost": 0, "late": 0, "died": 0}
    for decision in range(450):
        # All that can happen shall happen: mostly random, now and then on purpose.
        actions = (rash if decision % 90 < 60 else brave)(step)
        waiting = range(AREAS * size) if step.deciding is None else step.deciding.tolist()
        choices: list[dict[int, int]] = [{} for _ in range(AREAS)]
        for agent, choice in zip(waiting, actions.discrete[:, 0].tolist(), strict=True):
            choices[agent // size][agent % size] = choice
        (step,) = game.step([actions])
        assert step.ended_group_reward is not None
        assert step.group_reward is not None
        assert not step.reward.any()
        assert not step.ended_reward.any()
        assert not step.group_reward.any()
        ended: list[dict[int, tuple[float, bool]]] = [{} for _ in range(AREAS)]
        for agent, reward, interrupted in zip(step.ended, step.ended_group_reward, step.interrupted, strict=True):
            ended[agent // size][agent % size] = (float(reward), bool(interrupted))
        again = by_area(step, size)
        for area, dungeon in enumerate(dungeons):
            assert dungeon.members.keys() == choices[area].keys(), "who is asked"
            earned, over = dungeon.step(choices[area])
            late = dungeon.time == 40
            gone = dict.fromkeys(dungeon.died, (earned, False))
            if over or late:
                gone |= dict.fromkeys(dungeon.members, (earned, not over))
            assert ended[area] == gone
            results["died"] += len(dungeon.died)
            results["escaped"] += earned == 1.0
            results["lost"] += over and not earned
            results["late"] += late and not over
            if over or late:
                assert sorted(again[area]) == list(range(size))
                dungeons[area] = begun(again[area])
            else:
                assert again[area] == seen_by(dungeon)
    assert min(results.values()) > 5, results


def by_area(step: SimulationStep, size: int) -> list[dict[int, list[float]]]:
    """For each area: member -> what it sees of itself, the dragon and the key."""
    areas: list[dict[int, list[float]]] = [{} for _ in range(AREAS)]
    waiting = range(AREAS * size) if step.deciding is None else step.deciding.tolist()
    for agent, row in zip(waiting, step.observations[0], strict=True):
        areas[agent // size][agent % size] = row.tolist()
    return areas


def begun(seen: dict[int, list[float]]) -> Dungeon:
    members = {member: (round(2 * row[0]), round(2 * row[1])) for member, row in seen.items()}
    return Dungeon(members, (round(2 * (seen[0][0] + seen[0][3])), round(2 * (seen[0][1] + seen[0][4]))))


def seen_by(dungeon: Dungeon) -> dict[int, list[float]]:
    """What each member must see."""
    size = len(dungeon.members) + dungeon.slain
    lives, lies = not dungeon.slain, dungeon.key is not None
    rows = {}
    for member, (x, y) in dungeon.members.items():
        row = [x / 2, y / 2, float(dungeon.carrier == member)]
        row += [(dungeon.dragon[0] - x) / 2 * lives, (dungeon.dragon[1] - y) / 2 * lives]
        row += [float(lives), float(lives and dungeon.time % 2 == 1)]
        row += [0.0, 0.0] if dungeon.key is None else [(dungeon.key[0] - x) / 2, (dungeon.key[1] - y) / 2]
        row += [float(lies), float(dungeon.carrier not in (None, member))]
        for mate in range(member + 1, member + size):
            place = dungeon.members.get(mate % size)
            row += [0.0, 0.0, 0.0] if place is None else [(place[0] - x) / 2, (place[1] - y) / 2, 1.0]
        rows[member] = row
    return rows


def test_the_same_over_the_wire() -> None:
    with wire_game("DungeonEscape", "--areas", "20") as remote:
        (role,) = remote.roles.values()
        assert list(remote.roles) == ["DungeonEscape?team=0"]
        assert role.groups is not None
        assert role.groups.tolist() == np.repeat(np.arange(20), 3).tolist()
        (scores,) = play_game(remote, [escaping(brave=True)], 60)
        assert len(scores) > 60
        assert set(scores) == {1.0}
        remote.reset()
        (scores,) = play_game(remote, [random_policy(role)], 150)
        assert 0.0 <= np.mean(scores) < 0.15


def test_groups_that_cannot_play_are_refused() -> None:
    with pytest.raises(ValueError, match="--agents must be 2 to 5 in DungeonEscape, found 6"):
        make_game("DungeonEscape", agents=6)
