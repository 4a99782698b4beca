"""Agents that act and are not learned from: the opponents in self-play.

Shape legend: N agents of a step batch, H memory size.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from trajtrainer.core.steps import WORKER_SHIFT, ActionBatch, FloatArray, LongArray, StepBatch
from trajtrainer.data.agent_processor import Recorded
from trajtrainer.data.roster import NO_SLOT, Roster

_FIRST_SLOTS = 16
# More agents than so many per agent of a message, and so many besides, have come and gone without a last record.
_KEPT_PER_NAMED, _FEWEST_KEPT = 4, 1_000


class OpponentTracker:
    """Counts steps and keeps recurrent memories of agents whose experience is of no use: no rows, no trajectories.

    It takes the place of an ``AgentProcessor`` for the teams that do not learn.

    Attributes:
        num_steps: of the trajectories that would have been finished so far; what ``swap_steps`` counts.
    """

    def __init__(self, time_horizon: int, memory_size: int) -> None:
        """Begin without any agents.

        Args:
            time_horizon: longest trajectory, as of the agents that learn.
            memory_size: H; 0 without a memory.
        """
        self.num_steps = 0
        self._horizon = time_horizon
        self._rosters: defaultdict[tuple[int, int], Roster] = defaultdict(Roster)
        self._free: list[int] = []
        # Decisions of each agent in its present episode.
        self._steps = np.zeros(0, np.int64)
        self._memory = np.zeros((0, memory_size), np.float32)

    def record(self, batch: StepBatch, team: int = 0) -> Recorded:
        """Take one message of a team.

        Returns:
            ``rows``, which ``acted`` and ``memory_of`` take, and ``episode_lengths``; never trajectories.
        """
        if not len(batch):
            return Recorded(np.zeros(0, np.int64), None)
        key = int(batch.agent[0]) >> WORKER_SHIFT, team
        roster, num = self._rosters[key], batch.num_terminal
        lengths = self._end_episodes(roster.find(batch.agent[:num].tolist())) if num else []
        deciding = batch.agent[num:]
        slots = roster.same(deciding)
        if slots is None:
            slots = self._slots_of(roster, deciding)
        steps = self._steps[slots]
        self.num_steps += self._horizon * int(np.count_nonzero((steps > 0) & (steps % self._horizon == 0)))
        self._steps[slots] = steps + 1
        return Recorded(slots if not num else np.concatenate([np.zeros(num, np.int64), slots]), None, lengths)

    def memory_of(self, rows: LongArray) -> FloatArray:
        """Return the recurrent memories of agents that decide, f32 [N, H]."""
        memory: FloatArray = self._memory[rows]
        return memory

    def acted(self, rows: LongArray, actions: ActionBatch) -> None:
        """Take over the memories that the policy left."""
        if self._memory.shape[1]:
            self._memory[rows] = actions.memory

    def drop(self, worker: int | None = None) -> None:
        """Forget the agents of one worker, or of all: it was reset or restarted."""
        for key in [key for key in self._rosters if worker is None or key[0] == worker]:
            self._give_back(self._rosters.pop(key).slots)

    def _end_episodes(self, slots: list[int]) -> list[int]:
        """Return the steps minus one of each episode that ends; see ``Recorded``."""
        lengths = []
        for slot in slots:
            if slot == NO_SLOT or not self._steps[slot]:
                continue
            last = int(self._steps[slot]) - 1
            self.num_steps += last % self._horizon + 1
            self._steps[slot], self._memory[slot] = 0, 0
            lengths.append(last)
        return lengths

    def _slots_of(self, roster: Roster, ids: LongArray) -> LongArray:
        """Return the agents' slots; who is not in the roster gets a new one."""
        agents = ids.tolist()
        if len(roster) > _KEPT_PER_NAMED * max(roster.most_named, len(agents)) + _FEWEST_KEPT:
            deciding = set(agents)
            gone = [slot for agent, slot in roster.items() if agent not in deciding]
            roster.remove_slots(gone)
            self._give_back(gone)
        slots = roster.find(agents)
        for i, (agent, slot) in enumerate(zip(agents, slots, strict=True)):
            if slot == NO_SLOT:
                slots[i] = self._take_slot()
                roster.add(agent, slots[i])
        found = np.array(slots, np.int64)
        roster.remember(ids, found)
        return found

    def _take_slot(self) -> int:
        if not self._free:
            old = len(self._steps)
            n = max(old, _FIRST_SLOTS)
            self._steps = np.concatenate([self._steps, np.zeros(n, np.int64)])
            self._memory = np.concatenate([self._memory, np.zeros((n, self._memory.shape[1]), np.float32)])
            self._free = [*range(old + n - 1, old - 1, -1)]
        return self._free.pop()

    def _give_back(self, slots: list[int]) -> None:
        self._steps[slots], self._memory[slots] = 0, 0
        self._free += slots
