"""The learning side of a behavior that learns from a data set: gradient steps, statistics, checkpoints and policies."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from trajtrainer.core.numeric import count_in
from trajtrainer.core.stats import StatsReporter
from trajtrainer.experience.trajectory import PackedSteps
from trajtrainer.learning.algos.algorithm import Algorithm, LearningContext
from trajtrainer.learning.nn.actor import Actor
from trajtrainer.learning.trainers.trainer import PolicyPublisher, check_finite


@dataclass(eq=False)
class OfflineTrainer:
    """Lets an algorithm learn from a data set. A step is a gradient step, and training ends exactly at ``max_steps``.

    Attributes:
        context: of the behavior.
        algorithm: learns.
        publisher: of its policy.
        reporter: of the behavior's statistics.
        checkpoint: called with the trainer whenever ``checkpoint_interval`` steps have passed.
    """

    context: LearningContext
    algorithm: Algorithm
    publisher: PolicyPublisher
    reporter: StatsReporter
    checkpoint: Callable[[OfflineTrainer], None]
    step: int = field(default=0, init=False)
    first_step: int = field(default=0, init=False)
    last_summary: int = field(default=0, init=False)
    _has_ended: bool = field(default=False, init=False)

    source = None

    def give(self, dataset: PackedSteps) -> None:
        """Pass the data set to the algorithm.

        Raises:
            SettingsError: after holding out steps, none are left to learn from.
        """
        signals = self.algorithm.signals
        self.algorithm.add(dataset, np.stack([one.evaluate(dataset) * np.float32(one.strength) for one in signals]))

    @property
    def actor(self) -> Actor:
        return self.algorithm.actor

    @property
    def reached(self) -> int:
        return self.step

    @property
    def should_still_train(self) -> bool:
        return not self._has_ended and self.step < self.context.settings.max_steps

    @property
    def has_enough(self) -> bool:
        return not self.should_still_train

    @property
    def learns_alone(self) -> bool:
        return True

    def is_due(self) -> bool:
        return self.should_still_train

    def end(self) -> None:
        self._has_ended = True

    def advance(self) -> None:
        """Make gradient steps, but none beyond the next summary, checkpoint or evaluation, and publish the policy."""
        if not self.should_still_train:
            return
        with self.context.timers("_update_policy"):
            begin = time.perf_counter()
            statistics = self.algorithm.update(self.step, lambda _: None)
            check_finite(self.context.behavior, self.step, statistics, self.algorithm.may_be_nan)
            for tag, values in statistics.items():
                self.reporter.add_many(tag, values)
            self.reporter.add("Perf/Update Seconds", time.perf_counter() - begin)
        before, self.step, settings = self.step, self.algorithm.gradient_steps, self.context.settings
        if self.step == before:  # The run is about to end.
            return
        self.publisher.publish_next()
        # A killed run may have written summaries after its last checkpoint.
        if self.step % settings.summary_freq == 0 and self.step > self.last_summary:
            self.last_summary = self.step
            self.reporter.set("Step", float(self.step))
            self.reporter.set("Is Training", float(self.should_still_train))
            self.reporter.write(self.step)
        if self.step % settings.checkpoint_interval == 0 and self.should_still_train:
            with self.context.timers("RLTrainer._checkpoint"):
                self.checkpoint(self)

    def state(self) -> dict[str, Any]:
        return {"version": self.publisher.version, "summarized": self.last_summary}

    def restore(self, step: int | None, state: Mapping[str, Any]) -> None:
        self.publisher.version = 1  # Version 0 is for policies that have learned nothing.
        if step is not None:
            self.step = self.first_step = step
            self.publisher.version = count_in(state.get("version", 1))
            self.last_summary = count_in(state.get("summarized", 0))
        self.publisher.publish()
