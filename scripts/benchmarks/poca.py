"""End-to-end benchmarks of MA-POCA with two group sizes, and the memory usage of the larger one."""

from __future__ import annotations

from functools import partial

from scripts.benchmarks.ppo import Case, speed, train
from scripts.benchmarks.report import RUNS, Row, interleaved

FOURS = Case(
    "POCA, 20 agents in groups of 4, 64x2, batch 256",
    ["sim:Bench", "--agents", "20", "--group-size", "4"],
    {"batch_size": 256, "buffer_size": 2560},
    {"hidden_units": 64, "num_layers": 2},
    64,
    2560,
    20480,
    extra={"trainer_type": "poca"},
)
TENS = Case(
    "POCA, 100 agents in groups of 10 x 40 floats, 256x2, batch 256",
    ["sim:Bench", "--agents", "100", "--group-size", "10", "--observation-size", "40"],
    {"batch_size": 256, "buffer_size": 10240},
    {"hidden_units": 256, "num_layers": 2},
    64,
    12800,
    51200,
    extra={"trainer_type": "poca"},
)


def measure() -> list[Row]:
    figures = interleaved([partial(speed, case) for case in (FOURS, TENS)], RUNS)
    rows = [Row(case.name, "agent-steps/s", runs) for case, runs in zip((FOURS, TENS), figures, strict=True)]
    resident = train(TENS).memory_at(TENS.max_steps)
    return [*rows, Row("resident memory, groups of 10, after 5 buffers", "MB", [resident], 600)]
