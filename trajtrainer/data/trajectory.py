"""Trajectories as row numbers, and the packed steps gathered from them.

Letters: S trajectories, B packed steps (of all of them), R rows of a pool, D sum of branch sizes, C continuous
actions, K discrete branches, H memory size, O an observation's own shape.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from trajtrainer.data.rows import RowPool
from trajtrainer.steps import BoolArray, FloatArray, IntArray, LongArray, ObservationArray


@dataclass(slots=True)
class TrajectoryBatch:
    """S trajectories that were finished by one message. Numbers only: the experience stays in the pool.

    Trajectory s consists of ``rows[offset[s]:offset[s + 1]]``; the observation after its last step is that of row
    ``bootstrap[s]``. Whoever holds the batch holds one reference to each of its rows and bootstraps; ``release`` gives
    them back.

    Attributes:
        rows: i32 [B], distinct.
        offset: i32 [S + 1], from 0 to B.
        bootstrap: i32 [S], distinct.
        terminated: bool [S], the episode ended for good: nothing is to be expected after the last step.
        ended: bool [S], the episode ended, for good or by its step limit; otherwise the horizon cut it.
        agent: i64 [S], ``worker << 32 | id``.
    """

    rows: IntArray
    offset: IntArray
    bootstrap: IntArray
    terminated: BoolArray
    ended: BoolArray
    agent: LongArray

    def __len__(self) -> int:
        return len(self.agent)

    @property
    def num_steps(self) -> int:
        """B."""
        return len(self.rows)

    @property
    def lengths(self) -> IntArray:
        """i32 [S], steps of each trajectory."""
        return self.offset[1:] - self.offset[:-1]


@dataclass(frozen=True, slots=True)
class PackedSteps:
    """The experience of S trajectories, one after another without padding. Independent of the pool.

    Attributes:
        obs: per sensor f32 or u8 [B, *O].
        mask: bool [B, D], True = forbidden.
        continuous: f32 [B, C], raw as sampled.
        discrete: i32 [B, K].
        log_prob: f32 [B, C + K], of the actions under the policy that decided.
        memory: f32 [B, H], the recurrent memory before each step.
        reward: f32 [B], for the step's action.
        group_reward: f32 [B].
        group: i32 [B], 0 for none.
        done: bool [B], true at most in the last step of a trajectory.
        interrupted: bool [B], done by the step limit.
        version: i32 [B], of the policy that decided.
        bootstrap_obs: per sensor [S, *O], the observation after the last step.
        bootstrap_memory: f32 [S, H], the memory after the last step.
        offset: i32 [S + 1]; trajectory s is ``[offset[s]:offset[s + 1]]``.
        terminated: bool [S], as in ``TrajectoryBatch``.
        ended: bool [S].
        agent: i64 [S].
    """

    obs: tuple[ObservationArray, ...]
    mask: BoolArray
    continuous: FloatArray
    discrete: IntArray
    log_prob: FloatArray
    memory: FloatArray
    reward: FloatArray
    group_reward: FloatArray
    group: IntArray
    done: BoolArray
    interrupted: BoolArray
    version: IntArray
    bootstrap_obs: tuple[ObservationArray, ...]
    bootstrap_memory: FloatArray
    offset: IntArray
    terminated: BoolArray
    ended: BoolArray
    agent: LongArray

    def __len__(self) -> int:
        """B."""
        return len(self.reward)

    @property
    def num_trajectories(self) -> int:
        """S."""
        return len(self.agent)

    @property
    def lengths(self) -> IntArray:
        """i32 [S], steps of each trajectory."""
        return self.offset[1:] - self.offset[:-1]

    def trajectories(self, start: int, stop: int) -> PackedSteps:
        """Trajectories ``start`` to ``stop`` (exclusive, within 0 to S). Columns are views, ``offset`` begins at 0."""
        first = int(self.offset[start])
        steps, ends = slice(first, int(self.offset[stop])), slice(start, stop)
        return PackedSteps(
            obs=tuple(column[steps] for column in self.obs),
            mask=self.mask[steps],
            continuous=self.continuous[steps],
            discrete=self.discrete[steps],
            log_prob=self.log_prob[steps],
            memory=self.memory[steps],
            reward=self.reward[steps],
            group_reward=self.group_reward[steps],
            group=self.group[steps],
            done=self.done[steps],
            interrupted=self.interrupted[steps],
            version=self.version[steps],
            bootstrap_obs=tuple(column[ends] for column in self.bootstrap_obs),
            bootstrap_memory=self.bootstrap_memory[ends],
            offset=self.offset[start : stop + 1] - np.int32(first),
            terminated=self.terminated[ends],
            ended=self.ended[ends],
            agent=self.agent[ends],
        )

    def split(self, max_trajectories: int) -> Iterator[PackedSteps]:
        """Views of at most ``max_trajectories`` trajectories each, in order."""
        for start in range(0, self.num_trajectories, max_trajectories):
            yield self.trajectories(start, min(start + max_trajectories, self.num_trajectories))


def join(batches: Sequence[TrajectoryBatch]) -> TrajectoryBatch:
    """One batch of the trajectories of several, in order. At least one."""
    if len(batches) == 1:
        return batches[0]
    lengths = np.concatenate([batch.lengths for batch in batches])
    return TrajectoryBatch(
        rows=np.concatenate([batch.rows for batch in batches]),
        offset=offsets(lengths),
        bootstrap=np.concatenate([batch.bootstrap for batch in batches]),
        terminated=np.concatenate([batch.terminated for batch in batches]),
        ended=np.concatenate([batch.ended for batch in batches]),
        agent=np.concatenate([batch.agent for batch in batches]),
    )


def offsets(lengths: IntArray | LongArray) -> IntArray:
    """i32 [S + 1], where each of S trajectories of these lengths begins, and B."""
    offset = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=offset[1:])
    return offset


def gather(pool: RowPool, batches: Sequence[TrajectoryBatch]) -> PackedSteps:
    """Copies the trajectories of one or more batches out of the pool: one index operation per column.

    The rows remain held; call ``release`` afterwards.
    """
    batch = join(batches)
    # Once to the machine's index type, instead of once per column.
    rows = batch.rows.astype(np.intp)
    bootstrap = batch.bootstrap.astype(np.intp)
    return PackedSteps(
        obs=tuple(column.take(rows, axis=0) for column in pool.obs),
        mask=pool.mask.take(rows, axis=0),
        continuous=pool.continuous.take(rows, axis=0),
        discrete=pool.discrete.take(rows, axis=0),
        log_prob=pool.log_prob.take(rows, axis=0),
        memory=pool.memory.take(rows, axis=0),
        reward=pool.reward.take(rows),
        group_reward=pool.group_reward.take(rows),
        group=pool.group.take(rows),
        done=pool.done.take(rows),
        interrupted=pool.interrupted.take(rows),
        version=pool.version.take(rows),
        bootstrap_obs=tuple(column.take(bootstrap, axis=0) for column in pool.obs),
        bootstrap_memory=pool.memory.take(bootstrap, axis=0),
        offset=batch.offset,
        terminated=batch.terminated,
        ended=batch.ended,
        agent=batch.agent,
    )


def release(pool: RowPool, batches: Sequence[TrajectoryBatch]) -> None:
    """Gives the rows of these batches back to the pool. They must not be read any more."""
    if not batches:
        return
    # Two calls, because a row can be a step of one trajectory and the bootstrap of the one before.
    pool.release(np.concatenate([batch.rows for batch in batches]))
    pool.release(np.concatenate([batch.bootstrap for batch in batches]))


def concatenate(parts: Sequence[PackedSteps]) -> PackedSteps:
    """One PackedSteps of several, in order (copied unless there is only one). At least one."""
    if len(parts) == 1:
        return parts[0]
    columns: dict[str, Any] = {}
    for field in fields(PackedSteps):
        values = [getattr(part, field.name) for part in parts]
        if field.name == "offset":
            columns[field.name] = offsets(np.concatenate([part.lengths for part in parts]))
        elif isinstance(values[0], tuple):
            columns[field.name] = tuple(np.concatenate(sensor) for sensor in zip(*values, strict=True))
        else:
            columns[field.name] = np.concatenate(values)
    return PackedSteps(**columns)
