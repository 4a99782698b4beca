"""Samples drawn from a replay.

Shape legend: L sequence length, n sequences, b = n * L rows, H memory size, O an observation's own shape.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trajtrainer.core.columns import NEXT_OBSERVATIONS, Columns, sensor_name
from trajtrainer.core.steps import BoolArray, ObservationArray
from trajtrainer.data.trajectory import PackedSteps, offsets


@dataclass(frozen=True, slots=True)
class Sample:
    """Steps with what followed them: n sequences of L rows (L is 1 without a memory), copied out of the ring.

    A sequence that is shorter than L, because its trajectory ended, repeats its last step.

    Attributes:
        rows: the replay's columns, and ``next_obs`` and ``next_mask``: what the agent saw after the step, and what it
            was not allowed to do then; b rows.
        sequences: ``memory`` of the actor before each sequence and ``critic_memory`` of the critic, f32 [n, H].
        real: bool [b], False in the repetitions; None when there are none.
        sequence_length: L.
    """

    rows: Columns[NDArray[Any]]
    sequences: Columns[NDArray[Any]]
    real: BoolArray | None
    sequence_length: int

    def __len__(self) -> int:
        """Return b."""
        return len(self.rows)

    @property
    def obs(self) -> tuple[ObservationArray, ...]:
        """Return the observations per sensor, f32 or u8 [b, *O]."""
        return self.rows.obs

    @property
    def next_obs(self) -> tuple[ObservationArray, ...]:
        """Return per sensor what the agent saw after the step, f32 or u8 [b, *O]."""
        return self.rows.sensors(NEXT_OBSERVATIONS)

    def packed(self) -> PackedSteps:
        """Return the same without repetitions, every sequence as a trajectory: what reward signals evaluate.

        Columns that the ring does not keep (log-probabilities, memories within sequences, ...) are missing.
        """
        rows: Any = slice(None) if self.real is None else np.flatnonzero(self.real)
        length = self.sequence_length
        count = len(self) // length
        full = np.full(count, length, np.int32)
        lengths = full if self.real is None else self.real.reshape(count, length).sum(1, dtype=np.int32)
        offset = offsets(lengths)
        last: Any = slice(None) if length == 1 else offset[1:] - 1
        steps = self.rows.map(lambda column: column[rows])
        done = steps["terminated"] | steps["interrupted"]
        return PackedSteps(
            steps=steps.with_columns({"done": done}),
            bootstrap=Columns({sensor_name(i): seen[rows][last] for i, seen in enumerate(self.next_obs)}),
            offset=offset,
            terminated=steps["terminated"][last],
            ended=done[last],
            agent=np.zeros(count, np.int64),
        )
