"""What agents of a group have in common, message by message: who is there, and what the others were rewarded with.

Shape legend: N agents of a step batch, T terminal rows of it, E agents whose episodes end.
"""

from __future__ import annotations

import numpy as np

from trajtrainer.data.histories import Histories
from trajtrainer.data.moments import Arrangement, arrange
from trajtrainer.data.roster import Roster
from trajtrainer.data.rows import RowPool
from trajtrainer.steps import BoolArray, IntArray, LongArray

_NOBODY = np.zeros(0, np.int64)


class Groups:
    """Writer of what the steps of agents have to do with their groups. See docs/mlagents-behavior.md#groups.

    Groups are told apart within a worker and team. An agent that a message does not name is still in its group, by what
    it saw last; what its mates receive meanwhile is added up until its next record.
    """

    def __init__(self, pool: RowPool, histories: Histories) -> None:
        """Begin without any agents; both are the processor's."""
        self._pool = pool
        self._histories = histories
        # Per slot: what the groupmates have received since the agent's last record.
        self._received = np.zeros(0, np.float64)

    def record(
        self, roster: Roster, slots: LongArray, rows: LongArray, ended: list[int], ends: list[int], stays: list[bool]
    ) -> BoolArray:
        """Take a message, after its records were written into their rows and before its decisions are begun.

        Args:
            roster: of its worker and team; agents whose episodes ended are still in it.
            slots: i64 [N - T], of the agents that decide.
            rows: i64 [N - T], of their records.
            ended: slots of the E agents whose episodes ended; their histories are cleared.
            ends: the rows of their last observations.
            stays: whether it was the step limit that ended each.

        Returns:
            bool [E], whether the whole group ended with each.
        """
        count, last = self._histories.count, self._histories.last
        if len(self._received) < len(count):
            self._received = np.concatenate([self._received, np.zeros(len(count) - len(self._received))])
        group = self._pool["group"][rows]
        known = count[slots] > 0
        silent = self._silent(roster, slots)
        if not ended and not len(silent) and known.all():
            members = _arranged(roster, group)
            before = self._pool["group"][last[slots]]
            self._reward(slots, silent, members if np.array_equal(before, group) else arrange(before))
            self._open(rows, members)
            return np.zeros(0, np.bool_)
        told = np.concatenate([slots[known], np.array(ended, np.int64)])
        self._reward(told, silent, arrange(self._pool["group"][last[np.concatenate([told, silent])]]))
        self._received[slots[~known]] = 0.0
        self._open_with(rows, last[silent])
        return self._end(ends, stays, np.concatenate([rows[known], last[silent]]))

    def _silent(self, roster: Roster, slots: LongArray) -> LongArray:
        """Return the slots of the agents that are there, but are not among those who decide."""
        if len(roster) == len(slots):
            return _NOBODY
        is_silent = self._histories.count > 0
        is_silent[slots] = False
        everybody = np.array(roster.slots, np.int64)
        silent: LongArray = everybody[is_silent[everybody]]
        return silent

    def _reward(self, told: LongArray, silent: LongArray, arrangement: Arrangement) -> None:
        """Give each agent what its groupmates received with this message.

        Args:
            told: slots of those whose last step is complete.
            silent: slots of the others that are there.
            arrangement: of both, in this order, by their groups in that step.
        """
        last = self._histories.last[told]
        reward = self._pool["reward"][last].astype(np.float64)
        if len(silent):
            reward = np.concatenate([reward, np.zeros(len(silent))])
        present, which, _, sizes = arrangement
        own = reward[present]
        mates = np.zeros(len(reward))
        mates[present] = np.bincount(which, own, len(sizes))[which] - own
        self._pool["groupmate_reward"][last] = mates[: len(told)] + self._received[told]
        self._received[told] = 0.0
        if len(silent):
            self._received[silent] += mates[len(told) :]

    def _open(self, rows: LongArray, arrangement: Arrangement) -> None:
        if len(arrangement.sizes):
            self._pool.open_moments(rows, arrangement)

    def _open_with(self, rows: LongArray, others: LongArray, stays: BoolArray | None = None) -> None:
        """Open the moments of rows that were observed now, at which other rows, observed earlier, are there too."""
        group = self._pool["group"]
        if len(others):
            others = others[np.isin(group[others], group[rows])]
        everybody = np.concatenate([rows, others])
        if stays is not None:
            stays = np.concatenate([stays, np.ones(len(others), np.bool_)])
        arrangement = arrange(group[everybody], stays)
        if len(arrangement.sizes):
            self._pool.open_moments(everybody, arrangement, len(rows), stays)

    def _end(self, ends: list[int], stays: list[bool], survivors: LongArray) -> BoolArray:
        """Open the moments of last observations: those who survive are there, and whom the step limit stopped.

        Who begins an episode in the same message is not: it does so with the next one of the group.
        """
        rows = np.array(ends, np.int64)
        self._open_with(rows, survivors, np.array(stays, np.bool_))
        group = self._pool["group"]
        all_done: BoolArray = (group[rows] <= 0) | ~np.isin(group[rows], group[survivors])
        return all_done


def _arranged(roster: Roster, group: IntArray) -> Arrangement:
    """Return the arrangement of these groups, which are mostly those of the message before."""
    key = group.tobytes()
    if roster.arrangement is None or roster.arrangement[0] != key:
        roster.arrangement = key, arrange(group)
    return roster.arrangement[1]
