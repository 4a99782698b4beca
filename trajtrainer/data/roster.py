"""Slots of the agents of one worker and team."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from trajtrainer.core.steps import BoolArray, FloatArray, IntArray, LongArray
from trajtrainer.data.moments import Arrangement

NO_SLOT = -1


class Roster:
    """The living agents of one worker and team, and the ids of its last message.

    Most messages name the same agents as the one before; then ``same`` spares looking up each of them.

    Attributes:
        last_slots: those of the last ``remember``.
        most_named: how many ids one message has had at most.
        arrangement: of the agents that the last message named, by their groups, where groups are needed.
        arrangements: of agents with certain groups, by these as bytes.
    """

    def __init__(self) -> None:
        self.last_slots = np.zeros(0, np.int64)
        self.most_named = 0
        self.arrangement: Arrangement | None = None
        self.arrangements: dict[bytes, Arrangement] = {}
        self._slots: dict[int, int] = {}
        self._last_ids = b""  # as bytes, which compare several times faster than arrays

    def __len__(self) -> int:
        return len(self._slots)

    @property
    def slots(self) -> list[int]:
        """Those of all agents."""
        return list(self._slots.values())

    def items(self) -> list[tuple[int, int]]:
        """Return each agent with its slot."""
        return list(self._slots.items())

    def same(self, ids: LongArray) -> LongArray | None:
        """Return the slots of these ids if they are those of the last ``remember``, in the same order.

        Otherwise None.
        """
        return self.last_slots if ids.tobytes() == self._last_ids else None

    def remember(self, ids: LongArray, slots: LongArray) -> None:
        """Keep the ids of a message and their slots for ``same``. All must be in the roster."""
        self._last_ids, self.last_slots = ids.tobytes(), slots
        self.most_named = max(self.most_named, len(ids))

    def find(self, agents: list[int]) -> list[int]:
        """Return the slots of these agents, ``NO_SLOT`` for unknown ones."""
        get = self._slots.get
        return [get(agent, NO_SLOT) for agent in agents]

    def add(self, agent: int, slot: int) -> None:
        """Enter an agent."""
        self._slots[agent] = slot

    def remove(self, agent: int) -> None:
        """Strike out an agent that is in the roster and not among the ids of the last message."""
        del self._slots[agent]

    def remove_slots(self, slots: Iterable[int]) -> None:
        """Strike out the agents that have these slots."""
        gone = set(slots)
        self._slots = {agent: slot for agent, slot in self._slots.items() if slot not in gone}


_FIRST_SLOTS = 16
_FIRST_WIDTH = 64


class Histories:
    """A table with one line (slot) per agent. Slots are taken when an agent appears and given back when it is gone.

    Attributes:
        count: i32 [slots], rows of the unfinished trajectory, the undecided last one included; 0 for an agent that
            is between episodes and for a free slot.
        last: i64 [slots], the last of them; without meaning where ``count`` is 0.
        earlier: i32 [slots], steps of the same episode in trajectories that the horizon has cut.
        seen: i64 [slots], when the agent last decided, on a clock of the caller.
        memory: f32 [slots, H], the recurrent memory after the last decision; 0 at the start of an episode.
    """

    count: IntArray
    last: LongArray
    earlier: IntArray
    seen: LongArray
    memory: FloatArray

    def __init__(self, horizon: int, memory_size: int) -> None:
        """Make an empty table for trajectories of up to ``horizon`` steps and memories of ``memory_size``."""
        self._horizon = horizon
        self._rows = np.empty((0, min(horizon, _FIRST_WIDTH)), np.int32)
        self.count, self.earlier = np.zeros(0, np.int32), np.zeros(0, np.int32)
        self.last, self.seen = np.zeros(0, np.int64), np.zeros(0, np.int64)
        self.memory = np.zeros((0, memory_size), np.float32)
        self._free: list[int] = []
        # No count is larger. Kept so that appending need not look for the largest each time.
        self._longest = 0
        self._add_slots(_FIRST_SLOTS)

    def take_slot(self) -> int:
        """Return an empty slot."""
        if not self._free:
            self._add_slots(len(self.count))
        return self._free.pop()

    def give_slot(self, slot: int) -> None:
        """Take back the slot of an agent that is gone. It must be empty (``clear``)."""
        self._free.append(slot)

    def append(self, slots: LongArray, rows: LongArray) -> None:
        """Add one row to each of these distinct slots."""
        if self._longest >= self._rows.shape[1]:
            self._make_wider()
        self._longest += 1
        count = self.count[slots]
        self._rows[slots, count] = rows
        self.last[slots] = rows
        count += 1
        self.count[slots] = count

    def rows_of(self, slot: int) -> IntArray:
        """Return the rows of one slot, i32 [its count]: a view, valid until the next ``append``."""
        rows: IntArray = self._rows[slot, : self.count[slot]]
        return rows

    def cut(self, slots: LongArray) -> None:
        """Forget the rows of these slots, as the next trajectory of the same episode begins."""
        self.earlier[slots] += self.count[slots]
        self.count[slots] = 0

    def clear(self, slot: int | LongArray) -> None:
        """Forget everything of one or several slots, as their episodes are over."""
        self.count[slot] = 0
        self.earlier[slot] = 0
        self.memory[slot] = 0

    def full(self, slots: LongArray) -> BoolArray | None:
        """Return which of these slots have as many rows as a trajectory may have, bool [len(slots)]; None for none."""
        if self._longest < self._horizon:
            return None
        full: BoolArray = self.count[slots] == self._horizon
        return full if full.any() else None

    def _add_slots(self, n: int) -> None:
        old = len(self.count)
        self._rows = np.concatenate([self._rows, np.empty((n, self._rows.shape[1]), np.int32)])
        self.count = np.concatenate([self.count, np.zeros(n, np.int32)])
        self.earlier = np.concatenate([self.earlier, np.zeros(n, np.int32)])
        self.last = np.concatenate([self.last, np.zeros(n, np.int64)])
        self.seen = np.concatenate([self.seen, np.zeros(n, np.int64)])
        self.memory = np.concatenate([self.memory, np.zeros((n, self.memory.shape[1]), np.float32)])
        self._free = [*range(old + n - 1, old - 1, -1), *self._free]

    def _make_wider(self) -> None:
        """Find out how long the longest history really is, and widen the table if that is all its width."""
        self._longest = int(self.count.max(initial=0))
        slots, width = self._rows.shape
        if self._longest == width < self._horizon:
            wider = np.empty((slots, min(2 * width, self._horizon)), np.int32)
            wider[:, :width] = self._rows
            self._rows = wider
