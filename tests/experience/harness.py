"""The code under test and the oracle, side by side."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tests.experience.oracle import PerAgentProcessor, Trajectory
from tests.experience.streams import OBS_DTYPES, Message, Numbers, Reset, mixed_spec, part_of
from trajtrainer.core.spec import BehaviorSpec
from trajtrainer.core.steps import StepBatch
from trajtrainer.experience.agent_processor import AgentProcessor
from trajtrainer.experience.rows import RowPool
from trajtrainer.experience.trajectory import TrajectoryBatch

Round = Sequence[Message] | Reset


class Harness:
    """An agent processor and the oracle, fed with the same messages and answers."""

    def __init__(
        self,
        horizon: int,
        memory_size: int,
        *,
        groups: Sequence[int] | None = None,
        spec: BehaviorSpec | None = None,
    ) -> None:
        """``groups`` as in ``Numbers``; None for a pool that does not keep them."""
        self.numbers = Numbers(spec or mixed_spec(), memory_size, groups=groups or ())
        self.pool = RowPool(
            spec or mixed_spec(),
            OBS_DTYPES if spec is None else [np.float32] * len(spec.observation_specs),
            memory_size=memory_size,
            groups=groups is not None,
            capacity=4,
            poison=True,
        )
        self.processor = AgentProcessor(self.pool, horizon)
        self.oracle = PerAgentProcessor(horizon, memory_size, groups=groups is not None)
        self.expected: list[Trajectory] = []
        self.episode_lengths: list[int] = []

    def play(self, round_: Round) -> list[TrajectoryBatch]:
        """Records each message, then answers all at once as a collector of several workers does."""
        if isinstance(round_, Reset):
            self.processor.drop(round_.worker)
            self.oracle.drop(round_.worker)
            return []
        return self.record([(self.numbers.steps(message), message.team) for message in round_])

    def record(self, messages: Sequence[tuple[StepBatch, int]]) -> list[TrajectoryBatch]:
        """The same with messages and teams. What was read is written over."""
        finished, rows = [], []
        for batch, team in messages:
            recorded = self.processor.record(batch, team)
            assert len(recorded.rows) == len(batch)
            self.episode_lengths += recorded.episode_lengths
            self.expected += self.oracle.record(batch, team)
            if recorded.trajectories is not None:
                finished.append(recorded.trajectories)
            rows.append(recorded.rows[batch.num_terminal :])
        actions = self.numbers.actions(sum(map(len, rows)))
        self.processor.acted(np.concatenate(rows), actions)
        start = 0
        for batch, _ in messages:
            self.oracle.acted(batch, part_of(actions, start, start + batch.num_decisions))
            start += batch.num_decisions
        # The environment may use its memory for the next message.
        for batch, _ in messages:
            for column in (batch.agent, *batch.obs, batch.reward, batch.group, batch.mask, batch.interrupted):
                column[:] = 1
        for column in (actions.continuous, actions.discrete, actions.log_prob, actions.memory):
            column[:] = 1
        return finished
