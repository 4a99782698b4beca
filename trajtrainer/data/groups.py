"""What agents of a group share, message by message: who is present, and the rewards of the groupmates.

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
_NO_SLOTS = np.zeros(0, np.int64)


class Ended(NamedTuple):
    """The agents whose episodes a message ends.

    Attributes:
        slots: i64 [E].
        rows: i64 [E], of their last observations.
        interrupted: bool [E], whether the step limit ended the episode.
    """

    slots: LongArray
    rows: LongArray
    interrupted: BoolArray


NONE_ENDED = Ended(_NO_SLOTS, _NO_SLOTS, np.zeros(0, np.bool_))


class Groups:
    """Writes the group columns and moments of agents' steps (docs/explanation/mlagents-behavior.md#groups).

    Group numbers are unique within a worker and team. An agent that a message does not name is still in its group, with
    what it saw last. Rewards of its groupmates are added up until its next record.

    Args:
        pool: the agent processor's.
        histories: the agent processor's.
    """

    def __init__(self, pool: RowPool, histories: Histories) -> None:
        self._pool = pool
        self._histories = histories
        # Per slot: rewards of the groupmates since the agent's last record. Empty until some agent is silent.
        self._received = np.zeros(0, np.float64)

    def record(
        self, roster: Roster, batch: StepBatch, slots: LongArray, rows: LongArray, ended: Ended, *, as_before: bool
    ) -> BoolArray:
        """Record a message, after its records were written into their rows and before its decisions begin.

        Args:
            roster: of its worker and team. Agents whose episodes ended are still in it.
            batch: the message.
            slots: i64 [N - T], of the agents that decide.
            rows: i64 [N - T], of their records.
            ended: the agents whose episodes ended. Their histories have been cleared.
            as_before: whether the same agents decide as in the message before, in the same order.

        Returns:
            bool [E], whether the whole group ended with each of ``ended``.
        """
        before, roster.arrangement = roster.arrangement, _arranged(roster, batch.group[batch.num_terminal :])
        present = _NO_SLOTS
        if as_before and before is not None and len(roster) == len(slots):
            # The fast path: this message names every agent that was in the last one, ended episodes included.
            steps = self._histories.last[slots]
            self._reward(slots, steps, _of_mates(self._pool["reward"][steps], before))
            self._pool.open_moments(rows, roster.arrangement)
        else:
            present = self._record_changed(roster, slots, rows, ended)
        if not len(ended.slots):
            return NONE_ENDED.interrupted
        return self._end(ended, np.concatenate([rows[self._histories.count[slots] > 0], present]))

    def _record_changed(self, roster: Roster, slots: LongArray, rows: LongArray, ended: Ended) -> LongArray:
        """Record a message with other agents than the one before.

        Returns:
            Rows of agents that are present but silent.
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
            # Silent agents get this reward of their groupmates with their next record. New agents begin with nothing.
            missing = len(histories.count) - len(self._received)
            if missing:
                self._received = np.concatenate([self._received, np.zeros(missing)])
            self._received[slots[~known]] = 0.0
            self._received[silent] += mates[num_named:]
        # Rows that were observed now have a moment of their own, at which the silent agents' rows are present, too.
        present: LongArray = steps[num_named:]
        num_users = None
        if len(present):
            num_users, rows = len(rows), np.concatenate([rows, present])
        self._pool.open_moments(rows, _arranged(roster, self._pool["group"][rows]), num_users)
        return present

    def _reward(self, slots: LongArray, steps: LongArray, mates: NDArray[np.floating]) -> None:
        """Complete the agents' steps with what their groupmates received in this message and while they were silent."""
        if len(self._received):
            mates = mates + self._received[slots]
            self._received[slots] = 0.0
        self._pool["groupmate_reward"][steps] = mates

    def _end(self, ended: Ended, survivors: LongArray) -> BoolArray:
        """Open the moments of last observations, at which survivors and agents that the step limit stopped are present.

        An agent that begins an episode in the same message is not: that episode belongs to the group's next moment.

        Args:
            ended: the agents whose last observations these are.
            survivors: rows of agents that were present before and continue.

        Returns:
            bool [E], whether no one in the group survives.
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
    """The sum of the groupmates' rewards for each agent, given each agent's own reward."""
    which, sizes = arrangement.which, arrangement.sizes
    own = reward if arrangement.is_whole else reward[arrangement.present]
    found: NDArray[np.floating] = np.bincount(which, own, len(sizes))[which] - own
    if arrangement.is_whole:
        return found
    mates = np.zeros(len(reward))
    mates[arrangement.present] = found
    return mates


def _arranged(roster: Roster, group: IntArray) -> Arrangement:
    """``arrange`` with a cache: the groups are mostly those of an earlier message."""
    known, key = roster.arrangements, group.tobytes()
    found = known.get(key)
    if found is None:
        if len(known) == _MOST_ARRANGEMENTS:
            known.clear()
        found = known[key] = arrange(group)
    return found
