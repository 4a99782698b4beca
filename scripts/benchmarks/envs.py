"""What the environments for other libraries cost: a scene stepped through them, and by our own collector's session."""

from __future__ import annotations

import time
from functools import partial

import numpy as np

from scripts.benchmarks.report import RUNS, Row, interleaved
from scripts.benchmarks.wire import SIZES, STEPS, WARM_UP, player_arguments, stepping_only
from trajtrainer.gymnasium import UnityVectorEnv


def measure() -> list[Row]:
    rows = []
    for agents, floats in SIZES:
        ours, through = interleaved([partial(f, agents, floats) for f in (stepping_only, through_gymnasium)], RUNS)
        label = f"{agents} agents x {floats} floats"
        rows.append(Row(f"stepping without learning, {label}", "agent-steps/s", ours))
        rows.append(Row(f"UnityVectorEnv, {label}", "agent-steps/s", through, 0.9 * float(np.median(ours))))
    return rows


def through_gymnasium(agents: int, floats: int) -> float:
    envs = UnityVectorEnv("sim:Bench", additional_args=player_arguments(agents, floats), busy_wait=False)
    try:
        actions = np.zeros((agents, 2), np.float32)
        envs.reset()
        started = 0.0
        for step in range(WARM_UP + STEPS):
            if step == WARM_UP:
                started = time.perf_counter()
            envs.step(actions)
        return agents * STEPS / (time.perf_counter() - started)
    finally:
        envs.close()
