"""Determines when summaries and checkpoints are due."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from trajtrainer.core.steps import IntArray


class Boundary(NamedTuple):
    """A position between trajectories where a summary or checkpoint is due.

    Attributes:
        trajectory: index of the first trajectory that is counted after the summary or checkpoint.
        summary: the step that labels the summary; None if no summary is due.
        checkpoint: True if a checkpoint is due. Its step is the trainer's step at that position.
    """

    trajectory: int
    summary: int | None
    checkpoint: bool


def boundaries(step: int, lengths: IntArray, summary_freq: int, checkpoint_interval: int) -> list[Boundary]:
    """Return the boundaries that a trainer at ``step`` crosses while it counts trajectories of these lengths.

    As in ML-Agents (docs/explanation/mlagents-behavior.md#trajectories), a summary or checkpoint is due before the
    trajectory that would reach the next multiple of its interval. A summary is labeled with that multiple, even if the
    trajectory skips further multiples. Nothing is due before the first trajectory of a run.

    Args:
        step: the trainer's current step.
        lengths: integers [S], the lengths of the trajectories in the order in which they are counted.
        summary_freq: steps between summaries.
        checkpoint_interval: steps between checkpoints.
    """
    after = step + int(lengths.sum())
    if step // summary_freq == after // summary_freq and step // checkpoint_interval == after // checkpoint_interval:
        return []
    ends = step + np.cumsum(lengths, dtype=np.int64)
    begins = ends - lengths
    summary = (begins // summary_freq != ends // summary_freq) & (begins > 0)
    checkpoint = (begins // checkpoint_interval != ends // checkpoint_interval) & (begins > 0)
    return [
        Boundary(
            trajectory=int(i),
            summary=int((begins[i] // summary_freq + 1) * summary_freq) if summary[i] else None,
            checkpoint=bool(checkpoint[i]),
        )
        for i in np.flatnonzero(summary | checkpoint)
    ]
