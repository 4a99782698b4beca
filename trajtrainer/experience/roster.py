"""The active agents of each worker and team, their unfinished trajectories, and the data shared by groupmates.

Shape legend: N agents in a step batch, T terminal rows in a step batch, E agents whose episodes end, H memory size.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trajtrainer.core.steps import BoolArray, FloatArray, IntArray, LongArray, StepBatch
from trajtrainer.experience.moments import Arrangement, arrange
from trajtrainer.experience.rows import RowPool

NO_SLOT = -1
_FIRST_SLOTS = 16
_FIRST_WIDTH = 64
_MOST_ARRANGEMENTS = 32
_NO_SLOTS = np.zeros(0, np.int64)


class Roster:
    """The active agents of one worker and team with their slots, and the ids in the last message.

    Most messages contain the same agents as the one before. In this case, ``same`` avoids looking up each agent.

    Attributes:
        last_slots: the slots in the last call of ``remember``.
        most_named: the largest number of ids in a message so far.
        arrangement: the agents in the last message arranged by group; None if groups are not needed.
        arrangements: cache of arrangements. The keys are the group numbers as bytes.
    """

    def __init__(self) -> None:
        self.last_slots = np.zeros(0, np.int64)
        self.most_named = 0
        self.arrangement: Arrangement | None = None
        self.arrangements: dict[bytes, Arrangement] = {}
        self._slots: dict[int, int] = {}
        self._last_ids = b""  # bytes are compared several times faster than arrays

    def __len__(self) -> int:
        return len(self._slots)

    @property
    def slots(self) -> list[int]:
        return list(self._slots.values())

    def items(self) -> list[tuple[int, int]]:
        """Return all agents with their slots."""
        return list(self._slots.items())

    def same(self, ids: LongArray) -> LongArray | None:
        """Return the slots of these ids; None unless they equal the ids in the last ``remember``, in the same order."""
        return self.last_slots if ids.tobytes() == self._last_ids else None

    def remember(self, ids: LongArray, slots: LongArray) -> None:
        """Remember the ids in a message, which must all be in the roster, and their slots for ``same``."""
        self._last_ids, self.last_slots = ids.tobytes(), slots
        self.most_named = max(self.most_named, len(ids))

    def find(self, agents: list[int]) -> list[int]:
        """Return the slots of these agents, with ``NO_SLOT`` for unknown agents."""
        get = self._slots.get
        return [get(agent, NO_SLOT) for agent in agents]

    def add(self, agent: int, slot: int) -> None:
        self._slots[agent] = slot

    def remove(self, agent: int) -> None:
        """Remove an agent, which must be in the roster and not in the last message."""
        del self._slots[agent]

    def remove_slots(self, slots: Iterable[int]) -> None:
        gone = set(slots)
        self._slots = {agent: slot for agent, slot in self._slots.items() if slot not in gone}


class Histories:
    """The unfinished trajectories, in a table with one line (slot) per agent.

    A slot is reserved when an agent appears, and released when the agent is gone.

    Args:
        horizon: maximum length of a trajectory.
        memory_size: H.

    Attributes:
        count: i32 [slots], the number of rows in the unfinished trajectory, including the last row, whose step is not
            complete yet; 0 for an agent between episodes and for a free slot.
        last: i64 [slots], the last of these rows; undefined if ``count`` is 0.
        earlier: i32 [slots], the number of steps of the same episode in trajectories that were cut at the horizon.
        seen: i64 [slots], the time of the agent's last decision on the caller's clock.
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
        # An upper bound of all counts, which saves ``append`` from computing the maximum each time.
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
            # The bound says that the table may be full, so compute the actual length of the longest history.
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
        """Return the rows of a slot, i32 [count], as a view that is valid until the next ``append``."""
        rows: IntArray = self._rows[slot, : self.count[slot]]
        return rows

    def cut(self, slots: LongArray) -> None:
        """Remove the rows of these slots, and start the next trajectory of the same episodes."""
        self.earlier[slots] += self.count[slots]
        self.count[slots] = 0

    def clear(self, slot: int | LongArray) -> None:
        """Clear one or more slots whose episodes have ended."""
        self.count[slot] = 0
        self.earlier[slot] = 0
        self.memory[slot] = 0

    def full(self, slots: LongArray) -> BoolArray | None:
        """Return a mask of the slots that have ``horizon`` rows, bool [len(slots)]; None if there are no such slots."""
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


class Ended(NamedTuple):
    """The agents whose episodes end with a message.

    Attributes:
        slots: i64 [E], slots of the agents.
        rows: i64 [E], rows of their last observations.
        interrupted: bool [E], whether the episode ended because of the step limit.
    """

    slots: LongArray
    rows: LongArray
    interrupted: BoolArray


NONE_ENDED = Ended(_NO_SLOTS, _NO_SLOTS, np.zeros(0, np.bool_))


class Groups:
    """Writes the group columns and moments of agents' steps (docs/explanation/mlagents-behavior.md#groups).

    Group numbers are unique within a worker and team. An agent that is missing from a message remains in its group with
    its last observation, and the rewards of its groupmates are added up until its next record.

    Args:
        pool: the agent processor's pool.
        histories: the agent processor's histories.
    """

    def __init__(self, pool: RowPool, histories: Histories) -> None:
        self._pool = pool
        self._histories = histories
        # For each slot, the sum of the groupmates' rewards since the agent's last record. Empty until an agent
        # sends no record for the first time.
        self._received = np.zeros(0, np.float64)

    def record(
        self, roster: Roster, batch: StepBatch, slots: LongArray, rows: LongArray, ended: Ended, *, as_before: bool
    ) -> BoolArray:
        """Record a message, after its records were written to rows and before its decisions are added to the histories.

        Args:
            roster: roster of the message's worker and team. It still contains the agents whose episodes ended.
            batch: the message.
            slots: i64 [N - T], slots of the deciding agents.
            rows: i64 [N - T], rows of their records.
            ended: the agents whose episodes ended. Their histories have been cleared.
            as_before: whether the message has the same deciding agents, in the same order, as the previous message.

        Returns:
            bool [E], whether the whole group ended, for each agent in ``ended``.
        """
        before, roster.arrangement = roster.arrangement, _arranged(roster, batch.group[batch.num_terminal :])
        present = _NO_SLOTS
        if as_before and before is not None and len(roster) == len(slots):
            # Fast path: this message contains all agents of the previous one, including those whose episodes ended.
            steps = self._histories.last[slots]
            self._reward(slots, steps, _of_mates(self._pool["reward"][steps], before))
            self._pool.open_moments(rows, roster.arrangement)
        else:
            present = self._record_changed(roster, slots, rows, ended)
        if not len(ended.slots):
            return NONE_ENDED.interrupted
        return self._end(ended, np.concatenate([rows[self._histories.count[slots] > 0], present]))

    def _record_changed(self, roster: Roster, slots: LongArray, rows: LongArray, ended: Ended) -> LongArray:
        """Record a message whose agents differ from those in the previous message.

        Returns:
            Rows of the agents that remain in their groups but are missing from the message.
        """
        histories = self._histories
        known = histories.count[slots] > 0
        silent = _NO_SLOTS
        if len(roster) != len(slots):
            is_silent = histories.count > 0
            is_silent[slots] = False
            living = np.array(roster.slots, np.int64)
            silent = living[is_silent[living]]
        named = np.concatenate([slots[known], ended.slots])
        num_named = len(named)
        steps = histories.last[np.concatenate([named, silent])]
        reward = self._pool["reward"][steps]
        reward[num_named:] = 0
        mates = _of_mates(reward, _arranged(roster, self._pool["group"][steps]))
        self._reward(named, steps[:num_named], mates[:num_named])
        if len(silent) or len(self._received):
            # Silent agents get their groupmates' rewards with their next record. New agents start at zero.
            missing = len(histories.count) - len(self._received)
            if missing:
                self._received = np.concatenate([self._received, np.zeros(missing)])
            self._received[slots[~known]] = 0.0
            self._received[silent] += mates[num_named:]
        # Open moments for the rows of this message. The rows of silent agents are also members of these moments.
        present: LongArray = steps[num_named:]
        num_users = None
        if len(present):
            num_users, rows = len(rows), np.concatenate([rows, present])
        self._pool.open_moments(rows, _arranged(roster, self._pool["group"][rows]), num_users)
        return present

    def _reward(self, slots: LongArray, steps: LongArray, mates: NDArray[np.floating]) -> None:
        """Complete the agents' steps with the groupmates' rewards, including those since the agents' last records."""
        if len(self._received):
            mates = mates + self._received[slots]
            self._received[slots] = 0.0
        self._pool["groupmate_reward"][steps] = mates

    def _end(self, ended: Ended, survivors: LongArray) -> BoolArray:
        """Open the moments of the last observations. Their members are the survivors and the interrupted agents.

        An agent that starts an episode in the same message is not a member, because its episode starts at the group's
        next moment.

        Args:
            ended: the agents whose episodes ended.
            survivors: rows of the agents that were present before and continue.

        Returns:
            bool [E], whether no agent in the group survives.
        """
        group = self._pool["group"]
        of_ended, of_survivors = group[ended.rows], group[survivors]
        all_done = np.ones(len(of_ended), np.bool_)
        for one in set(of_ended[of_ended > 0].tolist()):
            which, left = of_ended == one, survivors[of_survivors == one]
            all_done[which] = not len(left)
            self._pool.open_last_moment(ended.rows[which], ended.interrupted[which], left)
        return all_done


def _of_mates(reward: FloatArray, arrangement: Arrangement) -> NDArray[np.floating]:
    """Return the sum of the groupmates' rewards for each agent."""
    which, sizes = arrangement.which, arrangement.sizes
    own = reward if arrangement.is_whole else reward[arrangement.present]
    found: NDArray[np.floating] = np.bincount(which, own, len(sizes))[which] - own
    if arrangement.is_whole:
        return found
    mates = np.zeros(len(reward))
    mates[arrangement.present] = found
    return mates


def _arranged(roster: Roster, group: IntArray) -> Arrangement:
    """Call ``arrange`` with a cache, because the groups are usually the same as in an earlier message."""
    known, key = roster.arrangements, group.tobytes()
    found = known.get(key)
    if found is None:
        if len(known) == _MOST_ARRANGEMENTS:
            known.clear()
        found = known[key] = arrange(group)
    return found
