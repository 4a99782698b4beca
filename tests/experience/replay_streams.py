"""Trajectories for a replay whose every number tells where it came from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from mlagents_envs.base_env import ActionSpec, BehaviorSpec, DimensionProperty, ObservationSpec, ObservationType

from tests.experience.packing import packed_steps
from trajtrainer.core.steps import BoolArray, FloatArray, LongArray
from trajtrainer.experience.replay import Replay
from trajtrainer.experience.trajectory import PackedSteps, offsets

_NONE, _MOVES = DimensionProperty.NONE, DimensionProperty.TRANSLATIONAL_EQUIVARIANCE


def spec() -> BehaviorSpec:
    """A vector of two, a picture, two continuous actions and branches of 3 and 2."""
    vector = ObservationSpec((2,), (_NONE,), ObservationType.DEFAULT, "vector")
    picture = ObservationSpec((1, 2, 2), (_NONE, _MOVES, _MOVES), ObservationType.DEFAULT, "picture")
    return BehaviorSpec([vector, picture], ActionSpec(2, (3, 2)))


OBS_TYPES = (np.float32, np.uint8)
MEMORY = 2


@dataclass(frozen=True)
class Ending:
    """How a trajectory ends: by its horizon, if neither is set."""

    terminated: bool = False
    interrupted: bool = False


class Stream:
    """Gives trajectories. Observations are numbered through; the one after a trajectory has a number, too."""

    def __init__(self, memory_size: int = 0) -> None:
        self.memory_size = memory_size
        self._next = 1
        self.trajectories: list[LongArray] = []  # numbers of the observations of each, the last one included

    def packed(self, lengths: Sequence[int], endings: Sequence[Ending] = ()) -> PackedSteps:
        """One drain of trajectories."""
        endings = list(endings) + [Ending()] * (len(lengths) - len(endings))
        numbers = []
        for length in lengths:
            numbers.append(np.arange(self._next, self._next + length + 1))
            self._next += length + 1
        self.trajectories += numbers
        steps = np.concatenate([one[:-1] for one in numbers])
        after = np.array([one[-1] for one in numbers])
        offset = offsets(np.array(lengths, np.int32))
        terminated, interrupted = np.zeros(len(steps), np.bool_), np.zeros(len(steps), np.bool_)
        last = offset[1:] - 1
        terminated[last] = [ending.terminated for ending in endings]
        interrupted[last] = [ending.interrupted for ending in endings]
        done = terminated | interrupted
        return packed_steps(
            obs=_observations(steps),
            mask=mask_of(steps),
            continuous=np.stack((steps, -steps), 1).astype(np.float32),
            discrete=np.stack((steps % 3, steps % 2), 1).astype(np.int32),
            log_prob=np.full((len(steps), 4), -1.0, np.float32),
            memory=memory_of(steps, self.memory_size),
            reward=(steps / 2).astype(np.float32),
            group_reward=(steps / 4).astype(np.float32),
            group=np.zeros(len(steps), np.int32),
            done=done,
            interrupted=interrupted,
            version=np.zeros(len(steps), np.int32),
            bootstrap_obs=_observations(after),
            bootstrap_mask=mask_of(after),
            bootstrap_memory=memory_of(after, self.memory_size),
            offset=offset,
            terminated=terminated[last],
            ended=done[last],
            agent=np.arange(len(lengths), dtype=np.int64),
        )


def _observations(numbers: LongArray) -> tuple[FloatArray, np.ndarray[tuple[int, ...], np.dtype[np.uint8]]]:
    vector = np.stack((numbers, numbers * 0.5), 1).astype(np.float32)
    picture = np.broadcast_to((numbers % 251).astype(np.uint8)[:, None, None, None], (len(numbers), 1, 2, 2)).copy()
    return vector, picture


def mask_of(numbers: LongArray) -> BoolArray:
    """The last bits of each number."""
    return (numbers[:, None] >> np.arange(5) & 1).astype(np.bool_)


def memory_of(numbers: LongArray, size: int) -> FloatArray:
    """The memory that goes with each observation."""
    return np.repeat(numbers[:, None], size, 1).astype(np.float32) * 2


def empty_replay(num_rows: int, length: int = 1) -> Replay:
    """With memories of actor and critic if its sequences have more than one step."""
    memory = MEMORY if length > 1 else 0
    return Replay(
        spec(),
        OBS_TYPES,
        num_rows=num_rows,
        sequence_length=length,
        memory_size=memory,
        critic_memory_size=memory,
        poison=True,
    )
