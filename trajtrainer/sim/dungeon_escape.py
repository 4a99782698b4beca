"""DungeonEscape: a small version of Unity's scene. One of a group has to die so that the others escape."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trajtrainer.core.steps import BoolArray, FloatArray, LongArray
from trajtrainer.sim.areas import MOVES, AreaGame, AreaOptions, AreaRole, StepOutcome, relative
from trajtrainer.sim.drawing import BLUE, GRAY, GREEN, RED, YELLOW, Canvas
from trajtrainer.sim.simulation import Agents, EnvironmentParameters, option

RADIUS = 2
DOOR = (-RADIUS, 0)
PORTAL = (RADIUS, 0)
PAUSE = 2  # decisions for each step of the dragon
MAX_DECISIONS = 40
NOBODY = -1


@dataclass(frozen=True, slots=True)
class DungeonOptions(AreaOptions):
    """Options of ``DungeonEscape``."""

    agents: int = option(3, "members of a group, one group in each area")

    def __post_init__(self) -> None:
        AreaOptions.__post_init__(self)
        if not 2 <= self.agents <= 2 * RADIUS + 1:
            raise ValueError(f"--agents of DungeonEscape must be 2 to {2 * RADIUS + 1}, found {self.agents}")


class DungeonEscape(AreaGame):
    """A group in a dungeon of 5 by 5 cells; its members choose to stay or to go right, left, up or down.

    A dragon walks from the middle to its portal at the right, a step in every second decision; once there, it is over
    with nothing earned. A member that meets the dragon slays it and dies: its episode ends with nothing earned, and a
    key lies where the dragon was. A member that goes there takes the key, and when it carries the key to the door at
    the left, the group earns 1 and all that are left escape. After 40 decisions the episode is interrupted.

    Observes its place, whether it carries the key, the way to the dragon and whether it lives, whether the dragon is
    about to walk, the way to the key and whether it lies there, whether a mate carries it (11 numbers), and for each
    mate the way there and whether it lives (3). Members begin at the left. A group that always slays the dragon and
    takes the key home scores 1, three that act at random 0.06, and a group of which no member dies 0.
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
        self._dragon += _towards_portal(self._dragon) * walking[:, None]
        died |= self._slay()
        escaped = (self._carrier != NOBODY) & (self._places[self._rows, self._carrier] == DOOR).all(axis=1)
        lost = ~self._slain & (self._dragon == PORTAL).all(axis=1)
        earned = np.repeat(escaped[:, None].astype(np.float32), choices.shape[1], axis=1)
        return StepOutcome(np.zeros_like(earned), earned, died, escaped | lost)

    def _slay(self) -> BoolArray:
        """Let the first member that meets a living dragon die; return who did, bool [E, M]."""
        met = (self._places == self._dragon[:, None]).all(axis=2) & self._present & ~self._slain[:, None]
        fought = met.any(axis=1)
        died: BoolArray = np.zeros_like(met)
        died[self._rows[fought], met.argmax(axis=1)[fought]] = True
        self._slain |= fought
        self._key[fought] = self._dragon[fought]
        return died

    def _lies(self) -> BoolArray:
        """Whether the key lies on the ground, bool [E]."""
        lies: BoolArray = self._slain & (self._carrier == NOBODY)
        return lies

    def draw(self, number: int, canvas: Canvas) -> None:
        """Members are blue, the one with the key yellow; the dragon is red, its portal dark."""
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


def _towards_portal(places: LongArray) -> LongArray:
    """The next step of dragons, [E, 2]: first to the middle line, then along it."""
    way = np.sign(np.asarray(PORTAL) - places)
    way[:, 0] *= way[:, 1] == 0
    return way
