"""PPO end to end, from 1 agent to 1,000 and from 8 floats to 2,000: speed, time per agent-step, and memory.

An agent-step costs the same work in every cell: trajectories have 50 steps, and an update comes after every 5,000.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

from scripts.benchmarks.ppo import Case, Figures, train
from scripts.benchmarks.report import Row, interleaved

RUNS = 3
# Updates that are measured, so that a run takes 5 to 15 seconds.
_UPDATES = {
    (1, 8): 2,
    (1, 200): 2,
    (1, 2000): 2,
    (12, 8): 8,
    (12, 200): 8,
    (12, 2000): 6,
    (100, 8): 25,
    (100, 200): 20,
    (100, 2000): 12,
    (1000, 8): 40,
    (1000, 200): 30,
    (1000, 2000): 20,
}
_EPISODE = 50
# So many steps go to each update in all cells: in every step the same number of episodes ends (20 of 1,000 agents', at
# most 2 of the others'), and no other number of whole episodes goes beyond the buffer's size first. That holds when
# each agent's first episode is over, which is shorter than the others; the row pool has grown to its size then, too.
_LAP = 5000
_TOLERANCE = 1.1  # of the cost per agent-step, which shall not grow with the agents

Cell = tuple[int, int]


@dataclass(frozen=True)
class CellRows:
    """The figures of one number of agents and one observation size."""

    speed: Row
    cost: Row
    memory: Row

    def __iter__(self) -> Iterator[Row]:
        return iter((self.speed, self.cost, self.memory))


def case(agents: int, size: int, updates: int) -> Case:
    return Case(
        f"scaling, {agents:,} agents x {size:,} floats",
        [
            "sim:Bench",
            *("--agents", str(agents)),
            *("--observation-size", str(size)),
            *("--episode-length", str(_EPISODE)),
        ],
        {"batch_size": 256, "buffer_size": _LAP - 1, "num_epoch": 3},
        {"hidden_units": 128, "num_layers": 2},
        time_horizon=_EPISODE,
        summary_freq=_LAP,
        max_steps=(_before(agents) + updates) * _LAP,
    )


def _before(agents: int) -> int:
    """Updates that are not measured."""
    return max(1, agents * _EPISODE // _LAP)


def measure(updates: Mapping[Cell, int] = _UPDATES, runs: int = RUNS) -> list[Row]:
    """All cells in turn, several times."""
    cases = {cell: case(*cell, count) for cell, count in updates.items()}
    figures: dict[Cell, list[Figures]] = {cell: [] for cell in cases}

    def run(cell: Cell) -> float:
        summaries = train(cases[cell]).summaries
        figures[cell].append(Figures(summaries[_before(cell[0]) - 1 :]))
        return 0.0

    interleaved([partial(run, cell) for cell in cases], runs)
    cells = {cell: _rows(cases[cell].name, found) for cell, found in figures.items()}
    print(markdown(cells))
    return [*(row for rows in cells.values() for row in rows), *_growth(cells)]


def _rows(name: str, runs: Sequence[Figures]) -> CellRows:
    return CellRows(
        Row(name, "agent-steps/s", [run.steps_per_second for run in runs]),
        Row(name, "us per agent-step", [1e6 / run.steps_per_second for run in runs]),
        Row(name, "MB resident", [run.summaries[-1][2] for run in runs]),
    )


def _growth(cells: Mapping[Cell, CellRows]) -> Iterator[Row]:
    """How the cost per agent-step changes from each number of agents to the next; the worst of each size."""
    for size in sorted({size for _, size in cells}):
        costs = [cells[cell].cost.median for cell in sorted(cells) if cell[1] == size]
        if len(costs) > 1:
            worst = max(more / fewer for fewer, more in pairwise(costs))
            name = f"scaling, {size:,} floats: cost per agent-step, more agents by fewer"
            yield Row(name, "times", [worst], _TOLERANCE)


def markdown(cells: Mapping[Cell, CellRows]) -> str:
    """The table of docs/explanation/speed.md."""
    lines = ["| agents | floats observed | agent-steps/s | µs per agent-step | MB resident |", "| ---: " * 5 + "|"]
    for agents, size in sorted(cells, key=lambda cell: (cell[1], cell[0])):
        rows = cells[agents, size]
        speed, cost, memory = (_rounded(row.median) for row in rows)
        lines.append(f"| {agents:,} | {size:,} | {speed} | {cost} | {memory} |")
    return "\n".join(lines)


def _rounded(value: float) -> str:
    """To three figures."""
    return f"{value:.3g}" if value < 100 else f"{float(f'{value:.3g}'):,.0f}"
