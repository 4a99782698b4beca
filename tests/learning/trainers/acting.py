"""The acting side in this process: a built-in simulation whose agents' experience goes to a trainer."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from trajtrainer.core.queues import PolicyQueue
from trajtrainer.core.stats import StatsReporter
from trajtrainer.core.steps import StepBatch
from trajtrainer.core.timers import Timers
from trajtrainer.envs.sim.simulation import SimulatedActions, Simulation, SimulationStep
from trajtrainer.experience.agent_processor import AgentProcessor
from trajtrainer.experience.rows import RowPool
from trajtrainer.experience.source import ExperienceSource, RowsChunk
from trajtrainer.learning.algos.acting import ActorPolicy
from trajtrainer.learning.algos.algorithm import LearningContext
from trajtrainer.learning.trainers.factory import create_trainer, max_lead
from trajtrainer.run.actors.pacing import Pacing, Shared
from trajtrainer.settings.trainer import TrainerSettings


class Acting:
    """``step`` makes one decision of all agents.

    Attributes:
        num_steps: agent steps so far.
        is_stopping: what the trainer is told.
    """

    def __init__(self, simulation: Simulation, settings: TrainerSettings, *, seed: int = 0) -> None:
        self.is_stopping = False
        spec, memory = simulation.spec, settings.network_settings.memory
        self._simulation = simulation
        self._waiting = simulation.reset()
        self.pool = RowPool(
            spec,
            [column.dtype for column in self._waiting.observations],
            memory_size=memory.memory_size if memory else 0,
        )
        self.policies: PolicyQueue[Tensor] = PolicyQueue()
        context = LearningContext(
            behavior="B",
            spec=spec,
            settings=settings,
            obs_dtypes=[column.dtype for column in self.pool.obs],
            seed=seed,
            device=torch.device("cpu"),
            training=True,
            timers=Timers(),
            is_stopping=lambda: self.is_stopping,
        )
        self.source = ExperienceSource(is_concurrent=settings.threaded)
        self.pacing = Shared("B", self.source, max_lead(settings)) if settings.threaded else Pacing("B")
        self._limit = self.pacing.add_actor(0).rows
        self.trainer = create_trainer(context, self.source, self.policies, StatsReporter("B", []), lambda _: None)
        self.policy = ActorPolicy(self.trainer.actor, seed=seed)
        self.num_steps = 0
        self._processor = AgentProcessor(self.pool, settings.time_horizon)

    @property
    def may_step(self) -> bool:
        """Whether acting is below its limit."""
        for _, allowance in self.pacing.raised([0]):
            self._limit = allowance.rows
        return self.pacing.accounts[0].rows < self._limit

    def step(self) -> None:
        batch = _step_batch(self._simulation, self._waiting)
        recorded = self._processor.record(batch)
        if recorded.trajectories is not None:
            steps = recorded.trajectories.num_steps
            self.pacing.count(0, steps, steps)
            self.source.add(RowsChunk(self.pool, [recorded.trajectories], steps, steps))
        update = self.policies.latest("B")
        if update is not None:
            self.policy.load(update)
        rows, first = recorded.rows[batch.num_terminal :], batch.num_terminal
        actions = self.policy.act(
            tuple(column[first:] for column in batch.obs), batch.mask[first:], self.pool["memory"][rows]
        )
        self._processor.acted(rows, actions)
        self.num_steps += len(rows)
        self._waiting = self._simulation.step(SimulatedActions(actions.env_continuous, actions.discrete))


def _step_batch(simulation: Simulation, step: SimulationStep) -> StepBatch:
    agents = np.arange(simulation.num_agents)
    ids = np.concatenate([step.ended, agents]).astype(np.int64)
    mask = np.zeros((len(ids), sum(simulation.spec.action_spec.discrete_branches)), np.bool_)
    if step.mask is not None:
        mask[len(step.ended) :] = step.mask
    return StepBatch(
        agent=ids,
        obs=tuple(_joined(*pair) for pair in zip(step.ended_observations, step.observations, strict=True)),
        reward=np.concatenate([step.ended_reward, step.reward]),
        group=np.zeros(len(ids), np.int32),
        group_reward=np.zeros(len(ids), np.float32),
        mask=mask,
        interrupted=step.interrupted,
        num_terminal=len(step.ended),
    )


def _joined(*parts: Any) -> Any:
    return np.concatenate(parts)
