"""The slow, obvious way: one agent after the other, an object per record, dictionaries by agent id, lists.

What the columns must reproduce value for value. It follows docs/explanation/mlagents-behavior.md#trajectories sentence
by sentence: an experience for time t is made when the agent's next record arrives, terminal records are taken before
decision requests, a trajectory is emitted when an agent's list reaches the horizon or the agent ends. Nothing is shared
with the code under test but the types of its input and output.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.experience.packing import packed_steps
from trajtrainer.core.steps import ActionBatch, StepBatch
from trajtrainer.experience.trajectory import PackedSteps

Array = NDArray[Any]


@dataclass
class Record:
    """What one message says about one agent."""

    agent: int
    obs: list[Array]
    mask: Array
    reward: float
    group: int
    group_reward: float
    terminal: bool
    interrupted: bool
    team: int
    # Who else of the group is there at the same time, and whether nobody of it goes on.
    mates: list[Record] = field(default_factory=list)
    all_done: bool = False
    answer: Answer | None = None

    def is_mate_of(self, other: Record) -> bool:
        same_place = (self.agent >> 32, self.team) == (other.agent >> 32, other.team)
        return self is not other and same_place and self.group == other.group > 0


@dataclass
class Answer:
    """What the policy decided for one agent."""

    continuous: Array
    discrete: Array
    log_prob: Array
    memory_before: Array
    version: int


@dataclass
class Experience:
    """One step of one agent."""

    obs: list[Array]
    mask: Array
    continuous: Array
    discrete: Array
    log_prob: Array
    memory: Array
    reward: float
    group_reward: float
    group: int
    done: bool
    interrupted: bool
    version: int
    mates: list[Record]
    groupmate_reward: float


@dataclass
class Trajectory:
    agent: int
    steps: list[Experience]
    bootstrap_obs: list[Array]
    bootstrap_mask: Array
    bootstrap_memory: Array
    ended: bool
    terminated: bool
    next_mates: list[Record]
    all_done: bool


class PerAgentProcessor:
    def __init__(self, time_horizon: int, memory_size: int = 0, *, groups: bool = False) -> None:
        self.time_horizon = time_horizon
        self.groups = groups
        self.no_memory = np.zeros(memory_size, np.float32)
        self.episode_lengths: list[int] = []
        self.last_decision: dict[int, Record] = {}
        self.last_answer: dict[int, Answer] = {}
        self.memory: dict[int, Array] = {}
        self.experiences: defaultdict[int, list[Experience]] = defaultdict(list)
        self.episode_steps: defaultdict[int, int] = defaultdict(int)
        self.received_by_mates: defaultdict[int, list[float]] = defaultdict(list)

    def record(self, batch: StepBatch, team: int = 0) -> list[Trajectory]:
        records = records_of(batch, team)
        # Of several terminal records of one agent the first counts.
        ended: dict[int, Record] = {}
        for record in records:
            if record.terminal:
                ended.setdefault(record.agent, record)
        decisions = [record for record in records if not record.terminal]
        finished: list[Trajectory] = []
        if self.groups:
            self._tell_groups(ended, {record.agent: record for record in decisions})
        for record in ended.values():
            self._process(record, finished)
        for record in decisions:
            self._process(record, finished)
        return finished

    def acted(self, batch: StepBatch, actions: ActionBatch) -> None:
        """The answer to the decision requests of ``batch``."""
        deciding = [int(agent) for agent in batch.agent[batch.num_terminal :]]
        for i, agent in enumerate(deciding):
            self.last_answer[agent] = Answer(
                actions.continuous[i].copy(),
                actions.discrete[i].copy(),
                actions.log_prob[i].copy(),
                self.memory.get(agent, self.no_memory),
                actions.version,
            )
            self.last_decision[agent].answer = self.last_answer[agent]
            self.memory[agent] = actions.memory[i].copy()

    def drop(self, worker: int | None = None) -> None:
        for agent in list(self.last_decision):
            if worker is None or agent >> 32 == worker:
                self._forget(agent)

    def _tell_groups(self, ended: dict[int, Record], deciding: dict[int, Record]) -> None:
        """Who is there with whom at this message, and what mates received since one's last record."""
        before = self.last_decision
        told = {agent: record for agent, record in (deciding | ended).items() if agent in before}
        for agent, record in before.items():
            for mate, news in told.items():
                if before[mate].is_mate_of(record):
                    self.received_by_mates[agent].append(news.reward)
        going_on = {agent: deciding.get(agent, record) for agent, record in before.items() if agent not in ended}
        stopped = [record for agent, record in ended.items() if agent in before and record.interrupted]
        for record in deciding.values():
            record.mates = [other for other in (going_on | deciding).values() if other.is_mate_of(record)]
        for record in ended.values():
            survivors = [other for other in going_on.values() if other.is_mate_of(record)]
            record.mates = survivors + [other for other in stopped if other.is_mate_of(record)]
            record.all_done = not survivors

    def _process(self, record: Record, finished: list[Trajectory]) -> None:
        agent = record.agent
        before = self.last_decision.get(agent)
        if not record.terminal:
            self.last_decision[agent] = record
        if before is None:
            return
        answer = self.last_answer[agent]
        experience = Experience(
            obs=before.obs,
            mask=before.mask,
            continuous=answer.continuous,
            discrete=answer.discrete,
            log_prob=answer.log_prob,
            memory=answer.memory_before,
            reward=record.reward,
            group_reward=record.group_reward,
            group=before.group,
            done=record.terminal,
            interrupted=record.interrupted,
            version=answer.version,
            mates=before.mates,
            groupmate_reward=sum(self.received_by_mates.pop(agent, [])),
        )
        self.experiences[agent].append(experience)
        if not record.terminal:
            self.episode_steps[agent] += 1
        if record.terminal or len(self.experiences[agent]) >= self.time_horizon:
            terminated = record.terminal and not record.interrupted
            steps = self.experiences.pop(agent)
            finished.append(
                Trajectory(
                    agent,
                    steps,
                    record.obs,
                    record.mask,
                    self.memory[agent],
                    record.terminal,
                    terminated,
                    record.mates,
                    record.all_done,
                )
            )
        if record.terminal:
            self.episode_lengths.append(self.episode_steps[agent])
            self._forget(agent)

    def _forget(self, agent: int) -> None:
        for store in (
            self.last_decision,
            self.last_answer,
            self.memory,
            self.experiences,
            self.episode_steps,
            self.received_by_mates,
        ):
            store.pop(agent, None)


def records_of(batch: StepBatch, team: int) -> list[Record]:
    """The batch taken apart; everything copied."""
    return [
        Record(
            agent=int(agent),
            obs=[sensor[i].copy() for sensor in batch.obs],
            mask=batch.mask[i].copy(),
            reward=float(batch.reward[i]),
            group=int(batch.group[i]),
            group_reward=float(batch.group_reward[i]),
            terminal=i < batch.num_terminal,
            interrupted=i < batch.num_terminal and bool(batch.interrupted[i]),
            team=team,
        )
        for i, agent in enumerate(batch.agent)
    ]


def pack(trajectories: list[Trajectory]) -> PackedSteps:
    """The trajectories as columns, through one list per field."""
    lists: defaultdict[str, list[Any]] = defaultdict(list)
    obs: defaultdict[int, list[Array]] = defaultdict(list)
    bootstrap_obs: defaultdict[int, list[Array]] = defaultdict(list)
    offset = [0]
    for trajectory in trajectories:
        for step in trajectory.steps:
            for sensor, values in enumerate(step.obs):
                obs[sensor].append(values)
            lists["mask"].append(step.mask)
            lists["continuous"].append(step.continuous)
            lists["discrete"].append(step.discrete)
            lists["log_prob"].append(step.log_prob)
            lists["memory"].append(step.memory)
            lists["reward"].append(step.reward)
            lists["group_reward"].append(step.group_reward)
            lists["group"].append(step.group)
            lists["done"].append(step.done)
            lists["interrupted"].append(step.interrupted)
            lists["version"].append(step.version)
        offset.append(offset[-1] + len(trajectory.steps))
        for sensor, values in enumerate(trajectory.bootstrap_obs):
            bootstrap_obs[sensor].append(values)
        lists["bootstrap_mask"].append(trajectory.bootstrap_mask)
        lists["bootstrap_memory"].append(trajectory.bootstrap_memory)
        lists["terminated"].append(trajectory.terminated)
        lists["ended"].append(trajectory.ended)
        lists["agent"].append(trajectory.agent)
    return packed_steps(
        obs=tuple(np.array(values) for values in obs.values()),
        mask=np.array(lists["mask"], np.bool_),
        continuous=np.array(lists["continuous"], np.float32),
        discrete=np.array(lists["discrete"], np.int32),
        log_prob=np.array(lists["log_prob"], np.float32),
        memory=np.array(lists["memory"], np.float32),
        reward=np.array(lists["reward"], np.float32),
        group_reward=np.array(lists["group_reward"], np.float32),
        group=np.array(lists["group"], np.int32),
        done=np.array(lists["done"], np.bool_),
        interrupted=np.array(lists["interrupted"], np.bool_),
        version=np.array(lists["version"], np.int32),
        bootstrap_obs=tuple(np.array(values) for values in bootstrap_obs.values()),
        bootstrap_mask=np.array(lists["bootstrap_mask"], np.bool_),
        bootstrap_memory=np.array(lists["bootstrap_memory"], np.float32),
        offset=np.array(offset, np.int32),
        terminated=np.array(lists["terminated"], np.bool_),
        ended=np.array(lists["ended"], np.bool_),
        agent=np.array(lists["agent"], np.int64),
    )
