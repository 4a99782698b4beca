"""Matches of teams: who names the numbers that it sees more exactly wins. For ``--env=python:tests.envs.duel:Duel``."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from mlagents_envs.base_env import (
    ActionSpec,
    ActionTuple,
    BaseEnv,
    BehaviorMapping,
    BehaviorSpec,
    DecisionSteps,
    DimensionProperty,
    ObservationSpec,
    ObservationType,
    TerminalSteps,
)
from numpy.typing import NDArray

SPEC = BehaviorSpec(
    [ObservationSpec((2,), (DimensionProperty.NONE,), ObservationType.DEFAULT, "Number")], ActionSpec(1, ())
)


@dataclass
class _Side:
    """One team of all areas. ``rewards`` are those of the last step, ``seen`` what its agents see now, [agents]."""

    team: int
    ids: NDArray[np.int64]
    area: NDArray[np.int64]
    seen: NDArray[np.float32] = field(init=False)
    actions: NDArray[np.float32] = field(init=False)


class Duel(BaseEnv):
    """Areas in which teams of agents play ``length`` steps; then the exactest team gets 1 each, the others -1.

    Args:
        teams: how many.
        size: agents of each.
        areas: how many matches are played beside each other.
        length: of a match; area i has ``length + i``, so that not all end at once.
        roles: one behavior per team (``Role0?team=0``) instead of one for all.
        grouped: an area's agents of a team are a group, whose reward it is.
        seed: of the numbers.
    """

    def __init__(
        self,
        teams: int = 2,
        size: int = 1,
        areas: int = 4,
        length: int = 8,
        roles: bool = False,
        grouped: bool = False,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self._rng = np.random.default_rng(seed)
        self._length = length + np.arange(areas)
        self._grouped = grouped
        area = np.repeat(np.arange(areas), size)
        self._sides = {
            f"{f'Role{team}' if roles else 'Duel'}?team={team}": _Side(
                team, team * areas * size + np.arange(areas * size), area
            )
            for team in range(teams)
        }
        self._specs = dict.fromkeys(self._sides, SPEC)

    def reset(self) -> None:
        self._time = np.zeros(len(self._length), np.int64)
        self._score = np.zeros((len(self._sides), len(self._length)))
        self._over = np.zeros(len(self._length), np.bool_)
        self._reward = np.zeros_like(self._score)
        self._show()

    def step(self) -> None:
        for side in self._sides.values():
            error = np.abs(side.actions[:, 0] - side.seen[:, 0])
            self._score[side.team] -= np.bincount(side.area, error, len(self._length))
        self._time += 1
        self._over = self._time == self._length
        best = self._score == self._score.max(0)
        self._reward = np.where(self._over, np.where(best, 1.0, -1.0), 0.0)
        self._time[self._over] = 0
        self._score[:, self._over] = 0.0
        self._show()

    def close(self) -> None: ...

    @property
    def behavior_specs(self) -> BehaviorMapping:
        return BehaviorMapping(self._specs)

    def set_actions(self, behavior_name: str, action: ActionTuple) -> None:
        self._sides[behavior_name].actions = action.continuous

    def set_action_for_agent(self, behavior_name: str, agent_id: int, action: ActionTuple) -> None:
        raise NotImplementedError

    def get_steps(self, behavior_name: str) -> tuple[DecisionSteps, TerminalSteps]:
        side = self._sides[behavior_name]
        ended = np.flatnonzero(self._over[side.area])
        going_on = np.where(self._over[side.area], 0.0, self._reward[side.team][side.area])
        every = np.arange(len(side.ids))
        decisions = DecisionSteps(  # type: ignore[no-untyped-call]
            *self._columns(side, every, going_on), None, *self._groups(side, every, going_on)
        )
        last = self._reward[side.team][side.area[ended]]
        interrupted = np.zeros(len(ended), np.bool_)
        obs, reward, ids = self._columns(side, ended, last)
        groups = self._groups(side, ended, last)
        return decisions, TerminalSteps(obs, reward, interrupted, ids, *groups)  # type: ignore[no-untyped-call]

    def _show(self) -> None:
        for side in self._sides.values():
            numbers = self._rng.uniform(-0.9, 0.9, len(side.ids))
            side.seen = np.stack([numbers, np.full(len(numbers), side.team)], 1).astype(np.float32)

    def _columns(self, side: _Side, rows: NDArray[Any], reward: NDArray[Any]) -> tuple[Any, Any, Any]:
        own = np.zeros(len(rows)) if self._grouped else reward
        return [side.seen[rows]], own.astype(np.float32), side.ids[rows]

    def _groups(self, side: _Side, rows: NDArray[Any], reward: NDArray[Any]) -> tuple[Any, Any]:
        if not self._grouped:
            return np.zeros(len(rows), np.int32), np.zeros(len(rows), np.float32)
        group = 1 + side.team * len(self._length) + side.area[rows]
        return group.astype(np.int32), reward.astype(np.float32)
