"""The acting side: environment messages in, rows written, one forward per behaviour, actions out.

Who waits for whom: the collector waits for at least one environment (``Environment.wait``) and, when trainers
have threads of their own, for rows that a trainer holds (``RowPool.allocate``). Nobody waits for the collector but
the environments.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from torch import Tensor

from trajtrainer.data.agent_processor import AgentProcessor
from trajtrainer.data.rows import RowPool
from trajtrainer.data.trajectory import TrajectoryBatch
from trajtrainer.envs.protocol import Environment
from trajtrainer.nn.acting import Policy
from trajtrainer.queues import PolicyQueue, TrajectoryQueue
from trajtrainer.spec import BehaviorId, BehaviorSpec
from trajtrainer.stats import StatsReporter
from trajtrainer.steps import (
    ActionBatch,
    Aggregation,
    BoolArray,
    EnvironmentEvent,
    LongArray,
    ObservationArray,
    StepBatch,
)
from trajtrainer.timers import Timers


@dataclass(frozen=True, slots=True)
class ActingBehavior:
    """What the collector needs of one behaviour. All teams of a name share it.

    ``break_off`` tells the learning side that the episodes of one worker's agents will not go on.
    """

    spec: BehaviorSpec
    pool: RowPool
    processor: AgentProcessor
    policy: Policy
    trajectories: TrajectoryQueue[TrajectoryBatch]
    policies: PolicyQueue[Tensor]
    reporter: StatsReporter
    break_off: Callable[[int | None], None]


@dataclass(frozen=True, slots=True)
class _Waiting:
    """Agents of one message that wait for an action."""

    worker: int
    behavior_id: str
    batch: StepBatch
    rows: LongArray


class BehaviorFactory(Protocol):
    """Makes what the collector needs of a behaviour. Called once per name, when it first appears."""

    def __call__(
        self, behavior_id: BehaviorId, spec: BehaviorSpec, first: StepBatch, *, misread_elsewhere: bool
    ) -> ActingBehavior:
        """``first`` shows its observations' types; ``misread_elsewhere`` as in ``EnvironmentEvent``."""


class Collector:
    """Steps every ready environment once per ``collect``."""

    def __init__(self, environment: Environment, make_behavior: BehaviorFactory, timers: Timers) -> None:
        self.behaviors: dict[str, ActingBehavior] = {}
        self.num_messages = 0
        self._environment = environment
        self._make_behavior = make_behavior
        self._timers = timers
        self._ids: dict[str, BehaviorId] = {}
        self._specs: dict[str, BehaviorSpec] = {}
        self._misread_elsewhere: frozenset[str] = frozenset()

    def collect(self, timeout_s: float | None = None) -> int:
        """Waits for messages, records them, decides for all waiting agents at once and answers.

        Returns:
            How many messages were answered; 0 after ``timeout_s`` seconds without any.

        Raises:
            EnvironmentFaultError: an environment failed for good.
        """
        with self._timers("env_step") as step:
            step.part("env_wait")
            events = self._environment.wait(timeout_s)
            step.part("record")
            waiting: dict[str, list[_Waiting]] = {}
            for event in events:
                self._record(event, waiting)
            step.part("TorchPolicy.evaluate")
            answers = self._act(waiting)
            step.part("env_send")
            for event in events:
                self._environment.send(event.worker, answers.get(event.worker, {}))
        self.num_messages += len(events)
        return len(events)

    def _record(self, event: EnvironmentEvent, waiting: dict[str, list[_Waiting]]) -> None:
        self._specs.update(event.new_specs)
        self._misread_elsewhere |= event.misread_elsewhere
        if event.is_reset:
            for behavior in self.behaviors.values():
                behavior.processor.drop(event.worker)
                behavior.break_off(event.worker)
        for behavior_id, batch in event.steps.items():
            name, behavior = self._behavior(behavior_id, batch)
            recorded = behavior.processor.record(batch)
            trajectories = recorded.trajectories
            if trajectories is not None:
                behavior.trajectories.put(trajectories, trajectories.num_steps)
            if recorded.episode_lengths:
                behavior.reporter.add_many("Environment/Episode Length", recorded.episode_lengths)
            if batch.num_decisions:
                rows = recorded.rows[batch.num_terminal :]
                waiting.setdefault(name, []).append(_Waiting(event.worker, behavior_id, batch, rows))
        if event.statistics and event.steps:
            # A message's statistics count once, not once per behaviour in it (reference 11, quirk 31).
            _, behavior = self._behavior(*next(iter(event.steps.items())))
            for statistic in event.statistics:
                self._add_statistic(behavior.reporter, event.worker, *statistic)

    @staticmethod
    def _add_statistic(reporter: StatsReporter, worker: int, key: str, value: float, aggregation: Aggregation) -> None:
        if aggregation is not Aggregation.MOST_RECENT:
            reporter.add(key, value, aggregation)
        elif worker == 0:
            reporter.set(key, value)

    def _behavior(self, behavior_id: str, batch: StepBatch) -> tuple[str, ActingBehavior]:
        parsed = self._ids.get(behavior_id)
        if parsed is None:
            parsed = self._ids[behavior_id] = BehaviorId.parse(behavior_id)
        behavior = self.behaviors.get(parsed.name)
        if behavior is None:
            behavior = self._make_behavior(
                parsed,
                self._specs[behavior_id],
                batch,
                misread_elsewhere=behavior_id in self._misread_elsewhere,
            )
            self.behaviors[parsed.name] = behavior
        return parsed.name, behavior

    def _act(self, waiting: Mapping[str, list[_Waiting]]) -> dict[int, dict[str, ActionBatch]]:
        """One forward per behaviour over the agents of all workers. Returns worker -> behaviour id -> actions."""
        answers: dict[int, dict[str, ActionBatch]] = {}
        for name, parts in waiting.items():
            behavior = self.behaviors[name]
            update = behavior.policies.latest()
            if update is not None:
                behavior.policy.load(update)
            rows = parts[0].rows if len(parts) == 1 else np.concatenate([part.rows for part in parts])
            actions = behavior.policy.act(*_inputs(parts), behavior.pool.memory[rows])
            behavior.processor.acted(rows, actions)
            behavior.reporter.add_many("Policy/Entropy", actions.entropy)
            start = 0
            for part in parts:
                stop = start + len(part.rows)
                answers.setdefault(part.worker, {})[part.behavior_id] = actions.part(start, stop)
                start = stop
        return answers


def _inputs(parts: list[_Waiting]) -> tuple[tuple[ObservationArray, ...], BoolArray]:
    """Observations and masks of the deciding agents: views of a single message, one copy for several."""
    observations = [tuple(o[part.batch.num_terminal :] for o in part.batch.obs) for part in parts]
    masks = [part.batch.mask[part.batch.num_terminal :] for part in parts]
    if len(parts) == 1:
        return observations[0], masks[0]
    return tuple(np.concatenate(columns) for columns in zip(*observations, strict=True)), np.concatenate(masks)
