"""A game whose winner is known: each side bids in every step, and the higher sum wins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from mlagents_envs.base_env import ActionTuple, BaseEnv, DecisionSteps, TerminalSteps

from tests.learning.nn.specs import behavior, vector
from trajtrainer.core.spec import BehaviorSpec

CHOICES = 3
SPEC = behavior([vector(3)], 0, (CHOICES,))


@dataclass
class Table:
    """One training area: a side per team."""

    first_id: int
    length: int
    game: int = 0
    step: int = 0
    sums: list[int] = field(default_factory=list)


class Bids(BaseEnv):
    """Several tables, whose games are of different lengths.

    An agent sees its team, the table's game and the step. Who bids most gets 1 in the end, all others -1; with two of
    them nobody gets anything.

    Args:
        tables: how many.
        behaviors: behavior id of each team.
        worker_id: of the copy.
        forbidden: a choice that the masks forbid.
    """

    def __init__(
        self,
        tables: int = 1,
        behaviors: Sequence[str] = ("Bids?team=0", "Bids?team=1"),
        worker_id: int = 0,
        forbidden: int | None = None,
    ) -> None:
        self.behaviors = list(behaviors)
        self.tables = [Table(n * len(behaviors), 2 + (n + worker_id) % 3) for n in range(tables)]
        self.forbidden = forbidden
        self.closed = False

    @property
    def behavior_specs(self) -> Mapping[str, BehaviorSpec]:
        return dict.fromkeys(self.behaviors, SPEC)

    def reset(self) -> None:
        for table in self.tables:
            table.game, table.step, table.sums = 1, 0, [0] * len(self.behaviors)
        self.ended: dict[int, list[float]] = {}

    def set_actions(self, behavior_name: str, action: ActionTuple) -> None:
        team = self.behaviors.index(behavior_name)
        assert action.discrete.shape == (len(self.tables), 1)
        for table, (choice,) in zip(self.tables, action.discrete, strict=True):
            assert choice != self.forbidden
            table.sums[team] += int(choice)

    def step(self) -> None:
        self.ended = {}
        for number, table in enumerate(self.tables):
            table.step += 1
            # The lengths change, so that tables end together now and then.
            if table.step == table.length + table.game % 2:
                best = max(table.sums)
                won = table.sums.count(best) == 1
                self.ended[number] = [(1.0 if bid == best else -1.0) * won for bid in table.sums]
                table.game, table.step, table.sums = table.game + 1, 0, [0] * len(self.behaviors)

    def get_steps(self, behavior_name: str) -> tuple[DecisionSteps, TerminalSteps]:
        team = self.behaviors.index(behavior_name)
        ended = [self.tables[number] for number in self.ended]
        rewards = [rewards[team] for rewards in self.ended.values()]
        return self._decisions(team), self._terminals(ended, rewards, team)

    def _decisions(self, team: int) -> DecisionSteps:
        count = len(self.tables)
        masked = None if self.forbidden is None else [np.tile(np.arange(CHOICES) == self.forbidden, (count, 1))]
        reward, group = np.zeros(count, np.float32), np.zeros(count, np.int32)
        obs, ids = self._obs(self.tables, team), self._ids(self.tables, team)
        return DecisionSteps(obs, reward, ids, masked, group, reward)  # type: ignore[no-untyped-call]

    def _terminals(self, tables: Sequence[Table], rewards: Sequence[float], team: int) -> TerminalSteps:
        none, group = np.zeros(len(tables), np.float32), np.zeros(len(tables), np.int32)
        reward, interrupted = np.array(rewards, np.float32), np.zeros(len(tables), np.bool_)
        obs, ids = self._obs(tables, team), self._ids(tables, team)
        return TerminalSteps(obs, reward, interrupted, ids, group, none)  # type: ignore[no-untyped-call]

    def set_action_for_agent(self, behavior_name: str, agent_id: int, action: ActionTuple) -> None:
        raise NotImplementedError

    def close(self) -> None:
        self.closed = True

    def _obs(self, tables: Sequence[Table], team: int) -> list[Any]:
        rows = [[team, table.game, table.step] for table in tables]
        return [np.array(rows, np.float32).reshape(len(rows), 3)]

    def _ids(self, tables: Sequence[Table], team: int) -> Any:
        return np.array([table.first_id + team for table in tables], np.int32)


def one_team() -> Bids:
    return Bids(behaviors=["Bids?team=0"])


def roles(worker_id: int = 0) -> Bids:
    return Bids(behaviors=["Striker?team=0", "Goalie?team=1"], worker_id=worker_id)
