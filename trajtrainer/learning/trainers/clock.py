"""The step of a trainer, and when summaries, checkpoints and the end are due."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from trajtrainer.core.numeric import count_in
from trajtrainer.core.steps import IntArray, LongArray
from trajtrainer.settings.trainer import TrainerSettings


class Boundary(NamedTuple):
    """A summary or checkpoint is due before a trajectory of the drain.

    Attributes:
        trajectory: index of the first trajectory that is counted after the summary or checkpoint.
        summary: the step that labels the summary, or None if none is due.
        checkpoint: whether a checkpoint is due. Its step is the trainer's at that moment.
    """

    trajectory: int
    summary: int | None
    checkpoint: bool


def boundaries(step: int, lengths: IntArray, summary_freq: int, checkpoint_interval: int) -> list[Boundary]:
    """Boundaries that a trainer at ``step`` crosses as it counts trajectories of these lengths.

    As in ML-Agents (docs/explanation/mlagents-behavior.md#trajectories), one is due before the trajectory that would
    reach the next multiple of its interval. That multiple is the label, even if the trajectory skips more multiples.
    Nothing is due before the first trajectory of a run.

    Args:
        step: of the trainer so far.
        lengths: whole numbers [S], in the order in which they are counted.
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


class Clock:
    """Counts agent steps, and knows when summaries, checkpoints and the end are due.

    Args:
        settings: only ``summary_freq``, ``checkpoint_interval`` and ``max_steps`` matter.
        training: False to count episodes only (inference).

    Attributes:
        step: agent steps counted so far. Other threads read it.
        first_step: the step at which this process started.
    """

    def __init__(self, settings: TrainerSettings, *, training: bool) -> None:
        self.step = 0
        self._settings = settings
        self._training = training
        self.first_step = 0
        self._summarized = 0
        self._has_ended = False

    def end(self) -> None:
        """End the training at the current step, as if ``max_steps`` were passed."""
        self._has_ended = True

    @property
    def should_still_train(self) -> bool:
        """Whether this is training, ``end`` was not called, and ``max_steps`` are not passed."""
        return self._training and not self._has_ended and self.step <= self._settings.max_steps

    @property
    def last_summary(self) -> int:
        """The label of the last summary; 0 before the first."""
        return self._summarized

    def has_enough(self, num_put: int) -> bool:
        """Whether training has ended, or will once the ``num_put`` steps that arrived in this process are counted."""
        return self._training and (self._has_ended or self.collected(num_put) > self._settings.max_steps)

    def collected(self, num_put: int) -> int:
        """The step once the ``num_put`` steps that arrived in this process are counted."""
        return self.first_step + num_put

    def steps_left(self) -> int:
        """Steps until the next summary, checkpoint or the end; 0 or less after the end."""
        settings, step = self._settings, self.step
        summary, checkpoint = settings.summary_freq, settings.checkpoint_interval
        return min(summary - step % summary, checkpoint - step % checkpoint, settings.max_steps + 1 - step)

    def boundaries(self, lengths: IntArray) -> list[Boundary]:
        """Boundaries that counting trajectories of these lengths will cross.

        Summaries that the resumed run already wrote are left out: it may have written them after its last checkpoint.
        """
        settings = self._settings
        found = boundaries(self.step, lengths, settings.summary_freq, settings.checkpoint_interval)
        return [one._replace(summary=None) if (one.summary or 0) <= self._summarized else one for one in found]

    def count(self, ends: LongArray) -> int:
        """Count trajectories.

        Args:
            ends: where each ends, in steps from here, i64 [S].

        Returns:
            How many of them to learn from: those that end within ``max_steps``.
        """
        ends = self.step + ends
        self.step = int(ends[-1])
        return 0 if self._has_ended else int(np.searchsorted(ends, self._settings.max_steps, side="right"))

    def summarize(self, step: int) -> None:
        """Note that the summary of ``step`` is being written."""
        self._summarized = step

    def state(self) -> dict[str, int]:
        """Everything that a checkpoint keeps besides the step."""
        return {"summarized": self._summarized}

    def restore(self, step: int, state: Mapping[str, Any]) -> None:
        """Continue at ``step`` with what ``state`` returned, of which anything may be missing."""
        self.step = self.first_step = step
        self._summarized = count_in(state.get("summarized", 0))
