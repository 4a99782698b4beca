"""The living agents of each worker and team, and their unfinished trajectories."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from trajtrainer.core.steps import BoolArray, FloatArray, IntArray, LongArray
from trajtrainer.data.moments import Arrangement

NO_SLOT = -1


class Roster:
    """The living agents of one worker and team with their slots, and the ids of its last message.

    Most messages name the same agents as the one before; ``same`` then saves looking up each of them.

    Attributes:
        last_slots: the slots of the last ``remember``.
        most_named: the largest number of ids in one message so far.
        arrangement: of the agents in the last message by their groups, where groups are needed.
        arrangements: cache of arrangements, by the group numbers as bytes.
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
        return list(self._slots.values())

    def items(self) -> list[tuple[int, int]]:
        """Agents with their slots."""
        return list(self._slots.items())

    def same(self, ids: LongArray) -> LongArray | None:
        """The slots of these ids if they are those of the last ``remember``, in the same order; otherwise None."""
        return self.last_slots if ids.tobytes() == self._last_ids else None

    def remember(self, ids: LongArray, slots: LongArray) -> None:
        """Keep the ids of a message, all of which are in the roster, and their slots for ``same``."""
        self._last_ids, self.last_slots = ids.tobytes(), slots
        self.most_named = max(self.most_named, len(ids))

    def find(self, agents: list[int]) -> list[int]:
        """Slots of these agents, ``NO_SLOT`` for unknown agents."""
        get = self._slots.get
        return [get(agent, NO_SLOT) for agent in agents]

    def add(self, agent: int, slot: int) -> None:
        self._slots[agent] = slot

    def remove(self, agent: int) -> None:
        """Remove an agent that is in the roster and not among the ids of the last message."""
        del self._slots[agent]

    def remove_slots(self, slots: Iterable[int]) -> None:
        gone = set(slots)
        self._slots = {agent: slot for agent, slot in self._slots.items() if slot not in gone}


_FIRST_SLOTS = 16
_FIRST_WIDTH = 64


class Histories:
    """The unfinished trajectories, in a table with one line (slot) per agent.

    A slot is reserved when an agent appears, and released when it is gone.

    Args:
        horizon: longest trajectory.
        memory_size: H.

    Attributes:
        count: i32 [slots], rows of the unfinished trajectory, including the last one, which has no decision yet; 0 for
            an agent between episodes and for a free slot.
        last: i64 [slots], the last of these rows; undefined where ``count`` is 0.
        earlier: i32 [slots], steps of the same episode in trajectories that were cut at the horizon.
        seen: i64 [slots], when the agent last decided, on the caller's clock.
        memory: f32 [slots, H], the recurrent memory after the last decision; 0 at the start of an episode.
    """

    count: IntArray
    last: LongArray
    earlier: IntArray
    seen: LongArray
    memory: FloatArray

    def __init__(self, horizon: int, memory_size: int) -> None:
        self._horizon = horizon
        self._rows = np.empty((0, min(horizon, _FIRST_WIDTH)), np.int32)
        self.count, self.earlier = np.zeros(0, np.int32), np.zeros(0, np.int32)
        self.last, self.seen = np.zeros(0, np.int64), np.zeros(0, np.int64)
        self.memory = np.zeros((0, memory_size), np.float32)
        self._free: list[int] = []
        # An upper bound of all counts, so that ``append`` need not search for the largest each time.
        self._longest = 0
        self._add_slots(_FIRST_SLOTS)

    def reserve_slot(self) -> int:
        if not self._free:
            self._add_slots(len(self.count))
        return self._free.pop()

    def release_slot(self, slot: int) -> None:
        """Release the slot of an agent that is gone, after ``clear``."""
        self._free.append(slot)

    def append(self, slots: LongArray, rows: LongArray) -> None:
        """Add one row to each of these distinct slots."""
        width = self._rows.shape[1]
        if self._longest >= width:
            # The bound says that the table is full: look how long the longest history really is.
            self._longest = int(self.count.max(initial=0))
            if self._longest == width < self._horizon:
                wider = np.empty((len(self._rows), min(2 * width, self._horizon)), np.int32)
                wider[:, :width] = self._rows
                self._rows = wider
        self._longest += 1
        count = self.count[slots]
        self._rows[slots, count] = rows
        self.last[slots] = rows
        count += 1
        self.count[slots] = count

    def rows_of(self, slot: int) -> IntArray:
        """Rows of one slot, i32 [its count]: a view, valid until the next ``append``."""
        rows: IntArray = self._rows[slot, : self.count[slot]]
        return rows

    def cut(self, slots: LongArray) -> None:
        """Remove the rows of these slots; the next trajectory of the same episode begins."""
        self.earlier[slots] += self.count[slots]
        self.count[slots] = 0

    def clear(self, slot: int | LongArray) -> None:
        """Empty one or several slots, because their episodes are over."""
        self.count[slot] = 0
        self.earlier[slot] = 0
        self.memory[slot] = 0

    def full(self, slots: LongArray) -> BoolArray | None:
        """Which of these slots have ``horizon`` rows, bool [len(slots)]; None if none has."""
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
