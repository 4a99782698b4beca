"""Games with training areas, modeled on Unity's example scenes: Duel, DungeonEscape and StrikerVsGoalie."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trajtrainer.core.steps import BoolArray, FloatArray, LongArray
from trajtrainer.envs.sim.areas import MOVES, AreaGame, AreaOptions, AreaRole, StepOutcome, relative
from trajtrainer.envs.sim.canvas import BLUE, GRAY, GREEN, RED, YELLOW, Canvas
from trajtrainer.envs.sim.simulation import Agents, EnvironmentParameters, option

# Duel
RADIUS = 2  # radius of the ring and of the dungeon, in cells
SHRINKING = 12  # number of decisions after which the ring loses its outermost cells
SEEN = 3  # number of values observed of each other agent
# DungeonEscape
DOOR = (-RADIUS, 0)
PORTAL = (RADIUS, 0)
PAUSE = 2  # the dragon takes a step every ``PAUSE`` decisions
MAX_DECISIONS = 40
NOBODY = -1
# StrikerVsGoalie
WIDTH = 9
ROWS = (3, 5)  # minimum and maximum number of rows that the strikers run, one per decision
REACH = 1
SIDEWAYS: LongArray = np.array([0, 1, -1], dtype=np.int64)


@dataclass(frozen=True, slots=True)
class DuelOptions(AreaOptions):
    """Options of ``Duel``."""

    def __post_init__(self) -> None:
        AreaOptions.__post_init__(self)
        if self.agents > 2 * RADIUS + 1:
            raise ValueError(f"--agents must be at most {2 * RADIUS + 1} per team in Duel, found {self.agents}")


class Duel(AreaGame):
    """Push the other team out of a shrinking ring of 5 by 5 cells. Teams 0 and 1 share one behavior.

    Agents choose to stay or to go right, left, up or down. An agent that moves to an occupied cell pushes the other
    agent one cell further if the cell behind it is free. The agents move one at a time, alternating between the teams;
    the team that moves first is drawn at every decision. An agent that is outside the ring after a decision leaves the
    episode. The ring shrinks to 3 by 3 cells after 12 decisions and to a single cell after 24, and disappears after 36.
    The last team with an agent in the ring earns 1, and the other team -1. If the last agents of both teams leave
    together, it is a draw, and both earn 0. With several agents, a team is a group, and all rewards are group rewards,
    which also credit agents that have left.

    An agent observes its position, the size of the ring and how soon it shrinks (4 numbers), and for each teammate and
    then each opponent the relative position and whether it is present (3 numbers). Teams start in mirrored positions.
    Random actions score 0 on average against random actions; holding the center scores above 0.95 against them.
    """

    def __init__(self, options: DuelOptions, random: np.random.Generator, parameters: EnvironmentParameters) -> None:  # noqa: ARG002
        self._size = options.agents
        size = 4 + SEEN * (2 * options.agents - 1)
        roles = {f"Duel?team={team}": AreaRole(size, len(MOVES), options.agents, options.areas) for team in range(2)}
        super().__init__(roles, options.areas, random, max_decisions=0)
        self._places: LongArray = np.zeros((*self._present.shape, 2), dtype=np.int64)
        self._rows = np.arange(options.areas)
        # Indices of the agents that each agent observes, i64 [M, M - 1]: teammates, then opponents, both cyclically
        # from its own.
        behind = (np.arange(options.agents)[:, None] + np.arange(options.agents)) % options.agents
        first = np.concatenate((behind[:, 1:], behind + options.agents), axis=1)
        second = np.concatenate((behind[:, 1:] + options.agents, behind), axis=1)
        self._others = np.concatenate((first, second), axis=0)

    def _begin(self, areas: LongArray) -> None:
        height = self._random.random((len(areas), 2 * RADIUS + 1)).argsort(axis=1)[:, : self._size] - RADIUS
        self._places[areas, :, 0] = np.repeat([-1, 1], self._size)
        self._places[areas, :, 1] = np.concatenate((height, -height), axis=1)

    def _advance(self, choices: LongArray) -> StepOutcome:
        moves = MOVES[choices]
        beginner = self._random.integers(0, 2, len(choices))
        for turn in range(choices.shape[1]):
            self._move((turn + beginner) % 2 * self._size + turn // 2, moves)
        inside = np.abs(self._places).max(axis=2) <= (RADIUS - (self._decisions + 1) // SHRINKING)[:, None]
        standing = self._present & inside
        first, second = standing[:, : self._size].any(axis=1), standing[:, self._size :].any(axis=1)
        won = (first.astype(np.float32) - second) * ~(first & second)
        earned = np.repeat(np.stack((won, -won), axis=1), self._size, axis=1)
        return StepOutcome(np.zeros_like(earned), earned, self._present & ~inside, ~(first & second))

    def _move(self, agent: LongArray, moves: LongArray) -> None:
        """Move one agent in each area, i64 [E], and any agent that it pushes."""
        rows = self._rows
        move = moves[rows, agent]
        target = self._places[rows, agent] + move
        going = self._present[rows, agent] & move.any(axis=1)
        pushed = self._standing_at(target) & going[:, None]
        blocked = pushed.any(axis=1) & self._standing_at(target + move).any(axis=1)
        going &= ~blocked
        pushed[rows, agent] = True
        self._places += (pushed & going[:, None])[..., None] * move[:, None]

    def _standing_at(self, cells: LongArray) -> BoolArray:
        """Return which agents are at the given cell of each area, [E, 2], as bool [E, M]."""
        at: BoolArray = (self._places == cells[:, None]).all(axis=2) & self._present
        return at

    def paint(self, number: int, canvas: Canvas) -> None:
        """Paint the ring at its current size, and the teams in red and blue."""
        canvas.reach = RADIUS + 1.0
        ring = 2 * (RADIUS - int(self._decisions[number]) // SHRINKING) + 1
        canvas.box(0.0, 0.0, ring, ring, GRAY)
        for agent, (x, y) in enumerate(self._places[number].tolist()):
            if self._present[number, agent]:
                canvas.disc(x, y, 0.4, RED if agent < self._size else BLUE)

    def _observe(self, areas: Agents) -> Sequence[FloatArray]:
        places, present = self._places[areas], self._present[areas]
        time = self._decisions[areas]
        ring = np.stack((RADIUS - time // SHRINKING, time % SHRINKING / SHRINKING), axis=1)
        ring = np.broadcast_to(ring[:, None], (*present.shape, 2))
        own = np.concatenate((places / RADIUS, ring), axis=2, dtype=np.float32)
        seen = np.concatenate((own, relative(places, present, self._others, RADIUS)), axis=2)
        return seen[:, : self._size], seen[:, self._size :]


@dataclass(frozen=True, slots=True)
class DungeonOptions(AreaOptions):
    """Options of ``DungeonEscape``."""

    agents: int = option(3, "members of the group in each area")

    def __post_init__(self) -> None:
        AreaOptions.__post_init__(self)
        if not 2 <= self.agents <= 2 * RADIUS + 1:
            raise ValueError(f"--agents must be 2 to {2 * RADIUS + 1} in DungeonEscape, found {self.agents}")


class DungeonEscape(AreaGame):
    """Escape as a group from a dungeon of 5 by 5 cells. Members choose to stay or to go right, left, up or down.

    A dragon walks from the middle column to its portal on the right, one step every second decision. If it reaches the
    portal, the episode ends without a reward. A member that meets the dragon slays it and dies: its episode ends
    without a reward, and a key lies where the dragon was. A member that steps on the key picks it up. When it carries
    the key to the door on the left, the group earns 1, and all remaining members escape. After 40 decisions, the
    episode is interrupted.

    A member observes its position, whether it carries the key, the dragon's relative position, whether it is alive,
    whether it is about to walk, the key's relative position, whether the key lies on the ground, and whether a teammate
    carries it (11 numbers); and for each teammate the relative position and whether it is alive (3 numbers). Members
    start on the left. A group that always slays the dragon and carries the key to the door scores 1, three members that
    act at random score 0.06, and a group whose members never slay the dragon scores 0.
    """

    def __init__(self, options: DungeonOptions, random: np.random.Generator, parameters: EnvironmentParameters) -> None:  # noqa: ARG002
        role = AreaRole(11 + 3 * (options.agents - 1), len(MOVES), options.agents, options.areas)
        super().__init__({"DungeonEscape?team=0": role}, options.areas, random, MAX_DECISIONS)
        self._places: LongArray = np.zeros((*self._present.shape, 2), dtype=np.int64)
        self._dragon: LongArray = np.zeros((options.areas, 2), dtype=np.int64)
        self._slain: BoolArray = np.zeros(options.areas, dtype=np.bool_)
        self._key: LongArray = np.zeros((options.areas, 2), dtype=np.int64)
        self._carrier: LongArray = np.full(options.areas, NOBODY)
        self._others = (np.arange(options.agents)[:, None] + np.arange(1, options.agents)) % options.agents
        self._rows = np.arange(options.areas)

    def _begin(self, areas: LongArray) -> None:
        drawn = self._random.random((len(areas), 2 * RADIUS + 2))
        self._places[areas, :, 0] = -RADIUS
        self._places[areas, :, 1] = drawn[:, 1:].argsort(axis=1)[:, : self._present.shape[1]] - RADIUS
        self._dragon[areas, 0] = 0
        self._dragon[areas, 1] = np.where(drawn[:, 0] < 0.5, -RADIUS, RADIUS)
        self._slain[areas] = False
        self._carrier[areas] = NOBODY

    def _advance(self, choices: LongArray) -> StepOutcome:
        self._places = np.clip(self._places + MOVES[choices], -RADIUS, RADIUS)
        at_key = (self._places == self._key[:, None]).all(axis=2) & self._present & self._lies()[:, None]
        self._carrier = np.where(at_key.any(axis=1), at_key.argmax(axis=1), self._carrier)
        died = self._slay()
        walking = ~self._slain & ((self._decisions + 1) % PAUSE == 0)
        way = np.sign(np.asarray(PORTAL) - self._dragon)
        way[:, 0] *= way[:, 1] == 0  # move vertically until in the middle row, then horizontally
        self._dragon += way * walking[:, None]
        died |= self._slay()
        escaped = (self._carrier != NOBODY) & (self._places[self._rows, self._carrier] == DOOR).all(axis=1)
        lost = ~self._slain & (self._dragon == PORTAL).all(axis=1)
        earned = np.repeat(escaped[:, None].astype(np.float32), choices.shape[1], axis=1)
        return StepOutcome(np.zeros_like(earned), earned, died, escaped | lost)

    def _slay(self) -> BoolArray:
        """Let the first member that meets a living dragon slay it and die; return which members died, bool [E, M]."""
        met = (self._places == self._dragon[:, None]).all(axis=2) & self._present & ~self._slain[:, None]
        fought = met.any(axis=1)
        died: BoolArray = np.zeros_like(met)
        died[self._rows[fought], met.argmax(axis=1)[fought]] = True
        self._slain |= fought
        self._key[fought] = self._dragon[fought]
        return died

    def _lies(self) -> BoolArray:
        """Return whether the key lies on the ground, bool [E]."""
        lies: BoolArray = self._slain & (self._carrier == NOBODY)
        return lies

    def paint(self, number: int, canvas: Canvas) -> None:
        """Paint members in blue, the key's carrier in yellow, the dragon in red, and the portal in a dark color."""
        canvas.reach = RADIUS + 1.0
        canvas.box(0.0, 0.0, 2 * RADIUS + 1, 2 * RADIUS + 1, GRAY)
        canvas.box(*DOOR, 0.9, 0.9, GREEN)
        canvas.box(*PORTAL, 0.9, 0.9, (70, 20, 60))
        if not self._slain[number]:
            x, y = self._dragon[number].tolist()
            canvas.box(x, y, 0.7, 0.7, RED)
        elif self._carrier[number] == NOBODY:
            x, y = self._key[number].tolist()
            canvas.disc(x, y, 0.15, YELLOW)
        for member, (x, y) in enumerate(self._places[number].tolist()):
            if self._present[number, member]:
                canvas.disc(x, y, 0.35, YELLOW if member == self._carrier[number] else BLUE)

    def _observe(self, areas: Agents) -> Sequence[FloatArray]:
        places, present, carrier = self._places[areas], self._present[areas], self._carrier[areas]
        m = present.shape[1]
        carries = carrier[:, None] == np.arange(m)
        lives, lies = ~self._slain[areas], self._lies()[areas]
        walks = lives & ((self._decisions[areas] + 1) % PAUSE == 0)
        columns = (
            places / RADIUS,
            carries[..., None],
            (self._dragon[areas, None] - places) / RADIUS * lives[:, None, None],
            np.repeat(np.stack((lives, walks), axis=1)[:, None], m, axis=1),
            (self._key[areas, None] - places) / RADIUS * lies[:, None, None],
            np.repeat(lies[:, None, None], m, axis=1),
            ((carrier != NOBODY)[:, None] & ~carries)[..., None],
            relative(places, present, self._others, RADIUS),
        )
        return (np.concatenate(columns, axis=2, dtype=np.float32),)


@dataclass(frozen=True, slots=True)
class StrikerOptions(AreaOptions):
    """Options of ``StrikerVsGoalie``."""

    agents: int = option(1, "strikers per area, each with a ball; several strikers form a group")


class StrikerVsGoalie(AreaGame):
    """Score a goal or defend it: behaviors Striker (team 0) and Goalie (team 1) on a pitch that is 9 cells wide.

    Both choose to go straight, right or left, and start in random columns. A striker runs 3 to 5 rows, one per
    decision, while the goalie stays on its line; both move at most one cell sideways per decision. If a striker arrives
    more than one cell away from the goalie, it scores a goal: the strikers earn 1 and the goalie -1. Otherwise, the
    strikers earn -1 and the goalie 1. Several strikers form a group.

    Both observe their position and the number of rows that are left. A striker also observes the relative positions of
    the goalie and its teammates; the goalie observes the relative position and the last move of each striker. If both
    play perfectly (the striker runs away and the goalie follows), a single striker scores -0.13 on average, because the
    result depends on the start positions. It scores 0.59 against random actions; with random actions, it scores -0.26
    against a good goalie and 0.38 against random actions.
    """

    def __init__(self, options: StrikerOptions, random: np.random.Generator, parameters: EnvironmentParameters) -> None:  # noqa: ARG002
        self._strikers = options.agents
        roles = {
            "Striker?team=0": AreaRole(2 + options.agents, len(SIDEWAYS), options.agents, options.areas),
            "Goalie?team=1": AreaRole(2 + 2 * options.agents, len(SIDEWAYS), 1, options.areas),
        }
        super().__init__(roles, options.areas, random, max_decisions=0)
        self._places: LongArray = np.zeros(self._present.shape, dtype=np.int64)
        self._went: LongArray = np.zeros(self._present.shape, dtype=np.int64)
        self._left: LongArray = np.zeros(options.areas, dtype=np.int64)

    def _begin(self, areas: LongArray) -> None:
        self._places[areas] = self._random.integers(0, WIDTH, (len(areas), self._strikers + 1))
        self._went[areas] = 0
        self._left[areas] = self._random.integers(ROWS[0], ROWS[1] + 1, len(areas))

    def _advance(self, choices: LongArray) -> StepOutcome:
        before = self._places
        self._places = np.clip(before + SIDEWAYS[choices], 0, WIDTH - 1)
        self._went = self._places - before
        strikers, goalie = self._places[:, :-1], self._places[:, -1:]
        goal = (np.abs(strikers - goalie) > REACH).any(axis=1)
        self._left -= 1
        over = self._left == 0
        earned = np.where(over, np.where(goal, 1.0, -1.0), 0.0).astype(np.float32)[:, None]
        group_reward = np.concatenate((np.repeat(earned, self._strikers, axis=1), -earned), axis=1)
        return StepOutcome(np.zeros_like(group_reward), group_reward, np.zeros_like(self._present), over)

    def paint(self, number: int, canvas: Canvas) -> None:
        """Paint the goal and the goalie at the top, and the strikers coming from below."""
        canvas.reach = WIDTH / 2
        middle = (WIDTH - 1) / 2
        *strikers, goalie = self._places[number].tolist()
        canvas.box(0.0, 3.0, WIDTH, 0.6, GRAY)
        canvas.box(goalie - middle, 3.0, 2 * REACH + 0.9, 0.5, BLUE)
        for striker in strikers:
            canvas.disc(striker - middle, 3.0 - float(self._left[number]), 0.4, RED)

    def _observe(self, areas: Agents) -> Sequence[FloatArray]:
        places = (self._places[areas] - WIDTH // 2) / (WIDTH // 2)
        left = self._left[areas, None] / ROWS[1]
        strikers, goalie = places[:, :-1], places[:, -1:]
        ways = places[:, None] - strikers[..., None]  # from each striker to everyone, the goalie last
        mates = (np.arange(self._strikers)[:, None] + np.arange(1, self._strikers)) % self._strikers
        to_mates = np.take_along_axis(ways, np.broadcast_to(mates, (len(ways), *mates.shape)), axis=2)
        own = np.stack((strikers, np.broadcast_to(left, strikers.shape)), axis=2)
        runs = np.concatenate((own, ways[..., -1:], to_mates), axis=2, dtype=np.float32)
        keeps = np.concatenate((goalie, left, strikers - goalie, self._went[areas, :-1]), axis=1, dtype=np.float32)
        return runs, keeps[:, None]
