"""Micro-benchmark of the data path: agent processor and gather, columns against the per-agent oracle of the tests.

``python scripts/bench_data.py`` prints a table, in microseconds per agent-step (medians over several runs):

- record: step batch and actions -> rows and trajectories (the oracle: one object per agent and step);
- gather: trajectories -> packed columns (the oracle: one list per field, then arrays), and giving the rows back.
"""

from __future__ import annotations

import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.data.oracle import PerAgentProcessor, Trajectory, pack
from tests.data.streams import Message, Numbers, vector_spec
from trajtrainer.data.agent_processor import AgentProcessor
from trajtrainer.data.rows import RowPool
from trajtrainer.data.trajectory import TrajectoryBatch, gather, release
from trajtrainer.steps import ActionBatch, StepBatch

EPISODE_END_PROBABILITY = 1 / 200
DISTINCT_MESSAGES = 128  # played again and again, so that they need little memory


@dataclass(frozen=True)
class Case:
    """One setting of the benchmark; ``buffer`` is how many steps are gathered at once."""

    agents: int
    floats: int
    horizon: int
    buffer: int


@dataclass(frozen=True)
class Figures:
    """Microseconds per agent-step."""

    record: float
    gather: float

    @property
    def total(self) -> float:
        return self.record + self.gather


CASES = (Case(12, 8, 1000, 12000), Case(100, 8, 64, 10240), Case(100, 200, 64, 10240))


def messages(case: Case) -> tuple[list[StepBatch], ActionBatch]:
    """Messages of agents that always decide, and whose episodes end now and then and begin anew at once."""
    rng = np.random.default_rng(0)
    numbers = Numbers(vector_spec(case.floats), 0)
    deciding = tuple(range(case.agents))
    batches = []
    for _ in range(DISTINCT_MESSAGES):
        ended = np.flatnonzero(rng.random(case.agents) < EPISODE_END_PROBABILITY)
        batches.append(numbers.steps(Message(0, tuple((int(agent), False) for agent in ended), deciding)))
    return batches, numbers.actions(case.agents)


def measure_columns(case: Case, buffers: int) -> Figures:
    """The data path of this package over ``buffers`` gathered buffers."""
    batches, actions = messages(case)
    pool = RowPool(vector_spec(case.floats), [np.float32], capacity=2 * case.buffer)
    processor = AgentProcessor(pool, case.horizon)
    waiting: list[TrajectoryBatch] = []
    recording = gathering = 0.0
    recorded_steps = gathered_steps = num_waiting = 0
    while gathered_steps < buffers * case.buffer:
        batch = batches[recorded_steps // case.agents % DISTINCT_MESSAGES]
        start = time.perf_counter()
        recorded = processor.record(batch)
        processor.acted(recorded.rows[batch.num_terminal :], actions)
        recording += time.perf_counter() - start
        recorded_steps += case.agents
        if recorded.trajectories is not None:
            waiting.append(recorded.trajectories)
            num_waiting += recorded.trajectories.num_steps
        if num_waiting > case.buffer:
            start = time.perf_counter()
            gathered_steps += len(gather(pool, waiting))
            release(pool, waiting)
            gathering += time.perf_counter() - start
            waiting, num_waiting = [], 0
    return Figures(1e6 * recording / recorded_steps, 1e6 * gathering / gathered_steps)


def measure_oracle(case: Case, buffers: int) -> Figures:
    """The same with the per-agent oracle."""
    batches, actions = messages(case)
    oracle = PerAgentProcessor(case.horizon)
    waiting: list[Trajectory] = []
    recording = gathering = 0.0
    recorded_steps = gathered_steps = num_waiting = 0
    while gathered_steps < buffers * case.buffer:
        batch = batches[recorded_steps // case.agents % DISTINCT_MESSAGES]
        start = time.perf_counter()
        finished = oracle.record(batch)
        oracle.acted(batch, actions)
        recording += time.perf_counter() - start
        recorded_steps += case.agents
        waiting += finished
        num_waiting += sum(len(trajectory.steps) for trajectory in finished)
        if num_waiting > case.buffer:
            start = time.perf_counter()
            gathered_steps += len(pack(waiting))
            gathering += time.perf_counter() - start
            waiting, num_waiting = [], 0
    return Figures(1e6 * recording / recorded_steps, 1e6 * gathering / gathered_steps)


def measure(repetitions: int = 5) -> list[dict[str, float]]:
    """One entry per case: its numbers, the medians of both ways, and how many times faster the columns are."""
    results = []
    for case in CASES:
        columns = [measure_columns(case, buffers=4) for _ in range(repetitions)]
        oracle = [measure_oracle(case, buffers=1) for _ in range(repetitions)]
        medians = {
            f"{name}_{part}_us": statistics.median(getattr(figures, part) for figures in runs)
            for name, runs in (("columns", columns), ("oracle", oracle))
            for part in ("record", "gather", "total")
        }
        factor = medians["oracle_total_us"] / medians["columns_total_us"]
        results.append({"agents": case.agents, "floats": case.floats, "horizon": case.horizon} | medians)
        results[-1]["factor"] = factor
    return results


def main() -> None:
    print("data path, microseconds per agent-step (median of 5)")
    print(f"{'agents x floats':>16} {'':>8} {'record':>8} {'gather':>8} {'total':>8}")
    for result in measure():
        title = f"{result['agents']} x {result['floats']}"
        for name in ("columns", "oracle"):
            parts = "".join(f" {result[f'{name}_{part}_us']:8.2f}" for part in ("record", "gather", "total"))
            print(f"{title:>16} {name:>8}{parts}")
            title = ""
        print(f"{'':>16} {'factor':>8} {result['factor']:26.1f}")


if __name__ == "__main__":
    main()
