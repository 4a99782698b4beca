"""Converts an environment's messages to rows and finished trajectories, for all agents in a message at once.

Shape legend: N agents in a step batch, T terminal rows in a step batch, S trajectories, H memory size.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import numpy as np

from trajtrainer.core.columns import Moment, Store, names_of, run_or_rows
from trajtrainer.core.errors import InvalidDataError
from trajtrainer.core.steps import WORKER_SHIFT, ActionBatch, BoolArray, FloatArray, IntArray, LongArray, StepBatch
from trajtrainer.experience.roster import NO_SLOT, NONE_ENDED, Ended, Groups, Histories, Roster
from trajtrainer.experience.rows import RowPool
from trajtrainer.experience.trajectory import TrajectoryBatch

# Limit on the number of agents per worker and team whose rows are kept: as many full trajectories as fit into
# ``_KEPT_BYTES`` (within bounds), or ``_KEPT_PER_NAMED`` times the agents in one message, whichever is greater.
_KEPT_BYTES = 1 << 30
_FEWEST_KEPT, _MOST_KEPT = 1_000, 10_000
_KEPT_PER_NAMED = 4


@dataclass(slots=True)
class Recorded:
    """The outcome of recording one step batch.

    Attributes:
        rows: i64 [N], the row of each agent. The caller passes ``rows[num_terminal:]`` to ``acted``, and must not use
            the others.
        trajectories: the trajectories that were finished by this message; None if there are none.
        episode_lengths: the length of each episode that ended with this message, counted as in ML-Agents: the number of
            steps minus one.
        num_given_up: the number of agents whose rows were released because they seem to have vanished without a
            terminal record.
    """

    rows: LongArray
    trajectories: TrajectoryBatch | None
    episode_lengths: list[int] = field(default_factory=list)
    num_given_up: int = 0


@dataclass(slots=True)
class _Finished:
    """The trajectories finished by one message, and the slots of the agents whose episodes ended."""

    rows: list[IntArray] = field(default_factory=list)
    bootstrap: list[int] = field(default_factory=list)
    terminated: list[bool] = field(default_factory=list)
    agent: list[int] = field(default_factory=list)
    ended_slots: list[int] = field(default_factory=list)
    episode_lengths: list[int] = field(default_factory=list)
    all_done: BoolArray | None = None

    def ended(self) -> Ended:
        """Return the agents whose episodes ended. Call this before trajectories are cut at the horizon."""
        interrupted = ~np.array(self.terminated, np.bool_)
        return Ended(np.array(self.ended_slots, np.int64), np.array(self.bootstrap, np.int64), interrupted)

    def batch(self) -> TrajectoryBatch | None:
        """Return all finished trajectories, with ended episodes first; None if there are none."""
        if not self.agent:
            return None
        num_ended, num_cut = len(self.ended_slots), len(self.agent) - len(self.ended_slots)
        return TrajectoryBatch(
            rows=np.concatenate(self.rows),
            offset=np.array([*accumulate(map(len, self.rows), initial=0)], np.int32),
            bootstrap=np.array(self.bootstrap, np.int32),
            terminated=np.array(self.terminated, np.bool_),
            ended=np.array([True] * num_ended + [False] * num_cut),
            agent=np.array(self.agent, np.int64),
            all_done=None if self.all_done is None else np.concatenate([self.all_done, np.zeros(num_cut, np.bool_)]),
        )


class AgentProcessor:
    """Writes step batches into the pool, and splits each agent's steps into trajectories.

    A step is complete when the agent's next record arrives, because this record contains the step's reward and whether
    the episode ended. A trajectory is finished at the end of the episode, or when it has ``time_horizon`` steps. The
    recurrent memory is kept when a trajectory is cut at the horizon, and cleared at the end of an episode. Agents may
    appear, vanish and skip messages at any time (docs/explanation/mlagents-behavior.md#trajectories).

    - Terminal records are processed before decision requests, so an agent may end an episode and start the next one in
      the same message. A terminal record is ignored if the agent has made no decision since its last terminal record,
      so only the first of several terminal records in a message counts.
    - Finished trajectories are in message order: first ended episodes, then horizon cuts.
    - Agents are identified by their full id, whose upper half is the worker. All agents in a batch have the same
      worker.
    - An agent that is destroyed without a terminal record keeps its rows, because it may come back. The rows are
      released by ``drop``, or when many more agents are known than a message contains. In that case, the agents that
      have been silent the longest are given up. If such an agent comes back after all, it starts a new episode.

    All teams of a behavior share a processor.

    Raises:
        ValueError: ``time_horizon`` is less than 1.
    """

    def __init__(self, pool: RowPool, time_horizon: int) -> None:
        if time_horizon < 1:
            raise ValueError(f"time_horizon is {time_horizon}, expected at least 1")
        self._pool = pool
        self._memory_size = pool["memory"].shape[1]
        self._observed, self._decided, self._followed = (
            [name for name in names_of(Store.POOL, moment) if name != "memory" and pool[name][:1].size]
            for moment in (Moment.OBSERVED, Moment.DECIDED, Moment.FOLLOWED)
        )
        self._histories = Histories(time_horizon, self._memory_size)
        self._groups = None if pool.moments is None else Groups(pool, self._histories)
        self._rosters: defaultdict[tuple[int, int], Roster] = defaultdict(Roster)
        agent_bytes = time_horizon * pool.row_bytes
        self._most_silent = min(max(_KEPT_BYTES // agent_bytes, _FEWEST_KEPT), _MOST_KEPT)
        self._clock = 0
        self._slot_of_row = np.zeros(0, np.int64)

    def record(self, batch: StepBatch, team: int = 0) -> Recorded:
        """Record one message of a team: write a row per agent, complete earlier steps, and finish trajectories.

        The caller then owns the trajectories, and must release them with ``trajectory.release``.

        Raises:
            InvalidDataError: an agent requests two decisions in one message. In this case, nothing is recorded.
        """
        if not len(batch):
            return Recorded(np.zeros(0, np.int64), None)
        pool, histories, num = self._pool, self._histories, batch.num_terminal
        self._clock += 1
        roster = self._rosters[int(batch.agent[0]) >> WORKER_SHIFT, team]
        deciding = batch.agent[num:]
        same = roster.same(deciding)
        slots = self._slots_of(roster, deciding) if same is None else same
        rows = self._write(batch)
        # Complete the previous step of each agent that has one. Terminal records are processed later, because they must
        # overwrite these values in the last step of an agent whose episode ends in the same message.
        known: LongArray = slots
        records: Any = slice(num, None)
        if same is None:
            has_begun = histories.count[slots] > 0
            known, records = slots[has_begun], num + np.flatnonzero(has_begun)
        last = histories.last[known]
        for name in self._followed:
            pool.columns[name][last] = getattr(batch, name)[records]
        finished = self._end_episodes(roster, batch, rows[:num]) if num else None
        all_done = None
        if self._groups is not None:
            ended = finished.ended() if finished else NONE_ENDED
            all_done = self._groups.record(roster, batch, slots, rows[num:], ended, as_before=same is not None)
        full = histories.full(slots)
        if full is not None:
            # Cut these trajectories at the horizon. Their new rows are also bootstraps, so each gets a second
            # reference.
            finished = finished or _Finished()
            cut, bootstrap = slots[full], rows[num:][full]
            finished.rows += map(histories.rows_of, cut.tolist())
            finished.bootstrap += bootstrap.tolist()
            finished.terminated += [False] * len(cut)
            finished.agent += deciding[full].tolist()
            histories.cut(cut)
            pool.retain(bootstrap)
        if finished:
            finished.all_done = all_done
        # Copy the rows of finished trajectories before adding new steps, because they are views of the histories.
        trajectories = finished.batch() if finished else None
        self._begin(slots, rows[num:])
        num_given_up = 0
        if same is None:
            # The agents of the last ``remember`` decided in every message up to the previous one.
            histories.seen[roster.last_slots] = self._clock - 1
            histories.seen[slots] = self._clock
            roster.remember(deciding, slots)
            num_given_up = self._give_up_silent(roster)
        if not finished:
            return Recorded(rows, trajectories, [], num_given_up)
        for agent, slot in zip(finished.agent, finished.ended_slots, strict=False):  # ended episodes come first
            if histories.count[slot] == 0:  # no new episode was started in the same message
                roster.remove(agent)
                histories.release_slot(slot)
        return Recorded(rows, trajectories, finished.episode_lengths, num_given_up)

    def acted(self, rows: LongArray, actions: ActionBatch) -> None:
        """Write the policy's decisions for rows from ``record``.

        The rows may be from several workers. Their agents must not have been dropped after ``record``.

        Args:
            rows: i64 [N], distinct decision rows.
            actions: actions of these agents, in the same order.
        """
        columns = self._pool.columns
        for name in self._decided:
            columns[name][rows] = getattr(actions, name)
        if self._memory_size:
            self._histories.memory[self._slot_of_row[rows]] = actions.memory

    def memory_of(self, rows: LongArray) -> FloatArray:
        """Return the recurrent memories for decision rows from ``record``, f32 [N, H]."""
        memory: FloatArray = self._pool["memory"][rows]
        return memory

    def playing_groups(self, worker: int, team: int, rows: LongArray) -> IntArray:
        """Return the groups of all agents whose current episode began before the last message, i32 [any].

        Args:
            worker: the agents' worker.
            team: the agents' team.
            rows: the rows of the last message.
        """
        histories = self._histories
        roster = self._rosters.get((worker, team))
        slots = np.array([] if roster is None else roster.slots, np.int64)
        slots = slots[histories.count[slots] > 0]
        began = (histories.count[slots] == 1) & (histories.earlier[slots] == 0) & np.isin(histories.last[slots], rows)
        playing = slots[~began]
        groups: IntArray = self._pool["group"][histories.last[playing]]
        return groups

    def drop(self, worker: int | None = None) -> None:
        """Drop the unfinished trajectories of one worker, or of all workers (None), after a reset or restart."""
        for key in [key for key in self._rosters if worker is None or key[0] == worker]:
            self._abandon(np.array(self._rosters.pop(key).slots, np.int64))

    def _give_up_silent(self, roster: Roster) -> int:
        """If there are too many agents, give up the ones that have been silent the longest. Return their number."""
        most = max(self._most_silent, _KEPT_PER_NAMED * roster.most_named)
        if len(roster) <= most:
            return 0
        slots = np.array(roster.slots)
        silent = np.argsort(self._histories.seen[slots], kind="stable")[: len(slots) - most * 3 // 4]
        roster.remove_slots(slots[silent].tolist())
        self._abandon(slots[silent])
        return len(silent)

    def _abandon(self, slots: LongArray) -> None:
        """Release the rows and slots of agents that are no longer in a roster."""
        histories = self._histories
        if len(slots):
            self._pool.release(np.concatenate([histories.rows_of(slot) for slot in slots.tolist()]))
        histories.clear(slots)
        for slot in slots.tolist():
            histories.release_slot(slot)

    def _slots_of(self, roster: Roster, ids: LongArray) -> LongArray:
        """Return the slots of the deciding agents. Agents that are not in the roster get new slots."""
        agents = ids.tolist()
        if len(set(agents)) < len(agents):
            twice = next(agent for agent in agents if agents.count(agent) > 1)
            raise InvalidDataError(
                f"Agent {twice & ((1 << WORKER_SHIFT) - 1)} of environment {twice >> WORKER_SHIFT} asks for two "
                "decisions in one message, expected one. The ids of an environment's agents must be distinct."
            )
        slots = roster.find(agents)
        if NO_SLOT in slots:
            for i, (agent, slot) in enumerate(zip(agents, slots, strict=True)):
                if slot == NO_SLOT:
                    slots[i] = self._histories.reserve_slot()
                    roster.add(agent, slots[i])
        return np.array(slots, np.int64)

    def _write(self, batch: StepBatch) -> LongArray:
        rows = self._pool.allocate(len(batch))
        columns, index = self._pool.columns, run_or_rows(rows)
        for column, values in zip(columns.obs, batch.obs, strict=True):
            column[index] = values
        for name in self._observed:
            columns[name][index] = getattr(batch, name)
        columns["done"][index] = False
        columns["interrupted"][index] = False
        return rows

    def _end_episodes(self, roster: Roster, batch: StepBatch, rows: LongArray) -> _Finished:
        """Process the terminal records, and release the rows of records that do not end a trajectory."""
        pool, histories, finished = self._pool, self._histories, _Finished()
        agents = batch.agent[: batch.num_terminal].tolist()
        # A loop is faster than numpy for the few terminal records in a message.
        for record, slot in enumerate(roster.find(agents)):
            if slot == NO_SLOT or histories.count[slot] == 0:
                continue
            row, last, interrupted = int(rows[record]), histories.last[slot], bool(batch.interrupted[record])
            for name in self._followed:
                pool[name][last] = getattr(batch, name)[record]
            pool["done"][last] = True
            pool["interrupted"][last] = interrupted
            if self._memory_size:
                pool["memory"][row] = histories.memory[slot]
            finished.rows.append(histories.rows_of(slot))
            finished.bootstrap.append(row)
            finished.terminated.append(not interrupted)
            finished.agent.append(agents[record])
            finished.ended_slots.append(slot)
            finished.episode_lengths.append(int(histories.earlier[slot] + histories.count[slot]) - 1)
            histories.clear(slot)
        if len(finished.bootstrap) < len(rows):
            self._pool.release(np.setdiff1d(rows, finished.bootstrap))
        return finished

    def _begin(self, slots: LongArray, rows: LongArray) -> None:
        """Append these decisions to the agents' histories."""
        self._histories.append(slots, rows)
        if self._memory_size:
            self._pool["memory"][rows] = self._histories.memory[slots]
            # ``acted`` only receives rows, so it needs a table for looking up their slots.
            missing = self._pool.capacity - len(self._slot_of_row)
            if missing > 0:
                self._slot_of_row = np.concatenate([self._slot_of_row, np.zeros(missing, np.int64)])
            self._slot_of_row[rows] = slots


def match_results(
    pool: RowPool, processor: AgentProcessor, recorded: Recorded, team: int, *, per_match: bool = False
) -> list[float]:
    """Return the results of episodes that terminated with a message, except in groups with agents that still play.

    Args:
        pool: the pool that contains the rows.
        processor: the processor that recorded the message.
        recorded: the outcome of recording the processor's last message.
        team: the message's team.
        per_match: return one result per group, from the sum of its agents' rewards, instead of one per agent.

    Returns:
        1 for a win (the last reward, including the group reward, is positive), 0 for a loss, 0.5 for a draw.
    """
    trajectories = recorded.trajectories
    if trajectories is None or not trajectories.terminated.any():
        return []
    ended = np.flatnonzero(trajectories.terminated)
    last = trajectories.rows[trajectories.offset[1:][ended] - 1]
    reward, group = pool["reward"][last] + pool["group_reward"][last], pool["group"][last]
    worker = int(trajectories.agent[0]) >> WORKER_SHIFT
    decided = (group == 0) | ~np.isin(group, processor.playing_groups(worker, team, recorded.rows))
    reward, group = reward[decided], group[decided]
    if per_match:
        alone = reward[group == 0]
        grouped = [reward[group == one].sum() for one in np.unique(group[group != 0])]
        reward = np.array([*alone, *grouped], np.float32)
    return [0.5 + 0.5 * float(sign) for sign in np.sign(reward)]
