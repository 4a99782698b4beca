"""StrikerVsGoalie: strikers run at a goal, which one goalie keeps. Two behaviors with roles of their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trajtrainer.core.steps import FloatArray, LongArray
from trajtrainer.sim.areas import AreaGame, AreaOptions, AreaRole, StepOutcome
from trajtrainer.sim.drawing import BLUE, GRAY, RED, Canvas
from trajtrainer.sim.simulation import Agents, EnvironmentParameters, option

WIDTH = 9
ROWS = (3, 5)  # that the strikers run, one in each decision: at least and at most
REACH = 1
SIDEWAYS: LongArray = np.array([0, 1, -1], dtype=np.int64)


@dataclass(frozen=True, slots=True)
class StrikerOptions(AreaOptions):
    """Options of ``StrikerVsGoalie``."""

    agents: int = option(1, "strikers in an area, each with a ball; more than one are a group")


class StrikerVsGoalie(AreaGame):
    """Behaviors Striker (team 0) and Goalie (team 1) on a pitch 9 wide; both choose to go straight, right or left.

    All begin anywhere. A striker runs 3 to 5 rows, one in each decision, the goalie stays on the line; both go at most
    one place sideways. It is a goal if a striker arrives more than one place next to the goalie: the strikers earn 1
    and the goalie -1, else the other way round. Several strikers are a group.

    Both observe their place and how many rows are left; a striker the way to the goalie and to its mates, the goalie
    the way to each striker and where it went last. Where both play as well as one can (run away, run after) one striker
    scores -0.13 on average, for it depends on where they begin; 0.59 against random actions, -0.26 with random actions
    against a good goalie, 0.38 where both act at random.
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

    def draw(self, number: int, canvas: Canvas) -> None:
        """The goal above with the goalie in it, strikers come from below."""
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
