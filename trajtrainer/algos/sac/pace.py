"""The number of gradient steps that an off-policy trainer makes per step of experience."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any


class Pace:
    """One gradient step per ``steps_per_update`` agent steps after the first ``first_step`` ones, on average.

    Counts as ML-Agents does (docs/mlagents-behavior.md#pace): while ``(step - first_step) / count > steps_per_update``
    one more is due, where ``count`` begins at 1. What is due may come in bursts, as experience does; it adds up
    whatever the drains.

    Attributes:
        count: 1 and the gradient steps made so far.
    """

    def __init__(self, steps_per_update: float, first_step: int) -> None:
        self._steps_per_update = steps_per_update
        self._first_step = first_step
        self.count = 1

    def due(self, step: int) -> int:
        """Return the gradient steps to be made by trainer step ``step``."""
        steps = step - self._first_step
        # Divisions decide, not this estimate: it may be off by one by rounding.
        due = max(0, math.ceil(steps / self._steps_per_update) - self.count)
        while steps / (self.count + due) > self._steps_per_update:
            due += 1
        while due and steps / (self.count + due - 1) <= self._steps_per_update:
            due -= 1
        return due

    def made(self, count: int) -> None:
        """Tell that so many were made."""
        self.count += count

    def state(self) -> dict[str, float]:
        """Return plain data for a checkpoint."""
        return {"count": self.count, "steps_per_update": self._steps_per_update, "first_step": self._first_step}

    def load(self, state: Mapping[str, Any] | None, step: int) -> None:
        """Go on where ``state`` was taken.

        Without one (a checkpoint of ML-Agents), or if the settings have changed since, all that was due until ``step``
        counts as made.
        """
        if state is not None and self.state() == {**state, "count": self.count}:
            self.count = int(state["count"])
        else:
            self.count = max(1, int((step - self._first_step) / self._steps_per_update))
