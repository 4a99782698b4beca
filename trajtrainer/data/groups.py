"""What agents of a group have in common, message by message: who is there, and what the others were rewarded with.

Shape legend: N agents of a step batch, T terminal rows of it, E agents whose episodes end.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trajtrainer.core.steps import BoolArray, FloatArray, IntArray, LongArray, StepBatch
from trajtrainer.data.moments import Arrangement, arrange
from trajtrainer.data.roster import Histories, Roster
from trajtrainer.data.rows import RowPool

_MOST_ARRANGEMENTS = 32
_NOBODY = np.zeros(0, np.int64)


class Ended(NamedTuple):
    """The agents whose episodes a message ends.

    Attributes:
        slots: i64 [E].
        rows: i64 [E], of their last observations.
        interrupted: bool [E], whether it was the step limit.
    """

    slots: LongArray
    rows: LongArray
    interrupted: BoolArray


NOBODY_ENDED = Ended(_NOBODY, _NOBODY, np.zeros(0, np.bool_))


class Groups:
    """Writer of what the steps of agents have to do with their groups. See docs/mlagents-behavior.md#groups.

    Groups are told apart within a worker and team. An agent that a message does not name is still in its group, by what
    it saw last; what its mates receive meanwhile is added up until its next record.
    """

    def __init__(self, pool: RowPool, histories: Histories) -> None:
        """Begin without any agents; both are the processor's."""
        self._pool = pool
        self._histories = histories
        # Per slot: what the groupmates have received since the agent's last record, if any agent was ever silent.
        self._received = np.zeros(0, np.float64)

    def record(
        self, roster: Roster, batch: StepBatch, slots: LongArray, rows: LongArray, ended: Ended, *, as_before: bool
    ) -> BoolArray:
        """Take a message, after its records were written into their rows and before its decisions are begun.

        Args:
            roster: of its worker and team; agents whose episodes ended are still in it.
            batch: the message.
            slots: i64 [N - T], of the agents that decide.
            rows: i64 [N - T], of their records.
            ended: the agents whose episodes ended; their histories are cleared.
            as_before: whether the same agents decide as in the message before, in the same order.

        Returns:
            bool [E], whether the whole group ended with each.
        """
        before, roster.arrangement = roster.arrangement, _arranged(roster, batch.group[batch.num_terminal :])
        there = _NOBODY
        if as_before and before is not None and len(roster) == len(slots):
            # All are told who were there in the message before, those whose episodes ended included.
            steps = self._histories.last[slots]
            self._reward(slots, steps, _of_mates(self._pool["reward"][steps], before))
            self._pool.open_moments(rows, roster.arrangement)
        else:
            there = self._record_others(roster, slots, rows, ended)
        if not len(ended.slots):
            return NOBODY_ENDED.interrupted
        return self._end(ended, np.concatenate([rows[self._histories.count[slots] > 0], there]))

    def _record_others(self, roster: Roster, slots: LongArray, rows: LongArray, ended: Ended) -> LongArray:
        """Take a message of others than the one before; return the rows of those who are there, but silent."""
        known = self._histories.count[slots] > 0
        silent = self._silent(roster, slots)
        told = np.concatenate([slots[known], ended.slots])
        num_told = len(told)
        steps = self._histories.last[np.concatenate([told, silent])]
        reward = self._pool["reward"][steps]
        reward[num_told:] = 0
        mates = _of_mates(reward, _arranged(roster, self._pool["group"][steps]))
        self._reward(told, steps[:num_told], mates[:num_told])
        self._owe(slots[~known], silent, mates[num_told:])
        there: LongArray = steps[num_told:]
        self._open(roster, rows, there)
        return there

    def _silent(self, roster: Roster, slots: LongArray) -> LongArray:
        """Return the slots of the agents that are there, but are not among those who decide."""
        if len(roster) == len(slots):
            return _NOBODY
        is_silent = self._histories.count > 0
        is_silent[slots] = False
        everybody = np.array(roster.slots, np.int64)
        silent: LongArray = everybody[is_silent[everybody]]
        return silent

    def _reward(self, slots: LongArray, steps: LongArray, mates: NDArray[np.floating]) -> None:
        """Complete steps of agents, whose groupmates received so much with this message."""
        if len(self._received):
            mates = mates + self._received[slots]
            self._received[slots] = 0.0
        self._pool["groupmate_reward"][steps] = mates

    def _owe(self, new: LongArray, silent: LongArray, mates: NDArray[np.floating]) -> None:
        """Remember what groupmates of silent agents received with this message; new ones begin with nothing."""
        if not len(silent) and not len(self._received):
            return
        missing = len(self._histories.count) - len(self._received)
        if missing:
            self._received = np.concatenate([self._received, np.zeros(missing)])
        self._received[new] = 0.0
        self._received[silent] += mates

    def _open(self, roster: Roster, rows: LongArray, there: LongArray) -> None:
        """Open the moments of rows that were observed now, at which other rows, observed earlier, are there too."""
        num_users = None
        if len(there):
            num_users = len(rows)
            rows = np.concatenate([rows, there])
        self._pool.open_moments(rows, _arranged(roster, self._pool["group"][rows]), num_users)

    def _end(self, ended: Ended, survivors: LongArray) -> BoolArray:
        """Open the moments of last observations: those who survive are there, and whom the step limit stopped.

        Who begins an episode in the same message is not: it does so with the next one of the group.

        Args:
            ended: whose last observations these are.
            survivors: rows of those who were there before and go on.

        Returns:
            bool [E], whether nobody of the group survives.
        """
        group = self._pool["group"]
        of_ended, of_survivors = group[ended.rows], group[survivors]
        all_done = np.ones(len(of_ended), np.bool_)
        # A loop, because a message ends the episodes of few groups.
        for one in set(of_ended[of_ended > 0].tolist()):
            which, left = of_ended == one, survivors[of_survivors == one]
            all_done[which] = not len(left)
            self._pool.open_last_moment(ended.rows[which], ended.interrupted[which], left)
        return all_done


def _of_mates(reward: FloatArray, arrangement: Arrangement) -> NDArray[np.floating]:
    """Return what the groupmates of each agent received, of what each agent did."""
    which, sizes = arrangement.which, arrangement.sizes
    own = reward if arrangement.is_whole else reward[arrangement.present]
    found: NDArray[np.floating] = np.bincount(which, own, len(sizes))[which] - own
    if arrangement.is_whole:
        return found
    mates = np.zeros(len(reward))
    mates[arrangement.present] = found
    return mates


def _arranged(roster: Roster, group: IntArray) -> Arrangement:
    """Return the arrangement of these groups, which are mostly those of an earlier message."""
    known, key = roster.arrangements, group.tobytes()
    found = known.get(key)
    if found is None:
        if len(known) == _MOST_ARRANGEMENTS:
            known.clear()
        found = known[key] = arrange(group)
    return found
