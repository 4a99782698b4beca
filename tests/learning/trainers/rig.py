"""A trainer with everything around it replaced by what a test can look at."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from mlagents_envs.base_env import ActionSpec, BehaviorSpec, DimensionProperty, ObservationSpec, ObservationType
from numpy.typing import NDArray
from torch import Tensor

from trajtrainer.core.queues import PolicyQueue, PolicyUpdate
from trajtrainer.core.stats import StatsReporter, StatsSummary, StatsWriter
from trajtrainer.core.timers import Timers
from trajtrainer.experience.rows import RowPool
from trajtrainer.experience.source import ExperienceSource, RowsChunk
from trajtrainer.experience.trajectory import TrajectoryBatch, join
from trajtrainer.learning.algos.acting import ActorPolicy
from trajtrainer.learning.algos.algorithm import LearningContext
from trajtrainer.learning.algos.ppo.ppo import PPO
from trajtrainer.learning.algos.sac.sac import SAC
from trajtrainer.learning.trainers.factory import create_trainer
from trajtrainer.learning.trainers.trainer import BehaviorTrainer, Trainer
from trajtrainer.policies.checkpoints.state import from_checkpoint, learned_state, to_checkpoint
from trajtrainer.settings.trainer import TrainerSettings


def vector_spec(size: int = 4, continuous: int = 2, branches: tuple[int, ...] = ()) -> BehaviorSpec:
    sensor = ObservationSpec((size,), (DimensionProperty.NONE,), ObservationType.DEFAULT, "vector")
    return BehaviorSpec([sensor], ActionSpec(continuous, branches))


class Recorder(StatsWriter):
    """Keeps every summary."""

    def __init__(self) -> None:
        self.summaries: list[tuple[int, dict[str, StatsSummary]]] = []

    def write_stats(self, category: str, values: Mapping[str, StatsSummary], step: int) -> None:
        self.summaries.append((step, dict(values)))


@dataclass
class Trajectory:
    """Columns of one trajectory; what is left out is drawn at random by ``Rig.put``."""

    length: int
    ended: bool = False
    interrupted: bool = False
    agent: int = 1
    columns: Mapping[str, NDArray[Any]] = field(default_factory=dict)


class TrainerRig:
    """``put`` trajectories, ``trainer.advance()``, look at ``checkpoints``, ``statistics()`` and the ``trainer``."""

    def __init__(
        self,
        settings: TrainerSettings,
        spec: BehaviorSpec | None = None,
        *,
        seed: int = 0,
        training: bool = True,
        behavior: str = "B",
    ) -> None:
        self.spec = spec or vector_spec()
        memory = settings.network_settings.memory
        dtypes = [np.dtype(np.float32)] * len(self.spec.observation_specs)
        self.pool = RowPool(self.spec, dtypes, memory_size=memory.memory_size if memory else 0, poison=True)
        self.policies: PolicyQueue[Tensor] = PolicyQueue()
        self.recorder = Recorder()
        self.reporter = StatsReporter(behavior, [self.recorder])
        self.timers = Timers()
        self.checkpoints: list[int] = []
        self.is_stopping: Callable[[], bool] = lambda: False
        self.rng = np.random.default_rng(abs(seed))
        context = LearningContext(
            behavior=behavior,
            spec=self.spec,
            settings=settings,
            obs_dtypes=dtypes,
            seed=seed,
            device=torch.device("cpu"),
            training=training,
            timers=self.timers,
            is_stopping=lambda: self.is_stopping(),
        )
        self.source = ExperienceSource(is_concurrent=settings.threaded)
        self.trainer = create_trainer(context, self.source, self.policies, self.reporter, self._checkpoint)

    def _checkpoint(self, trainer: BehaviorTrainer) -> None:
        self.checkpoints.append(trainer.step)

    def take_in(self) -> None:
        """As ``advance`` does, but without an update."""
        self.trainer._drain()
        self.source.settle()

    def put(self, *trajectories: Trajectory) -> None:
        """One queue item of these trajectories."""
        self.add(join([self._write(one) for one in trajectories]))

    def add(self, batch: TrajectoryBatch) -> None:
        """One chunk of rows of the pool."""
        memory = self.trainer.context.settings.network_settings.memory
        length = 1 if memory is None else memory.sequence_length
        rows = int((-(-batch.lengths // length)).sum()) * length
        self.source.add(RowsChunk(self.pool, [batch], rows, batch.num_steps))

    def _write(self, one: Trajectory) -> TrajectoryBatch:
        pool, length = self.pool, one.length
        rows = pool.allocate(length + 1)
        for column in pool.obs:
            column[rows] = self.rng.standard_normal((length + 1, *column.shape[1:]))
        pool["mask"][rows] = False
        pool["continuous"][rows] = self.rng.standard_normal((length + 1, pool["continuous"].shape[1]))
        pool["discrete"][rows] = 0
        pool["log_prob"][rows] = -1.0
        pool["memory"][rows] = 0.1 * self.rng.standard_normal((length + 1, pool["memory"].shape[1]))
        pool["reward"][rows] = self.rng.standard_normal(length + 1)
        pool["group_reward"][rows] = 0.0
        pool["group"][rows], pool["version"][rows] = 0, 0
        pool["done"][rows], pool["interrupted"][rows] = False, False
        pool["done"][rows[-2]], pool["interrupted"][rows[-2]] = one.ended, one.interrupted
        for name, values in one.columns.items():
            column = pool[name]
            column[rows[: len(values)]] = values
        return TrajectoryBatch(
            rows=rows[:-1].astype(np.int32),
            offset=np.array([0, length], np.int32),
            bootstrap=rows[-1:].astype(np.int32),
            terminated=np.array([one.ended and not one.interrupted]),
            ended=np.array([one.ended]),
            agent=np.array([one.agent], np.int64),
        )

    def published(self) -> PolicyUpdate[Tensor]:
        """The policy as it is now."""
        self.trainer.publisher.publish()
        update = self.policies.latest(self.trainer.context.behavior)
        assert update is not None
        return update

    def statistics(self) -> dict[str, list[float]]:
        """Everything reported since the last summary, tag -> values."""
        before = len(self.recorder.summaries)
        self.reporter.write(-1)
        (_, values), *_ = self.recorder.summaries[before:]
        del self.recorder.summaries[before:]
        return {tag: list(summary.values) for tag, summary in values.items()}


class Rig(TrainerRig):
    """With PPO."""

    @property
    def learner(self) -> PPO:
        assert isinstance(self.trainer.algorithm, PPO)
        return self.trainer.algorithm


class OffPolicyRig(TrainerRig):
    """With SAC."""

    @property
    def learner(self) -> SAC:
        assert isinstance(self.trainer.algorithm, SAC)
        return self.trainer.algorithm


def weights(trainer: Trainer) -> list[Tensor]:
    """A copy of all weights."""
    state = learned_state(trainer.algorithm)
    return [value.clone() for part in ("modules", "rewards") for one in state[part].values() for value in one.values()]


def checkpoint_of(trainer: Trainer) -> dict[str, Any]:
    """The content of a checkpoint, with a policy that has not acted. Tensors are shared."""
    return to_checkpoint(trainer, ActorPolicy(trainer.actor, seed=0))


def restore(trainer: Trainer, checkpoint: Mapping[str, Any], *, reset_step: bool) -> None:
    """Takes a checkpoint over, of ours or of ML-Agents."""
    from_checkpoint(checkpoint, trainer, ActorPolicy(trainer.actor, seed=0), "checkpoint.pt", reset_step=reset_step)


def same(first: Sequence[Tensor], second: Sequence[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
