"""The step of a trainer, and what is due at which step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from trajtrainer.core.steps import IntArray, LongArray
from trajtrainer.settings.trainer import TrainerSettings


class Boundary(NamedTuple):
    """Something is due ahead of trajectory ``trajectory`` of the drain.

    Attributes:
        trajectory: index; it is the first one that is counted after the summary or checkpoint.
        summary: the step that labels the summary, or None if none is due.
        checkpoint: whether a checkpoint is due. Its step is that of the trainer then.
    """

    trajectory: int
    summary: int | None
    checkpoint: bool


def boundaries(step: int, lengths: IntArray, summary_freq: int, checkpoint_interval: int) -> list[Boundary]:
    """Boundaries that a trainer at ``step`` meets while it counts trajectories of these lengths.

    See docs/mlagents-behavior.md#trajectories.

    One is due ahead of the trajectory that would reach the next multiple of its interval; the label is that multiple,
    however many more the trajectory skips. Nothing is ever due ahead of the first trajectory of a run.

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
    """Counts agent steps, and knows what is due at which.

    Attributes:
        step: agent steps counted so far. Read by other threads.
        first_step: where this process began.
    """

    def __init__(self, settings: TrainerSettings, *, training: bool) -> None:
        """Begin at step 0.

        Args:
            settings: of these ``summary_freq``, ``checkpoint_interval`` and ``max_steps`` count.
            training: False to count episodes only (inference).
        """
        self.step = 0
        self._settings = settings
        self._training = training
        self.first_step = 0
        self._summarized = 0
        self._has_ended = False

    def end(self) -> None:
        """End the training at the step where it is, as if ``max_steps`` were passed."""
        self._has_ended = True

    @property
    def should_still_train(self) -> bool:
        """Whether there is training, and neither ``end`` was called nor ``max_steps`` are passed."""
        return self._training and not self._has_ended and self.step <= self._settings.max_steps

    @property
    def last_summary(self) -> int:
        """The label of the last summary; 0 before the first."""
        return self._summarized

    def has_enough(self, num_put: int) -> bool:
        """Whether training has ended, or has with all the steps that came, counted yet or not."""
        return self._training and (self._has_ended or self.collected(num_put) > self._settings.max_steps)

    def collected(self, num_put: int) -> int:
        """The step with all the steps that came in this process, counted yet or not."""
        return self.first_step + num_put

    def steps_left(self) -> int:
        """The fewest steps that lead to a summary, a checkpoint or the end; 0 or less beyond the end."""
        settings, step = self._settings, self.step
        summary, checkpoint = settings.summary_freq, settings.checkpoint_interval
        return min(summary - step % summary, checkpoint - step % checkpoint, settings.max_steps + 1 - step)

    def boundaries(self, lengths: IntArray) -> list[Boundary]:
        """What is due while trajectories of these lengths are counted.

        Summaries that were written by the run that this one resumes are left out: it may have been killed before the
        steps that reach their labels.
        """
        settings = self._settings
        found = boundaries(self.step, lengths, settings.summary_freq, settings.checkpoint_interval)
        return [one._replace(summary=None) if (one.summary or 0) <= self._summarized else one for one in found]

    def count(self, ends: LongArray) -> int:
        """Count trajectories.

        Args:
            ends: where each ends, in steps from here, i64 [S].

        Returns:
            How many of them are to be trained with: those that end within ``max_steps``.
        """
        ends = self.step + ends
        self.step = int(ends[-1])
        return 0 if self._has_ended else int(np.searchsorted(ends, self._settings.max_steps, side="right"))

    def summarize(self, step: int) -> None:
        """Note that the summary of ``step`` is written."""
        self._summarized = step

    def state(self) -> dict[str, int]:
        """What a checkpoint keeps beside the step."""
        return {"summarized": self._summarized}

    def restore(self, step: int, state: Mapping[str, Any]) -> None:
        """Go on at ``step``, with what ``state`` gave, if it is there."""
        self.step = self.first_step = step
        self._summarized = int(state.get("summarized", 0))
