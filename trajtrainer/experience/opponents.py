"""Tracks the opponents in self-play: agents that act, but whose experience is not used for learning.

Shape legend: N agents in a step batch, H memory size.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from trajtrainer.core.steps import WORKER_SHIFT, ActionBatch, FloatArray, LongArray, StepBatch
from trajtrainer.experience.agent_processor import Recorded
from trajtrainer.experience.roster import NO_SLOT, Roster

_FIRST_SLOTS = 16
# If there are more agents than _FEWEST_KEPT plus _KEPT_PER_NAMED times those in a message, some must have vanished
# without a terminal record.
_KEPT_PER_NAMED, _FEWEST_KEPT = 4, 1_000


class OpponentTracker:
    """Takes the place of an ``AgentProcessor`` for teams that do not learn.

    It counts steps and keeps recurrent memories, but does not record any experience.

    Args:
        time_horizon: maximum length of a trajectory, the same as for the learning agents.
        memory_size: H; 0 without a recurrent memory.

    Attributes:
        num_steps: number of steps in the trajectories that would have been finished so far, as counted for
            ``swap_steps``.
    """

    def __init__(self, time_horizon: int, memory_size: int) -> None:
        self.num_steps = 0
        self._horizon = time_horizon
        self._rosters: defaultdict[tuple[int, int], Roster] = defaultdict(Roster)
        self._free: list[int] = []
        # Number of decisions that each agent has made in its current episode.
        self._steps = np.zeros(0, np.int64)
        self._memory = np.zeros((0, memory_size), np.float32)

    def record(self, batch: StepBatch, team: int = 0) -> Recorded:
        """Record one message of a team.

        Returns:
            The outcome with ``rows`` (for ``acted`` and ``memory_of``) and ``episode_lengths``, but no trajectories.
        """
        if not len(batch):
            return Recorded(np.zeros(0, np.int64), None)
        key = int(batch.agent[0]) >> WORKER_SHIFT, team
        roster, num = self._rosters[key], batch.num_terminal
        lengths = []
        for slot in roster.find(batch.agent[:num].tolist()):
            if slot == NO_SLOT or not self._steps[slot]:
                continue
            length = int(self._steps[slot]) - 1  # as ML-Agents counts; see ``Recorded``
            self.num_steps += length % self._horizon + 1
            self._steps[slot], self._memory[slot] = 0, 0
            lengths.append(length)
        deciding = batch.agent[num:]
        slots = roster.same(deciding)
        if slots is None:
            slots = self._slots_of(roster, deciding)
        steps = self._steps[slots]
        self.num_steps += self._horizon * int(np.count_nonzero((steps > 0) & (steps % self._horizon == 0)))
        self._steps[slots] = steps + 1
        return Recorded(slots if not num else np.concatenate([np.zeros(num, np.int64), slots]), None, lengths)

    def memory_of(self, rows: LongArray) -> FloatArray:
        """Return the recurrent memories of the deciding agents, f32 [N, H]."""
        memory: FloatArray = self._memory[rows]
        return memory

    def acted(self, rows: LongArray, actions: ActionBatch) -> None:
        """Store the recurrent memories after these decisions."""
        if self._memory.shape[1]:
            self._memory[rows] = actions.memory

    def drop(self, worker: int | None = None) -> None:
        """Drop the agents of one worker, or of all workers (None), after a reset or restart."""
        for key in [key for key in self._rosters if worker is None or key[0] == worker]:
            self._give_back(self._rosters.pop(key).slots)

    def _slots_of(self, roster: Roster, ids: LongArray) -> LongArray:
        """Return the slots of the deciding agents. Agents that are not in the roster get new slots."""
        agents = ids.tolist()
        if len(roster) > _KEPT_PER_NAMED * max(roster.most_named, len(agents)) + _FEWEST_KEPT:
            deciding = set(agents)
            gone = [slot for agent, slot in roster.items() if agent not in deciding]
            roster.remove_slots(gone)
            self._give_back(gone)
        slots = roster.find(agents)
        for i, (agent, slot) in enumerate(zip(agents, slots, strict=True)):
            if slot == NO_SLOT:
                slots[i] = self._reserve_slot()
                roster.add(agent, slots[i])
        found = np.array(slots, np.int64)
        roster.remember(ids, found)
        return found

    def _reserve_slot(self) -> int:
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
