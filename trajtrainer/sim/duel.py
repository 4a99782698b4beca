"""Duel: two teams push each other off a ring that shrinks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trajtrainer.core.steps import BoolArray, FloatArray, LongArray
from trajtrainer.sim.areas import MOVES, AreaGame, AreaOptions, AreaRole, StepOutcome, relative
from trajtrainer.sim.drawing import BLUE, GRAY, RED, Canvas
from trajtrainer.sim.simulation import Agents, EnvironmentParameters

RADIUS = 2
SHRINKING = 12  # decisions after which the ring loses its edge
SEEN = 3  # numbers of another agent


@dataclass(frozen=True, slots=True)
class DuelOptions(AreaOptions):
    """Options of ``Duel``."""

    def __post_init__(self) -> None:
        AreaOptions.__post_init__(self)
        if self.agents > 2 * RADIUS + 1:
            raise ValueError(f"--agents of Duel must be at most {2 * RADIUS + 1} a team, found {self.agents}")


class Duel(AreaGame):
    """Teams 0 and 1 of one behavior on a ring of 5 by 5 cells; chooses to stay or go right, left, up or down.

    An agent that goes to an occupied cell pushes the other one on, if there is room behind it. The agents move one
    after the other, the teams in turn; which one begins is drawn at every decision. An agent outside the ring after a
    decision has left. The ring is of 3 by 3 cells after 12 decisions, a single one after 24, gone after 36. The team
    whose last agent is left earns 1, the other -1; when the last ones leave together it is a draw, 0 for both. With
    several agents a team is a group, and all that is earned is the group's: also for those that have left.

    Observes its place, how large the ring is, how soon it shrinks (4 numbers), and for each mate and then each opponent
    the way there and whether it is left (3). Teams begin in mirrored places. Random actions against random actions
    score 0 on average, holding the center scores above 0.95 against them.
    """

    def __init__(self, options: DuelOptions, random: np.random.Generator, parameters: EnvironmentParameters) -> None:  # noqa: ARG002
        self._size = options.agents
        size = 4 + SEEN * (2 * options.agents - 1)
        roles = {f"Duel?team={team}": AreaRole(size, len(MOVES), options.agents, options.areas) for team in range(2)}
        super().__init__(roles, options.areas, random, max_decisions=0)
        self._places: LongArray = np.zeros((*self._present.shape, 2), dtype=np.int64)
        self._rows = np.arange(options.areas)
        # Which agents each one sees, i64 [M, M - 1]: its mates, then its opponents, each from its own place on.
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
        """Move one agent of each area, i64 [E], and those that it pushes."""
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
        """Who is at a cell of each area, [E, 2], as bool [E, M]."""
        at: BoolArray = (self._places == cells[:, None]).all(axis=2) & self._present
        return at

    def draw(self, number: int, canvas: Canvas) -> None:
        """The ring as it is, the teams red and blue."""
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
