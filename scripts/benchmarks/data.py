"""Compares the data path (agent processor and gather) with the per-agent oracle of the tests.

Measures microseconds of CPU time per agent-step:

- record: step batch and actions -> rows and trajectories (the oracle: one object per agent and step);
- gather: trajectories -> packed columns (the oracle: one list per field, then arrays), and releasing the rows.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from itertools import cycle

import numpy as np

from scripts.benchmarks.report import RUNS, Row
from tests.experience.oracle import PerAgentProcessor, Trajectory, pack
from tests.experience.streams import Message, Numbers, vector_spec
from trajtrainer.core.steps import ActionBatch, StepBatch
from trajtrainer.experience.agent_processor import AgentProcessor
from trajtrainer.experience.rows import RowPool
from trajtrainer.experience.trajectory import TrajectoryBatch, gather, release

EPISODE_END_PROBABILITY = 1 / 200
GROUP_SIZE = 10
DISTINCT_MESSAGES = 128  # repeated, to use little memory


@dataclass(frozen=True)
class Case:
    """One configuration of the benchmark; ``buffer`` is the number of steps gathered at once."""

    agents: int
    floats: int
    horizon: int
    buffer: int
    bar: float | None = None


@dataclass(frozen=True)
class Figures:
    """CPU time in microseconds per agent-step."""

    record: float
    gather: float

    @property
    def total(self) -> float:
        return self.record + self.gather


CASES = (Case(12, 8, 1000, 12000), Case(100, 8, 64, 10240, 20), Case(100, 200, 64, 10240))


def messages(case: Case) -> tuple[list[StepBatch], ActionBatch]:
    """Return messages of agents that decide in each message. Episodes end at random, and restart immediately."""
    rng = np.random.default_rng(0)
    numbers = Numbers(vector_spec(case.floats), 0, groups=[1 + agent // GROUP_SIZE for agent in range(case.agents)])
    deciding = tuple(range(case.agents))
    batches = []
    for _ in range(DISTINCT_MESSAGES):
        ended = np.flatnonzero(rng.random(case.agents) < EPISODE_END_PROBABILITY)
        batches.append(numbers.steps(Message(0, tuple((int(agent), False) for agent in ended), deciding)))
    return batches, numbers.actions(case.agents)


def measure_columns(case: Case, buffers: int, *, groups: bool = False) -> Figures:
    """Measure the data path of this package over ``buffers`` buffers, after one buffer as a warm-up."""
    batches, actions = messages(case)
    pool = RowPool(vector_spec(case.floats), [np.float32], groups=groups, capacity=2 * case.buffer)
    processor = AgentProcessor(pool, case.horizon)
    stream = cycle(batches)
    clock = _Clock()
    for _ in range(buffers + 1):
        waiting: list[TrajectoryBatch] = []
        num_waiting = num_messages = 0
        clock.start()
        while num_waiting <= case.buffer:
            batch = next(stream)
            recorded = processor.record(batch)
            processor.acted(recorded.rows[batch.num_terminal :], actions)
            num_messages += 1
            if recorded.trajectories is not None:
                waiting.append(recorded.trajectories)
                num_waiting += recorded.trajectories.num_steps
        clock.recorded(num_messages * case.agents)
        packed = gather(pool, waiting)
        release(pool, waiting)
        clock.gathered(len(packed))
    return clock.figures()


def measure_oracle(case: Case, buffers: int) -> Figures:
    """Measure the per-agent oracle in the same way."""
    batches, actions = messages(case)
    oracle = PerAgentProcessor(case.horizon)
    stream = cycle(batches)
    clock = _Clock()
    for _ in range(buffers + 1):
        waiting: list[Trajectory] = []
        num_waiting = num_messages = 0
        clock.start()
        while num_waiting <= case.buffer:
            batch = next(stream)
            finished = oracle.record(batch)
            oracle.acted(batch, actions)
            num_messages += 1
            waiting += finished
            num_waiting += sum(len(trajectory.steps) for trajectory in finished)
        clock.recorded(num_messages * case.agents)
        clock.gathered(len(pack(waiting)))
    return clock.figures()


class _Clock:
    """Measures CPU time of this thread, per buffer. Other processes affect it less than wall time."""

    def __init__(self) -> None:
        self._last = 0.0
        self._recording: list[float] = []
        self._gathering: list[float] = []

    def start(self) -> None:
        self._last = time.thread_time()

    def recorded(self, steps: int) -> None:
        self._recording.append(self._lap() / steps)

    def gathered(self, steps: int) -> None:
        self._gathering.append(self._lap() / steps)

    def figures(self) -> Figures:
        """Return medians, without the first buffer (the warm-up)."""
        return Figures(1e6 * statistics.median(self._recording[1:]), 1e6 * statistics.median(self._gathering[1:]))

    def _lap(self) -> float:
        now = time.thread_time()
        lap, self._last = now - self._last, now
        return lap


def measure() -> list[Row]:
    """Measure columns and oracle in microseconds per agent-step, and how much faster the columns are."""
    rows = []
    for case in CASES:
        pairs = [(measure_columns(case, buffers=4), measure_oracle(case, buffers=1)) for _ in range(RUNS)]
        label = f"{case.agents} agents x {case.floats} floats"
        columns, oracle = ([pair[i].total for pair in pairs] for i in (0, 1))
        with_groups = [measure_columns(case, buffers=4, groups=True).total for _ in range(RUNS)]
        rows += [
            Row(f"agent processor + gather, columns, {label}", "us/agent-step", columns),
            Row(f"the same with groups of {GROUP_SIZE}, {label}", "us/agent-step", with_groups),
            Row(f"agent processor + gather, per-agent oracle, {label}", "us/agent-step", oracle),
            Row(f"oracle / columns, {label}", "times", [o / c for o, c in zip(oracle, columns, strict=True)], case.bar),
        ]
    return rows
