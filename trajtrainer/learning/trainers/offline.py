"""The learning side of a behavior that learns from a data set: gradient steps, statistics, checkpoints and policies."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from torch import Tensor

from trajtrainer.core.queues import PolicyQueue
from trajtrainer.core.stats import StatsReporter
from trajtrainer.experience.trajectory import PackedSteps
from trajtrainer.learning.algos.algorithm import LearningContext
from trajtrainer.learning.trainers.factory import create_algorithm
from trajtrainer.learning.trainers.trainer import BehaviorTrainer, PolicyPublisher


class OfflineTrainer(BehaviorTrainer):
    """Trains an algorithm on a data set. A step is a gradient step, and training ends at ``max_steps``."""

    def give(self, dataset: PackedSteps) -> None:
        """Pass the data set to the algorithm.

        Raises:
            SettingsError: all steps are held out for validation, so there are none left to learn from.
        """
        signals = self.algorithm.signals
        self.algorithm.add(dataset, np.stack([one.evaluate(dataset) * np.float32(one.strength) for one in signals]))

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

    def advance(self) -> None:
        """Make gradient steps, but not beyond the next summary, checkpoint or evaluation, and publish the policy."""
        if not self.should_still_train:
            return
        self._update(lambda _: None)
        before, self.step, settings = self.step, self.algorithm.gradient_steps, self.context.settings
        if self.step == before:  # The run is about to end.
            return
        self.publisher.publish_next()
        # Do not write a summary again after the run was resumed.
        if self.step % settings.summary_freq == 0 and self.step > self.last_summary:
            self.reporter.set("Step", float(self.step))
            self._write_summary(self.step)
        if self.step % settings.checkpoint_interval == 0:
            self._write_checkpoint()


def create_offline_trainer(
    context: LearningContext,
    dataset: PackedSteps,
    policies: PolicyQueue[Tensor],
    reporter: StatsReporter,
    checkpoint: Callable[[BehaviorTrainer], None],
) -> OfflineTrainer:
    """Create a trainer at step 0, and pass the data set to its algorithm.

    Raises:
        UnsupportedError: a sensor or the action space is not supported.
        SettingsError: all steps are held out for validation, so there are none left to learn from.
    """
    algorithm = create_algorithm(context)
    publisher = PolicyPublisher(context.behavior, algorithm.actor, policies)
    trainer = OfflineTrainer(context, None, algorithm, publisher, reporter, checkpoint)
    trainer.give(dataset)
    return trainer
