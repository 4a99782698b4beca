"""Turns an environment's messages into rows and finished trajectories, for all agents of a message at once.

Shape legend: N agents of a step batch, T terminal rows of it, S trajectories, H memory size.
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

# How many agents of a worker and team keep their rows, silent or not: as many as have full trajectories in that many
# bytes (within bounds), or that many times the agents of one message, whichever is more.
_KEPT_BYTES = 1 << 30
_FEWEST_KEPT, _MOST_KEPT = 1_000, 10_000
_KEPT_PER_NAMED = 4


@dataclass(slots=True)
class Recorded:
    """The outcome of recording one step batch.

    Attributes:
        rows: i64 [N], the row of each agent. ``rows[num_terminal:]`` wait for their actions; the others mean nothing to
            the caller.
        trajectories: those that this message finished, or None.
        episode_lengths: steps minus one of each episode that this message ended, which is how ML-Agents counts.
        num_given_up: agents that seem to have vanished without a last record, and whose rows were released.
    """

    rows: LongArray
    trajectories: TrajectoryBatch | None
    episode_lengths: list[int] = field(default_factory=list)
    num_given_up: int = 0


@dataclass(slots=True)
class _Finished:
    """The trajectories that one message finishes, one entry each, and the slots of the agents whose episodes ended."""

    rows: list[IntArray] = field(default_factory=list)
    bootstrap: list[int] = field(default_factory=list)
    terminated: list[bool] = field(default_factory=list)
    agent: list[int] = field(default_factory=list)
    ended_slots: list[int] = field(default_factory=list)
    episode_lengths: list[int] = field(default_factory=list)
    all_done: BoolArray | None = None

    def ended(self) -> Ended:
        """The agents whose episodes ended; called before trajectories are cut at the horizon."""
        interrupted = ~np.array(self.terminated, np.bool_)
        return Ended(np.array(self.ended_slots, np.int64), np.array(self.bootstrap, np.int64), interrupted)

    def batch(self) -> TrajectoryBatch | None:
        """All of them; ended episodes come first."""
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
    """Writes step batches into the pool, and cuts each agent's steps into trajectories.

    A step is complete when the agent's next record arrives, because that record has its reward and whether the episode
    ended. A trajectory is finished by the end of the episode, or when it has ``time_horizon`` steps. The recurrent
    memory continues across such a cut and is cleared at the end of an episode. Agents may appear, vanish and skip
    messages at any time (docs/explanation/mlagents-behavior.md#trajectories).

    - Terminal records are processed before decision requests, so an id may end its episode and begin the next in one
      message. A terminal record of an agent that has not decided since its last one is ignored, so the first of several
      in a message counts.
    - Finished trajectories are in message order, ended episodes first, then horizon cuts.
    - The whole id distinguishes agents, including the worker in its upper half. A batch has agents of one worker only.
    - An agent that is destroyed without a terminal record keeps its rows, because it may come back. They are released
      by ``drop``, or when there are many more agents than messages name: then those that have been silent the longest
      are given up. An agent that does come back later begins a new episode.

    The teams of one behavior share a processor.

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
        """Record one message of a team: new rows for all its agents, completed steps, finished trajectories.

        The caller owns the trajectories from then on (``trajectory.release``).

        Raises:
            InvalidDataError: an agent asks for two decisions in one message. Nothing is recorded then.
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
        # Complete the steps before these decisions; new agents have none. Terminal records come later because they have
        # to overwrite this in the last step of an agent whose episode ends in the same message.
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
            # Cut these trajectories at the horizon. Their new rows are the bootstraps, and thus have two owners.
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
        # Before the next steps begin: the finished rows are views of the histories until then.
        trajectories = finished.batch() if finished else None
        self._begin(slots, rows[num:])
        num_given_up = 0
        if same is None:
            # All agents that the messages since the last ``remember`` named were there until the message before this.
            histories.seen[roster.last_slots] = self._clock - 1
            histories.seen[slots] = self._clock
            roster.remember(deciding, slots)
            num_given_up = self._give_up_silent(roster)
        if not finished:
            return Recorded(rows, trajectories, [], num_given_up)
        for agent, slot in zip(finished.agent, finished.ended_slots, strict=False):  # ended episodes come first
            if histories.count[slot] == 0:  # it did not begin another episode in the same message
                roster.remove(agent)
                histories.release_slot(slot)
        return Recorded(rows, trajectories, finished.episode_lengths, num_given_up)

    def acted(self, rows: LongArray, actions: ActionBatch) -> None:
        """Write the policy's decisions for rows of ``record``.

        The rows may belong to several workers. Their agents must not have been dropped in between.

        Args:
            rows: i64 [N], decision rows, each exactly once.
            actions: of these agents, in the same order.
        """
        columns = self._pool.columns
        for name in self._decided:
            columns[name][rows] = getattr(actions, name)
        if self._memory_size:
            self._histories.memory[self._slot_of_row[rows]] = actions.memory

    def memory_of(self, rows: LongArray) -> FloatArray:
        """Recurrent memories for decision rows of ``record``, f32 [N, H]."""
        memory: FloatArray = self._pool["memory"][rows]
        return memory

    def playing_groups(self, worker: int, team: int, rows: LongArray) -> IntArray:
        """Groups of all agents whose episode began before the last message and continues, i32 [any].

        Args:
            worker: of the agents.
            team: of the agents.
            rows: of that message.
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
        """Drop the unfinished trajectories of one worker, or of all (None), after a reset or restart."""
        for key in [key for key in self._rosters if worker is None or key[0] == worker]:
            self._abandon(np.array(self._rosters.pop(key).slots, np.int64))

    def _give_up_silent(self, roster: Roster) -> int:
        """Release the rows of the longest silent agents if there are too many agents; return how many were given up."""
        most = max(self._most_silent, _KEPT_PER_NAMED * roster.most_named)
        if len(roster) <= most:
            return 0
        slots = np.array(roster.slots)
        silent = np.argsort(self._histories.seen[slots], kind="stable")[: len(slots) - most * 3 // 4]
        roster.remove_slots(slots[silent].tolist())
        self._abandon(slots[silent])
        return len(silent)

    def _abandon(self, slots: LongArray) -> None:
        """Release rows and slots of agents that are no longer in a roster."""
        histories = self._histories
        if len(slots):
            self._pool.release(np.concatenate([histories.rows_of(slot) for slot in slots.tolist()]))
        histories.clear(slots)
        for slot in slots.tolist():
            histories.release_slot(slot)

    def _slots_of(self, roster: Roster, ids: LongArray) -> LongArray:
        """The slots of the agents that decide. Agents that are not in the roster get new ones."""
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
        """Process the terminal records, and release those of their rows that end no trajectory."""
        pool, histories, finished = self._pool, self._histories, _Finished()
        agents = batch.agent[: batch.num_terminal].tolist()
        # A message has so few that calls of numpy would take longer.
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
        """Begin the steps of these decisions."""
        self._histories.append(slots, rows)
        if self._memory_size:
            self._pool["memory"][rows] = self._histories.memory[slots]
            # ``acted`` knows only rows, so it needs the slot of each.
            missing = self._pool.capacity - len(self._slot_of_row)
            if missing > 0:
                self._slot_of_row = np.concatenate([self._slot_of_row, np.zeros(missing, np.int64)])
            self._slot_of_row[rows] = slots


def match_results(
    pool: RowPool, processor: AgentProcessor, recorded: Recorded, team: int, *, per_match: bool = False
) -> list[float]:
    """Results of the episodes that ended for good with a message, together with the episodes of the whole group.

    Args:
        pool: has the rows.
        processor: recorded the message.
        recorded: what came of its last message: S trajectories, or none.
        team: of the message.
        per_match: one result per group, by the sum of rewards, instead of one per agent.

    Returns:
        1 for a win (the last reward, including the group's, is positive), 0 for a loss, 0.5 for a draw.
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
