"""What is drawn from a replay.

Letters: L sequence length, n sequences, b = n * L rows, D sum of branch sizes, C continuous actions, K discrete
branches, H memory size, O an observation's own shape.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from trajtrainer.data.trajectory import PackedSteps, offsets
from trajtrainer.steps import BoolArray, FloatArray, IntArray, ObservationArray


@dataclass(frozen=True, slots=True)
class Sample:
    """Steps with what followed them: n sequences of L rows (L is 1 without a memory), copied out of the ring.

    A sequence that is shorter than L, because its trajectory ended, repeats its last step.

    Attributes:
        obs: per sensor f32 or u8 [b, *O].
        next_obs: per sensor [b, *O], what the agent saw after the step.
        mask: bool [b, D], True = forbidden.
        continuous: f32 [b, C].
        discrete: i32 [b, K].
        reward: f32 [b].
        group_reward: f32 [b].
        terminated: bool [b], the episode ended for good with the step.
        interrupted: bool [b], it ended by its step limit.
        memory: f32 [n, H], the actor's memory before each sequence.
        critic_memory: f32 [n, H], the critic's.
        real: bool [b], False in the repetitions; None when there are none.
        sequence_length: L.
    """

    obs: tuple[ObservationArray, ...]
    next_obs: tuple[ObservationArray, ...]
    mask: BoolArray
    continuous: FloatArray
    discrete: IntArray
    reward: FloatArray
    group_reward: FloatArray
    terminated: BoolArray
    interrupted: BoolArray
    memory: FloatArray
    critic_memory: FloatArray
    real: BoolArray | None
    sequence_length: int

    def __len__(self) -> int:
        """b."""
        return len(self.reward)

    def packed(self) -> PackedSteps:
        """The same without repetitions, every sequence as a trajectory: what reward signals evaluate.

        Log-probabilities, groups, policy versions, agents and the memories within sequences are not kept in the ring;
        they are 0.
        """
        rows: Any = slice(None) if self.real is None else np.flatnonzero(self.real)
        shaped = None if self.real is None else self.real.reshape(-1, self.sequence_length)
        count = len(self) // self.sequence_length
        lengths = np.ones(count, np.int32) if shaped is None else shaped.sum(1, dtype=np.int32)
        offset = offsets(lengths)
        last: Any = slice(None) if self.real is None else offset[1:] - 1
        steps, hidden = int(offset[-1]), self.memory.shape[1]
        terminated, interrupted = self.terminated[rows], self.interrupted[rows]
        done = terminated | interrupted
        return PackedSteps(
            obs=tuple(column[rows] for column in self.obs),
            mask=self.mask[rows],
            continuous=self.continuous[rows],
            discrete=self.discrete[rows],
            log_prob=np.zeros((steps, self.continuous.shape[1] + self.discrete.shape[1]), np.float32),
            memory=np.zeros((steps, hidden), np.float32),
            reward=self.reward[rows],
            group_reward=self.group_reward[rows],
            group=np.zeros(steps, np.int32),
            done=done,
            interrupted=interrupted,
            version=np.zeros(steps, np.int32),
            bootstrap_obs=tuple(column[rows][last] for column in self.next_obs),
            bootstrap_memory=np.zeros((count, hidden), np.float32),
            offset=offset,
            terminated=terminated[last],
            ended=done[last],
            agent=np.zeros(count, np.int64),
        )
