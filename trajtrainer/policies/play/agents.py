"""The agents of an environment while they play: who is in an episode, which policy decides for it, what it remembers.

Training has tables of its own, ``data.agent_processor`` and ``data.opponents``: columns, so that a message of many
agents costs no Python per agent. Here each agent may have a policy of its own, with a memory of any size.

Shape legend: N agents of a batch that ask for a decision, H memory size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from trajtrainer.core.spec import BehaviorId, BehaviorSpec
from trajtrainer.core.steps import ActionBatch, EnvironmentEvent, FloatArray, LongArray, StepBatch
from trajtrainer.learning.algos.acting import Policy

MakePolicy = Callable[[BehaviorId, BehaviorSpec, int], Policy]
"""Makes the policy of a behavior id, with random numbers of this seed."""


@dataclass(slots=True, eq=False)
class Agent:
    """An agent in an episode.

    Attributes:
        id: as in the messages.
        group: of its groupmates; 0 for none.
        policy: decides for it; None until the game has chosen one.
        memory: f32 [H] of that policy; None at the beginning of an episode.
        episode: the number of its episode among those that count; None if it does not count.
        reward, group_reward: sums since its first decision. What comes with that one is not for it, as in training.
        length: decisions in this episode.
    """

    id: int
    group: int
    policy: Policy | None = None
    memory: FloatArray | None = None
    episode: int | None = None
    reward: float = 0.0
    group_reward: float = 0.0
    length: int = 0

    def play_with(self, policy: Policy) -> None:
        """Let another policy decide from now on. A memory is of the policy that made it."""
        if policy is not self.policy:
            self.policy, self.memory = policy, None


@dataclass(slots=True)
class Turn:
    """The agents of one behavior id in one message.

    Attributes:
        behavior: their behavior id.
        spec: what they see and do.
        batch: the message's.
        ended: row of the batch and agent, of all whose episodes end. Those that never decided are left out.
        deciding: those that ask for a decision, in the order of the rows.
        num_active: all agents of this behavior id and worker that are in an episode.
    """

    behavior: BehaviorId
    spec: BehaviorSpec
    batch: StepBatch
    ended: list[tuple[int, Agent]] = field(default_factory=list)
    deciding: list[Agent] = field(default_factory=list)
    num_active: int = 0


class AgentTable:
    """The agents of one worker that are in an episode."""

    def __init__(self) -> None:
        self._agents: dict[str, dict[int, Agent]] = {}  # behavior id -> agent id -> agent
        self._ids: dict[str, BehaviorId] = {}

    def clear(self) -> None:
        """Drop all agents: their episodes were aborted."""
        self._agents.clear()

    def update(self, event: EnvironmentEvent, specs: Mapping[str, BehaviorSpec]) -> list[Turn]:
        """Add a message: end and begin episodes, and count rewards. ``specs`` are those of all behavior ids."""
        turns = []
        for behavior_id, batch in event.steps.items():
            if behavior_id not in self._ids:
                self._ids[behavior_id] = BehaviorId.parse(behavior_id)
            agents = self._agents.setdefault(behavior_id, {})
            turn = Turn(self._ids[behavior_id], specs[behavior_id], batch)
            ids, groups = batch.agent.tolist(), batch.group.tolist()
            rewards, group_rewards = batch.reward.tolist(), batch.group_reward.tolist()
            for row in range(len(ids)):
                is_last = row < batch.num_terminal
                agent = agents.pop(ids[row], None) if is_last else agents.get(ids[row])
                if agent is not None:
                    agent.reward += rewards[row]
                    agent.group_reward += group_rewards[row]
                elif is_last:
                    continue  # it ended before its first decision, so no one has played it
                else:
                    agent = agents[ids[row]] = Agent(ids[row], groups[row])
                if is_last:
                    turn.ended.append((row, agent))
                else:
                    turn.deciding.append(agent)
            turn.num_active = len(agents)
            turns.append(turn)
        return turns


def act(turn: Turn) -> ActionBatch:
    """Decide for the agents that ask for it, in one pass per policy, and keep their memories.

    The actions come without memories where several policies decide: these may differ in size.

    Raises:
        PolicyDivergedError: a policy gives NaN.
    """
    rows: dict[int, list[int]] = {}
    for row, agent in enumerate(turn.deciding):
        rows.setdefault(id(agent.policy), []).append(row)
        agent.length += 1
    parts, first = [], turn.batch.num_terminal
    for own in rows.values():
        agents = [turn.deciding[row] for row in own]
        policy = agents[0].policy
        assert policy is not None
        # A slice gives views of the message, which is not copied then.
        chosen = slice(first, None) if len(rows) == 1 else first + np.array(own)
        actions = decide(policy, turn.batch, chosen, [agent.memory for agent in agents])
        if policy.memory_size:
            for agent, memory in zip(agents, actions.memory, strict=True):
                agent.memory = memory
        parts.append(actions)
    if len(parts) == 1:
        return parts[0]
    order = np.argsort([row for own in rows.values() for row in own])
    names = ("continuous", "discrete", "env_continuous", "log_prob", "entropy")
    joined = {name: np.concatenate([getattr(part, name) for part in parts])[order] for name in names}
    return ActionBatch(**joined, memory=np.zeros((len(order), 0), np.float32), version=0)


def decide(
    policy: Policy, batch: StepBatch, rows: LongArray | slice, memories: Sequence[FloatArray | None]
) -> ActionBatch:
    """Decide for agents of a batch.

    Args:
        policy: decides.
        batch: their observations.
        rows: of the agents in the batch, terminal rows counted.
        memories: of the agents, in the same order; None at the beginning of an episode.

    Raises:
        PolicyDivergedError: the policy gives NaN.
    """
    memory = np.zeros((len(memories), policy.memory_size), np.float32)
    if policy.memory_size:
        for row, kept in zip(memory, memories, strict=True):
            if kept is not None:
                row[:] = kept
    return policy.act([sensor[rows] for sensor in batch.obs], batch.mask[rows], memory)
