"""Messages between an environment and the collector, as columns with one entry per agent.

Shape legend: N agents of a step batch, T terminal rows of it, D sum of branch sizes, C continuous actions,
K discrete branches, H memory size, O an observation's own shape.
"""

from __future__ import annotations

import enum
import logging
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trajtrainer.core.image_order import RawImageOrder
from trajtrainer.core.spec import BehaviorSpec

FloatArray = NDArray[np.float32]
IntArray = NDArray[np.int32]
LongArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]
# Vectors are f32; images that were sent as PNG stay u8 and are divided by 255 in the encoder.
ObservationArray = NDArray[np.float32] | NDArray[np.uint8]

WORKER_SHIFT = 32
LOCAL_ID = (1 << WORKER_SHIFT) - 1
"""Mask for the bits of an agent's id within its worker."""
_FEWEST_REPEATED = 2

logger = logging.getLogger(__name__)


def agent_ids(worker: int, local_ids: NDArray[np.int64]) -> LongArray:
    """Return ids that are unique across all workers: ``worker << 32 | id``."""
    return local_ids | np.int64(worker << WORKER_SHIFT)


@dataclass(slots=True)
class StepBatch:
    """The agents of one behavior in one message. Terminal rows come first, so ``obs[num_terminal:]`` is a view.

    The same id may be in both parts: with the end of an episode, and with the first decision of the next one.

    Attributes:
        agent: i64 [N], ``worker << 32 | id``.
        obs: one array per sensor, f32 or u8 [N, *O]; images are (channels, height, width).
        reward: f32 [N], reward since the agent's last decision.
        group: i32 [N], id of the agent's group, 0 for none; unique only within a worker.
        group_reward: f32 [N], group reward since the agent's last decision.
        mask: bool [N, D], True means forbidden, as in the protocol; D is 0 without discrete actions. False in terminal
            rows.
        interrupted: bool [T], True if the step limit ended the episode.
        num_terminal: T.
    """

    agent: LongArray
    obs: tuple[ObservationArray, ...]
    reward: FloatArray
    group: IntArray
    group_reward: FloatArray
    mask: BoolArray
    interrupted: BoolArray
    num_terminal: int

    def __len__(self) -> int:
        return len(self.agent)

    @property
    def num_decisions(self) -> int:
        """N - T, the number of agents that request a decision."""
        return len(self.agent) - self.num_terminal


class FirstEnds:
    """Keeps only the first terminal row of each agent in a message, and warns once per behavior if there are more."""

    def __init__(self) -> None:
        self._has_warned: set[str] = set()

    def of(self, behavior_id: str, batch: StepBatch) -> StepBatch:
        """Return the batch itself if no agent has two terminal rows, otherwise a copy without the later ones."""
        num = batch.num_terminal
        if num < _FEWEST_REPEATED or len(set(batch.agent[:num].tolist())) == num:
            return batch
        first = np.sort(np.unique(batch.agent[:num], return_index=True)[1])
        if behavior_id not in self._has_warned:
            self._has_warned.add(behavior_id)
            logger.warning(
                "Behavior %r: an agent ended its episode more than once in one step. Only the first end counts. Check "
                "that the game calls EndEpisode() once per episode.",
                behavior_id,
            )
        rows = np.concatenate([first, np.arange(num, len(batch))])
        return StepBatch(
            agent=batch.agent[rows],
            obs=tuple([column[rows] for column in batch.obs]),
            reward=batch.reward[rows],
            group=batch.group[rows],
            group_reward=batch.group_reward[rows],
            mask=batch.mask[rows],
            interrupted=batch.interrupted[first],
            num_terminal=len(first),
        )


@dataclass(slots=True)
class ActionBatch:
    """The decisions of a policy for N agents, in the order of the agents.

    Attributes:
        continuous: f32 [N, C], raw continuous actions (as sampled, before clipping), for learning.
        discrete: i32 [N, K], discrete actions.
        env_continuous: f32 [N, C], continuous actions within [-1, 1], for the environment.
        log_prob: f32 [N, C + K], log-probabilities per dimension and branch, as in ML-Agents.
        entropy: f32 [N].
        memory: f32 [N, H], the recurrent memory after this step; H is 0 without a memory.
        version: version of the policy that made the decisions.
    """

    continuous: FloatArray
    discrete: IntArray
    env_continuous: FloatArray
    log_prob: FloatArray
    entropy: FloatArray
    memory: FloatArray
    version: int

    def __len__(self) -> int:
        return len(self.continuous)

    def part(self, start: int, stop: int) -> ActionBatch:
        """Return the decisions for the agents from ``start`` to ``stop`` as views."""
        return ActionBatch(
            continuous=self.continuous[start:stop],
            discrete=self.discrete[start:stop],
            env_continuous=self.env_continuous[start:stop],
            log_prob=self.log_prob[start:stop],
            entropy=self.entropy[start:stop],
            memory=self.memory[start:stop],
            version=self.version,
        )


class Aggregation(enum.IntEnum):
    """Method for combining the values of a statistic within a summary into one number.

    The members have the same values as in the protocol (docs/explanation/mlagents-behavior.md#side-channels).
    """

    AVERAGE = 0
    MOST_RECENT = 1
    SUM = 2
    HISTOGRAM = 3


class Statistic(NamedTuple):
    """A value that a game reported through Unity's StatsRecorder."""

    key: str
    value: float
    aggregation: Aggregation


@dataclass(slots=True)
class EnvironmentEvent:
    """One message from one worker's environment.

    Attributes:
        worker: number of the environment.
        steps: behavior id -> its agents. Each behavior was announced in ``new_specs`` of this or an earlier event from
            this worker.
        new_specs: behaviors that this worker announces for the first time.
        statistics: values from Unity's StatsRecorder.
        is_reset: True for the first message after a reset or restart. The worker's unfinished trajectories are then
            invalid, because a RESET does not send end-of-episode records for them.
        raw_images: behavior id -> the axis order in which its raw images were read, for behaviors in ``new_specs`` with
            raw images from Unity package 3.0 or newer. ML-Agents always reads these as CHW, even if they are not.
    """

    worker: int
    steps: dict[str, StepBatch]
    new_specs: dict[str, BehaviorSpec] = field(default_factory=dict)
    statistics: list[Statistic] = field(default_factory=list)
    is_reset: bool = False
    raw_images: dict[str, RawImageOrder] = field(default_factory=dict)

    def take_over(self, unseen: EnvironmentEvent | None) -> None:
        """Merge an earlier event of this worker that was not returned, because a reset was due when it arrived."""
        if unseen is not None:
            self.new_specs = unseen.new_specs | self.new_specs
            self.statistics = unseen.statistics + self.statistics
            self.raw_images = unseen.raw_images | self.raw_images
