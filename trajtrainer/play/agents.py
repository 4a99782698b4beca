"""Acts for agents of an environment with any policy; each agent's memory goes on from step to step.

Shape legend: N agents of a batch that ask for a decision, H memory size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from trajtrainer.algos.acting import Acts
from trajtrainer.core.spec import BehaviorId, BehaviorSpec
from trajtrainer.core.steps import ActionBatch, FloatArray, LongArray, StepBatch

MakePolicy = Callable[[BehaviorId, BehaviorSpec, int], Acts]
"""Makes the policy of a behaviour id, with random numbers of this seed."""


class Remembers(Protocol):
    """An agent: f32 [H] of the policy that acts for it; None at the beginning of an episode."""

    memory: FloatArray | None


def act(policy: Acts, batch: StepBatch, rows: LongArray | slice, agents: Sequence[Remembers]) -> ActionBatch:
    """Decide for agents of a batch, and keep their memories.

    Args:
        policy: decides.
        batch: their observations.
        rows: theirs in the batch, terminal rows counted.
        agents: theirs, in the same order.

    Raises:
        PolicyDivergedError: the policy gives NaN.
    """
    memory = np.zeros((len(agents), policy.memory_size), np.float32)
    if policy.memory_size:
        for row, agent in zip(memory, agents, strict=True):
            if agent.memory is not None:
                row[:] = agent.memory
    actions = policy.act([sensor[rows] for sensor in batch.obs], batch.mask[rows], memory)
    if policy.memory_size:
        for agent, kept in zip(agents, actions.memory, strict=True):
            agent.memory = kept
    return actions
