"""The actions that an expert would take wherever trajectories lead.

Shape legend: B packed steps, S trajectories, H memory size.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trajtrainer.algos.acting import Acts
from trajtrainer.core.steps import ActionBatch, FloatArray, LongArray
from trajtrainer.data.trajectory import PackedSteps

# Steps that the expert decides about at once.
_ROWS = 4096


def labels(expert: Acts, packed: PackedSteps, memories: MutableMapping[int, FloatArray]) -> dict[str, NDArray[Any]]:
    """Return ``continuous`` as the environment has them and ``discrete`` of an expert, [B, ...], and fitting ``mask``.

    Args:
        expert: decides.
        packed: the trajectories.
        memories: agent -> f32 [H], what the expert remembers of its unfinished episode; kept up to date here.
    """
    found = {
        "continuous": np.zeros_like(packed["continuous"]),
        "discrete": np.zeros_like(packed["discrete"]),
        "mask": packed["mask"],
    }

    def decide(rows: LongArray, memory: FloatArray) -> ActionBatch:
        actions = expert.act([column.take(rows, axis=0) for column in packed.obs], packed["mask"][rows], memory)
        found["continuous"][rows], found["discrete"][rows] = actions.env_continuous, actions.discrete
        return actions

    if expert.memory_size:
        _in_turn(expert.memory_size, packed, memories, decide)
    else:
        for start in range(0, len(packed), _ROWS):
            rows = np.arange(start, min(start + _ROWS, len(packed)))
            decide(rows, np.zeros((len(rows), 0), np.float32))
    return found


def _in_turn(size: int, packed: PackedSteps, memories: MutableMapping[int, FloatArray], decide: Any) -> None:
    """Decide about the first steps of all trajectories, then about the second ones, and so on.

    Trajectories of one agent follow each other.
    """
    remaining = list(range(packed.num_trajectories))
    while remaining:
        turn: dict[int, int] = {}
        for number in remaining:
            turn.setdefault(int(packed.agent[number]), number)
        some = np.array(sorted(turn.values()))
        remaining = [number for number in remaining if number not in set(some.tolist())]
        agents, lengths = packed.agent[some].tolist(), packed.lengths[some]
        memory = np.stack([memories.pop(agent, np.zeros(size, np.float32)) for agent in agents])
        for step in range(int(lengths.max())):
            alive = np.flatnonzero(lengths > step)
            memory[alive] = decide(packed.offset[some[alive]].astype(np.int64) + step, memory[alive]).memory
        for agent, ended, kept in zip(agents, packed.ended[some].tolist(), memory, strict=True):
            if not ended:
                memories[agent] = kept
