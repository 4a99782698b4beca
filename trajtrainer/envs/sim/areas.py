"""Identical training areas: the agents of an area start and end their episode together, but may leave it early.

Shape legend: E areas, M agents of an area, ordered by role, O numbers that an agent of a role observes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from trajtrainer.core.spec import ActionSpec, BehaviorSpec
from trajtrainer.core.steps import BoolArray, FloatArray, LongArray
from trajtrainer.envs.sim.canvas import Canvas
from trajtrainer.envs.sim.simulation import (
    ALL,
    Agents,
    Role,
    SimulatedActions,
    SimulationOptions,
    SimulationStep,
    option,
    vector_sensor,
)

# The moves: stay, right, left, up, down.
MOVES: LongArray = np.array([[0, 0], [1, 0], [-1, 0], [0, 1], [0, -1]], dtype=np.int64)


@dataclass(frozen=True, slots=True)
class AreaOptions(SimulationOptions):
    """Options of simulations with training areas."""

    agents: int = option(1, "agents per team in each area; two or more form a group")
    areas: int = option(8, "number of training areas")

    def __post_init__(self) -> None:
        SimulationOptions.__post_init__(self)
        if self.areas < 1:
            raise ValueError(f"--areas must be at least 1, found {self.areas}")


class AreaRole:
    """The agents of one behavior in all areas. They observe ``size`` numbers and have one branch of ``choices``.

    Args:
        size: O.
        choices: size of the branch.
        per_area: number of agents per area; several agents form a group.
        areas: E.
    """

    masked = False

    def __init__(self, size: int, choices: int, per_area: int, areas: int) -> None:
        self.spec = BehaviorSpec([vector_sensor(size)], ActionSpec(0, (choices,)))
        self.per_area = per_area
        self.num_agents = areas * per_area
        self.groups: LongArray | None = np.arange(self.num_agents) // per_area if per_area > 1 else None


class StepOutcome(NamedTuple):
    """The outcome of a decision.

    Attributes:
        reward: f32 [E, M].
        group_reward: f32 [E, M], reward of each agent's group; without groups, it is added to ``reward``.
        left: bool [E, M], present agents that leave before the others.
        over: bool [E], areas whose episode ends for all agents.
    """

    reward: FloatArray
    group_reward: FloatArray
    left: BoolArray
    over: BoolArray


class AreaGame(ABC):
    """Base class of games with training areas: it manages the episodes and keeps track of the agents that are present.

    Agents are numbered area by area, as in Unity.

    Args:
        roles: the agents of each behavior, by behavior id.
        areas: E.
        random: generator for all random numbers of the game.
        max_decisions: length at which an area's episode is interrupted; 0 for no limit.
    """

    def __init__(
        self, roles: Mapping[str, AreaRole], areas: int, random: np.random.Generator, max_decisions: int
    ) -> None:
        self.roles: Mapping[str, Role] = roles
        self._sides = list(roles.values())
        self._random = random
        self._max_decisions = max_decisions
        stops = np.cumsum([role.per_area for role in self._sides]).tolist()
        self._columns = [slice(stop - role.per_area, stop) for role, stop in zip(self._sides, stops, strict=True)]
        ids = np.arange(areas * stops[-1]).reshape(areas, -1)
        self.ids: Mapping[str, LongArray] = {
            name: ids[:, columns].ravel() for name, columns in zip(roles, self._columns, strict=True)
        }
        self._decisions: LongArray = np.zeros(areas, dtype=np.int64)
        self.num_pictures = areas
        self._present: BoolArray = np.ones((areas, stops[-1]), dtype=np.bool_)

    @abstractmethod
    def _begin(self, areas: LongArray) -> None:
        """Start a new episode in ``areas``, with all agents present."""

    @abstractmethod
    def _advance(self, choices: LongArray) -> StepOutcome:
        """Apply the choices, i64 [E, M], which are 0 for agents that have left."""

    @abstractmethod
    def _observe(self, areas: Agents) -> Sequence[FloatArray]:
        """Return each role's observations in ``areas``, f32 [areas, agents, O], including agents that have left."""

    @abstractmethod
    def paint(self, number: int, canvas: Canvas) -> None:
        """Paint one area."""

    def reset(self) -> list[SimulationStep]:
        """Start new episodes in all areas."""
        self._restart(np.arange(len(self._decisions)))
        nothing = np.zeros(self._present.shape, dtype=np.float32)
        none = np.zeros(self._present.shape, dtype=np.bool_)
        seen = self._observe(ALL)
        return self._steps(seen, seen, StepOutcome(nothing, nothing, none, none[:, 0]), none, none[:, 0])

    def step(self, actions: Sequence[SimulatedActions]) -> list[SimulationStep]:
        """Apply one decision; if an area's episode is over or too long, start the next one."""
        choices: LongArray = np.zeros(self._present.shape, dtype=np.int64)
        for columns, chosen in zip(self._columns, actions, strict=True):
            choices[:, columns][self._present[:, columns]] = chosen.discrete[:, 0]
        outcome = self._advance(choices)
        self._decisions += 1
        late = self._decisions >= self._max_decisions if self._max_decisions else np.zeros_like(outcome.over)
        restarting = outcome.over | late
        ended = self._present & (outcome.left | restarting[:, None])
        self._present &= ~outcome.left
        last = seen = self._observe(ALL)
        if restarting.any():
            self._restart(np.flatnonzero(restarting))
            seen = self._observe(ALL)
        return self._steps(seen, last, outcome, ended, restarting)

    def _restart(self, areas: LongArray) -> None:
        self._decisions[areas] = 0
        self._present[areas] = True
        self._begin(areas)

    def _steps(
        self,
        seen: Sequence[FloatArray],
        last: Sequence[FloatArray],
        outcome: StepOutcome,
        ended: BoolArray,
        restarted: BoolArray,
    ) -> list[SimulationStep]:
        steps = []
        for role, columns, now, then in zip(self._sides, self._columns, seen, last, strict=True):
            reward, group_reward = outcome.reward[:, columns].flatten(), outcome.group_reward[:, columns].flatten()
            left = outcome.left[:, columns].flatten()
            if role.groups is None:
                reward, group_reward = reward + group_reward, np.zeros_like(reward)
            deciding = np.flatnonzero(self._present[:, columns])
            gone = np.flatnonzero(ended[:, columns])
            late = np.repeat(restarted & ~outcome.over, role.per_area)
            ended_reward, ended_group_reward = reward[gone], group_reward[gone]
            begun = np.repeat(restarted, role.per_area)
            reward[begun] = group_reward[begun] = 0.0
            steps.append(
                SimulationStep(
                    observations=(_rows(now)[deciding],),
                    reward=reward[deciding],
                    mask=None,
                    ended=gone,
                    ended_observations=(_rows(then)[gone],),
                    ended_reward=ended_reward,
                    interrupted=(late & ~left)[gone],
                    deciding=None if len(deciding) == role.num_agents else deciding,
                    group_reward=group_reward[deciding],
                    ended_group_reward=ended_group_reward,
                )
            )
        return steps


def _rows(column: FloatArray) -> FloatArray:
    """Reshape [E, agents, O] to [E * agents, O]."""
    return column.reshape(-1, column.shape[-1])


def relative(places: LongArray, present: BoolArray, others: LongArray, scale: float) -> FloatArray:
    """Return the agents' observations of other agents: the relative position and 1, or zeros for agents that have left.

    Args:
        places: i64 [E, M, 2], positions of the agents.
        present: bool [E, M], False for agents that have left.
        others: i64 [M, P], the agents that each agent sees.
        scale: distances are divided by this.

    Returns:
        f32 [E, M, 3 P].
    """
    there = present[:, others, None]
    way = (places[:, others] - places[:, :, None]) / scale
    return np.concatenate((way * there, there), axis=-1, dtype=np.float32).reshape(*present.shape, -1)
