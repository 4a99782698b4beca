"""Who is in an episode, and what the policies of a message's agents decide together."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tests.policies.play.scripted import SPEC
from trajtrainer.core.steps import (
    ActionBatch,
    BoolArray,
    EnvironmentEvent,
    FloatArray,
    ObservationArray,
    StepBatch,
)
from trajtrainer.policies.play.agents import AgentTable, Turn, act

NAME = "Dancer?team=0"


class Adding:
    """Decides on its number plus what it sees, and counts in its memory."""

    def __init__(self, number: float, memory_size: int) -> None:
        self.number = number
        self.memory_size = memory_size
        self.calls = 0

    def act(self, obs: Sequence[ObservationArray], mask: BoolArray, memory: FloatArray) -> ActionBatch:
        self.calls += 1
        count = len(mask)
        chosen = (obs[0][:, :1] + self.number).astype(np.float32)
        return ActionBatch(
            continuous=chosen,
            discrete=np.zeros((count, 0), np.int32),
            env_continuous=chosen,
            log_prob=np.zeros((count, 1), np.float32),
            entropy=np.zeros(count, np.float32),
            memory=memory + 1,
            version=0,
        )


def event(ended: Sequence[int], deciding: Sequence[int], reward: float = 1.0) -> EnvironmentEvent:
    """A message in which agent i sees i."""
    agents = np.array([*ended, *deciding], np.int64)
    count = len(agents)
    batch = StepBatch(
        agent=agents,
        obs=(np.repeat(agents[:, None], 2, axis=1).astype(np.float32),),
        reward=np.full(count, reward, np.float32),
        group=np.zeros(count, np.int32),
        group_reward=np.zeros(count, np.float32),
        mask=np.zeros((count, 0), np.bool_),
        interrupted=np.zeros(len(ended), np.bool_),
        num_terminal=len(ended),
    )
    return EnvironmentEvent(0, {NAME: batch})


def update(table: AgentTable, ended: Sequence[int], deciding: Sequence[int], reward: float = 1.0) -> Turn:
    (turn,) = table.update(event(ended, deciding, reward), {NAME: SPEC})
    return turn


def test_rewards_count_from_the_first_decision_to_the_end() -> None:
    table, policy = AgentTable(), Adding(0, 0)
    for reward in (5.0, 2.0):
        turn = update(table, [], [7], reward)
        turn.deciding[0].play_with(policy)
        act(turn)
    turn = update(table, [7, 8], [7], 3.0)

    ((row, agent),) = turn.ended
    assert (row, agent.reward, agent.length) == (0, 5.0, 2), "agent 8 never decided"
    assert turn.deciding[0] is not agent
    assert (turn.deciding[0].reward, turn.num_active) == (0.0, 1)


def test_each_policy_decides_once_for_its_agents_and_the_rows_keep_their_order() -> None:
    table, policies = AgentTable(), [Adding(100, 1), Adding(200, 3)]
    turn = update(table, [9], [4, 1, 3, 2])
    for agent in turn.deciding:
        agent.play_with(policies[agent.id % 2])
    actions = act(turn)

    assert actions.env_continuous[:, 0].tolist() == [104, 201, 203, 102]
    assert [policy.calls for policy in policies] == [1, 1]
    assert [len(agent.memory) for agent in turn.deciding if agent.memory is not None] == [1, 3, 3, 1]


def test_a_memory_lasts_for_an_episode_and_is_of_one_policy() -> None:
    table, first, second = AgentTable(), Adding(0, 2), Adding(0, 2)

    def memory_after(policy: Adding, ended: Sequence[int] = ()) -> float:
        turn = update(table, ended, [1])
        turn.deciding[0].play_with(policy)
        act(turn)
        memory = turn.deciding[0].memory
        assert memory is not None
        return float(memory[0])

    assert [memory_after(first), memory_after(first), memory_after(second), memory_after(second)] == [1, 2, 1, 2]
    assert memory_after(second, ended=[1]) == 1
    table.clear()
    assert memory_after(second) == 1
