"""Bookkeeping for an environment's agents during play: their episodes, policies and memories.

Training uses separate tables in ``experience.agent_processor`` and ``experience.opponents``. Those are column-based, so
a message with many agents needs no Python code per agent. Here, each agent may have a different policy, with a memory
of any size.

Shape legend: N agents of a batch that request a decision, H memory size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from trajtrainer.core.spec import BehaviorId, BehaviorSpec
from trajtrainer.core.steps import ActionBatch, EnvironmentEvent, FloatArray, LongArray, StepBatch
from trajtrainer.learning.algos.acting import Policy

MakePolicy = Callable[[BehaviorId, BehaviorSpec, int], Policy]
"""Creates the policy for a behavior id, with the given random seed."""


@dataclass(slots=True, eq=False)
class Agent:
    """An agent in an episode.

    Attributes:
        id: agent id in the messages.
        group: group id; 0 for no group.
        policy: policy that decides for the agent; None until the game has chosen one.
        memory: memory of that policy, f32 [H]; None at the start of an episode.
        episode: number of the episode, if it counts; else None.
        reward, group_reward: sums of rewards since the agent's first decision. Rewards that arrive with its first
            observation do not count, as in training.
        length: number of decisions in this episode.
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
        """Switch to another policy. This drops the memory, which only the previous policy can use."""
        if policy is not self.policy:
            self.policy, self.memory = policy, None


@dataclass(slots=True)
class Turn:
    """The agents of one behavior id in one message.

    Attributes:
        behavior: the behavior id.
        spec: the behavior's observations and actions.
        batch: the step batch in the message.
        ended: batch row and agent for each episode that ends. Agents that never decided are omitted.
        deciding: agents that request a decision, in the order of the rows.
        num_active: number of agents of this behavior id and worker that are in an episode.
    """

    behavior: BehaviorId
    spec: BehaviorSpec
    batch: StepBatch
    ended: list[tuple[int, Agent]] = field(default_factory=list)
    deciding: list[Agent] = field(default_factory=list)
    num_active: int = 0


class AgentTable:
    """The agents of a worker that are in an episode."""

    def __init__(self) -> None:
        self._agents: dict[str, dict[int, Agent]] = {}  # behavior id -> agent id -> agent
        self._ids: dict[str, BehaviorId] = {}

    def clear(self) -> None:
        """Remove all agents, because their episodes were aborted."""
        self._agents.clear()

    def update(self, event: EnvironmentEvent, specs: Mapping[str, BehaviorSpec]) -> list[Turn]:
        """Process a message: end and start episodes and add up rewards.

        Args:
            event: the message.
            specs: specs of all behavior ids.
        """
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
                    continue  # The agent's episode ended before its first decision, so it does not count.
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
    """Decide for the agents that request a decision, in one pass per policy, and store their memories.

    If several policies decide, the returned actions contain no memories, because their sizes may differ.

    Raises:
        PolicyDivergedError: a policy returns NaN.
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
        # A slice returns views, so the message is not copied.
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
        policy: the policy.
        batch: step batch with the agents' observations.
        rows: indices of the agents' rows in the batch, which may also contain terminal rows.
        memories: the agents' memories in the same order; None at the start of an episode.

    Raises:
        PolicyDivergedError: the policy returns NaN.
    """
    memory = np.zeros((len(memories), policy.memory_size), np.float32)
    if policy.memory_size:
        for row, kept in zip(memory, memories, strict=True):
            if kept is not None:
                row[:] = kept
    return policy.act([sensor[rows] for sensor in batch.obs], batch.mask[rows], memory)
