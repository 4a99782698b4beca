"""Trainers, which turn a behavior's experience into policies, statistics, summaries and checkpoints.

Shape legend: V reward signals, B packed steps.
"""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor

from trajtrainer.core.numeric import count_in
from trajtrainer.core.queues import EpisodesAborted, LessonBegan, PolicyQueue, PolicyUpdate
from trajtrainer.core.stats import StatsReporter
from trajtrainer.core.steps import FloatArray
from trajtrainer.experience.source import ExperienceSource
from trajtrainer.experience.trajectory import PackedSteps
from trajtrainer.learning.algos.acting import PolicyDivergedError
from trajtrainer.learning.algos.algorithm import Algorithm, LearningContext, Statistics
from trajtrainer.learning.nn.actor import Actor
from trajtrainer.learning.nn.normalization import Normalizer
from trajtrainer.learning.rewards.signal import MAX_REWARD, ExtrinsicReward
from trajtrainer.learning.trainers.boundaries import boundaries
from trajtrainer.learning.trainers.episodes import EpisodeRecord

logger = logging.getLogger(__name__)


@dataclass(eq=False)
class BehaviorTrainer(ABC):
    """The trainer of one behavior in a run: :class:`Trainer` or ``OfflineTrainer``.

    Attributes:
        context: the behavior to learn.
        source: the source of experience; None for a data set.
        algorithm: the algorithm that learns.
        publisher: publishes the policy.
        reporter: receives the behavior's statistics.
        checkpoint: called with the trainer whenever ``checkpoint_interval`` steps have passed.
        step: number of steps so far, in the unit of ``max_steps`` and all intervals in the settings.
        first_step: the step at which this process started; not 0 if it resumed a run.
        last_summary: the label of the last summary; 0 before the first summary.
    """

    context: LearningContext
    source: ExperienceSource | None
    algorithm: Algorithm
    publisher: PolicyPublisher
    reporter: StatsReporter
    checkpoint: Callable[[BehaviorTrainer], None]
    step: int = field(default=0, init=False)
    first_step: int = field(default=0, init=False)
    last_summary: int = field(default=0, init=False)
    _has_ended: bool = field(default=False, init=False)

    @property
    def actor(self) -> Actor:
        """The network to export. Read it only between calls of ``advance``, because training changes it."""
        return self.algorithm.actor

    @property
    @abstractmethod
    def reached(self) -> int:
        """The step of the current model. It may include experience that has not been read yet."""

    @property
    @abstractmethod
    def should_still_train(self) -> bool:
        """True if training continues at the current step."""

    @property
    @abstractmethod
    def has_enough(self) -> bool:
        """True if training can be completed without any more experience."""

    @property
    @abstractmethod
    def learns_alone(self) -> bool:
        """True if the trainer can learn now without new experience."""

    @abstractmethod
    def is_due(self) -> bool:
        """Return whether ``advance`` should be called now."""

    @abstractmethod
    def advance(self) -> object:
        """Do everything that is due, without waiting."""

    def end(self) -> None:
        """End training at the current step, as if ``max_steps`` had been reached."""
        self._has_ended = True

    def _update(self, show_progress: Callable[[float], None]) -> None:
        with self.context.timers("_update_policy"):
            begin = time.perf_counter()
            statistics = self.algorithm.update(self.step, show_progress)
            check_finite(self.context.behavior, self.step, statistics, self.algorithm.may_be_nan)
            self._report(statistics)
            self.reporter.add("Perf/Update Seconds", time.perf_counter() - begin)

    def _report(self, statistics: Statistics) -> None:
        for tag, values in statistics.items():
            self.reporter.add_many(tag, values)

    def _write_summary(self, label: int) -> None:
        self.last_summary = label
        self.reporter.set("Is Training", float(self.should_still_train))
        self.reporter.write(label)

    def _write_checkpoint(self) -> None:
        # After training, the weights no longer change, so further checkpoints would only displace older ones.
        if self.should_still_train:
            with self.context.timers("RLTrainer._checkpoint"):
                self.checkpoint(self)

    def state(self) -> dict[str, Any]:
        """Return the state to save in a checkpoint besides the step and the algorithm."""
        return {"version": self.publisher.version, "summarized": self.last_summary}

    def restore(self, step: int | None, state: Mapping[str, Any]) -> None:
        """Continue at ``step`` from ``state``, or start a new run if ``step`` is None; then publish the policy."""
        self.publisher.version = 1  # Version 0 is for untrained policies.
        if step is not None:
            self.step = self.first_step = step
            self.publisher.version = count_in(state.get("version", 1))
            self.last_summary = count_in(state.get("summarized", 0))
        self.publisher.publish()


@dataclass(eq=False)
class Trainer(BehaviorTrainer):
    """Drains the source of experience, computes rewards, passes steps to the algorithm, and publishes policies.

    ``advance`` may run in a different thread than acting. The acting side reads ``step`` and ``episodes``, whose values
    are always consistent, because they are only replaced or appended to. Apart from that, it only calls ``end``.

    Attributes:
        source: the source of experience.
        episodes: the record of finished episodes.
    """

    source: ExperienceSource
    episodes: EpisodeRecord
    _group_rewards_seen: bool = field(default=False, init=False)
    _large_reward_seen: bool = field(default=False, init=False)

    @property
    def should_still_train(self) -> bool:
        settings = self.context.settings
        return self.context.training and not self._has_ended and self.step <= settings.max_steps

    @property
    def has_enough(self) -> bool:
        """True if training will end with the steps that are waiting or being added."""
        return self.context.training and (self._has_ended or self.collected > self.context.settings.max_steps)

    @property
    def collected(self) -> int:
        """The step after all waiting steps have been added."""
        return self.first_step + self.source.num_put

    @property
    def reached(self) -> int:
        """The step of the current model, for evaluations.

        Reading experience earlier for an evaluation would change what is learned. In runs that are reproducible bit for
        bit, waiting steps therefore count as if they had been read. In other runs, the trainer reads them before each
        evaluation.
        """
        return self.step if self.source.is_concurrent else self.collected

    def steps_to_evaluation(self) -> int | None:
        """Return the number of steps until the next evaluation; None without evaluations."""
        interval = self.context.evaluation_interval
        return None if interval is None else interval - self.reached % interval

    def left(self) -> tuple[int, int]:
        """Return how many more rows, or how many more steps, must arrive before ``advance`` is due.

        0 or less means that it is due now. Adding one short trajectory costs as much as adding many, so an algorithm
        may wait for several steps unless an event is due earlier.
        """
        (rows, steps), source, settings = self.algorithm.drain_threshold, self.source, self.context.settings
        to_events = (
            interval - self.step % interval for interval in (settings.summary_freq, settings.checkpoint_interval)
        )
        steps = min(steps, settings.max_steps + 1 - self.step, *to_events)
        if source.is_concurrent and (to_evaluation := self.steps_to_evaluation()) is not None:
            steps = min(steps, to_evaluation)
        return rows - source.num_rows, steps - source.num_steps

    @property
    def learns_alone(self) -> bool:
        """True if an update can run while the environments are busy."""
        return self.should_still_train and self._may_update and self.algorithm.uses_spare_time(self.step)

    @property
    def _may_update(self) -> bool:
        return self.context.training and not self.context.is_stopping()

    def is_due(self) -> bool:
        """Return whether ``advance`` should be called now instead of waiting for more experience.

        Always True in inference, where the number of episodes may end the run, and while acting waits for the trainer.
        A caller that relies on this must call ``advance`` once more at the end.
        """
        return not self.context.training or self.source.is_needed or min(self.left()) <= 0 or self.learns_alone

    def advance(self) -> bool:
        """Add all waiting experience, then update and publish the policy if an update is due. Does not wait.

        When the run is about to end, no new update starts, and a running update stops early.

        Returns:
            True if anything was waiting or the policy was updated.
        """
        trained_before, has_items = self.should_still_train, len(self.source) > 0
        try:
            changed = self._drain() if has_items else False
            # If acting continues during updates, a single drain may contain thousands of steps, of which only the last
            # ones exceed max_steps.
            trains = self.should_still_train or (trained_before and self.source.is_concurrent)
            updates = trains and self._may_update and self.algorithm.is_ready(self.step)
            if updates:
                self._update(self._share_progress)
                self.episodes.returns_since_update.clear()
                self.publisher.publish_next()
            elif changed:
                self.publisher.publish_normalizers()
        finally:
            self.source.settle()
        return has_items or updates

    def _drain(self) -> bool:
        """Add all waiting items in order. Returns True if the algorithm received any steps."""
        given = False
        with self.context.timers("process_trajectory"):
            reserve = self.algorithm.reserve if self.should_still_train else lambda _: None
            for item in self.source.drain_into(reserve, hold=self.algorithm.holds_rows):
                if isinstance(item, EpisodesAborted):
                    self.episodes.reset_worker(item.worker)
                    self.algorithm.reset_worker(item.worker)
                    for signal in self.algorithm.signals:
                        signal.reset_worker(item.worker)
                elif isinstance(item, LessonBegan):
                    self.episodes.begin_lesson(item.number)
                elif isinstance(item, PackedSteps):
                    given |= self._count_by_boundaries(item)
        return given

    def _count_by_boundaries(self, packed: PackedSteps) -> bool:
        given, start, settings = False, 0, self.context.settings
        for boundary in boundaries(self.step, packed.lengths, settings.summary_freq, settings.checkpoint_interval):
            if boundary.trajectory > start:
                given |= self._count(packed.trajectories(start, boundary.trajectory))
            start = boundary.trajectory
            # A resumed run may already have written this summary, because its label can be ahead of the checkpoint's
            # step.
            if boundary.summary is not None and boundary.summary > self.last_summary:
                self.episodes.note_best()
                self.episodes.summarize(boundary.summary)
                self._write_summary(boundary.summary)
            if boundary.checkpoint:
                self._write_checkpoint()
        return self._count(packed.trajectories(start, packed.num_trajectories) if start else packed) or given

    def _count(self, packed: PackedSteps) -> bool:
        """Count the trajectories between two boundaries, and pass those within ``max_steps`` to the algorithm."""
        ends = self.step + packed.offset[1:].astype(np.int64)
        self.step = int(ends[-1])
        kept = 0 if self._has_ended else int(np.searchsorted(ends, self.context.settings.max_steps, side="right"))
        self.reporter.set("Step", float(self.step))
        self._warn_of_group_rewards(packed)
        training = self.context.training
        # In inference, the networks of reward signals are not used, so only the environment's reward counts.
        signals = [s for s in self.algorithm.signals if training or isinstance(s, ExtrinsicReward)]
        rewards = np.empty((len(signals), len(packed)), np.float32)
        with np.errstate(over="ignore"):  # infinite rewards are clipped below
            for row, signal in zip(rewards, signals, strict=True):
                np.multiply(signal.collect(packed), np.float32(signal.strength), out=row)
            # If the sum of squares is below MAX_REWARD^2, no reward exceeds MAX_REWARD. This needs no temporary array.
            if not np.vdot(rewards, rewards) < MAX_REWARD**2:
                self._limit(rewards, [signal.name for signal in signals])
        self.episodes.add(packed, [signal.title for signal in signals], rewards)
        if not (training and kept):
            return False
        if kept < packed.num_trajectories:
            packed = packed.trajectories(0, kept)
        recent, steps = self.source.recent(packed, self.publisher.version, self.reporter)
        if recent is None:
            return False
        self._report(self.algorithm.add(recent, rewards[:, : len(packed)][:, steps]))
        return True

    def _limit(self, rewards: FloatArray, names: Sequence[str]) -> None:
        """Clip rewards [V, B] in place, and warn about the largest one once."""
        signal, step = np.unravel_index(np.abs(rewards).argmax(), rewards.shape)
        largest = float(rewards[signal, step])
        np.clip(rewards, -MAX_REWARD, MAX_REWARD, out=rewards)
        if abs(largest) > MAX_REWARD and not self._large_reward_seen:
            self._large_reward_seen = True
            logger.warning(
                "Behavior %r has a reward of %.3g (signal %s, times strength). float32 cannot hold the sums and "
                "squares of such rewards, so they are limited to %g. Look for a division by nearly 0 in the reward, "
                "and keep rewards near 1.",
                self.context.behavior,
                largest,
                names[int(signal)],
                MAX_REWARD,
            )

    def _share_progress(self, part: float) -> None:
        self.source.share_progress(part, self.publisher.publish_next)

    def _warn_of_group_rewards(self, packed: PackedSteps) -> None:
        if self.algorithm.counts_group_rewards or self._group_rewards_seen:
            return
        if packed["group_reward"].any():
            self._group_rewards_seen = True
            logger.warning(
                "Behavior %r receives group rewards, which trainer_type %s treats as each agent's own rewards. For "
                "groups, use trainer_type: poca.",
                self.context.behavior,
                self.context.settings.trainer_type,
            )

    def state(self) -> dict[str, Any]:
        return {**super().state(), "episodes": self.episodes.state()}

    def restore(self, step: int | None, state: Mapping[str, Any]) -> None:
        if step is not None:
            self.episodes.restore(state.get("episodes", {}))
        super().restore(step, state)


class PolicyPublisher:
    """Puts copies of an actor's weights into the policy queue.

    Args:
        policy: the policy's name in the queue.
        actor: the network that acts.
        policies: the queue to the acting side.

    Attributes:
        version: version of the policy, which increases with each ``publish_next``.
    """

    def __init__(self, policy: str, actor: Actor, policies: PolicyQueue[Tensor]) -> None:
        self.version = 0
        self._policy = policy
        self._policies = policies
        # The entries share memory with the weights, which optimizers and normalizers change in place.
        self._all: dict[str, Tensor] = actor.state_dict()
        self._normalizers = {
            f"{name}.{entry}": tensor
            for name, module in actor.named_modules()
            if isinstance(module, Normalizer)
            for entry, tensor in module.named_buffers()
        }

    def publish(self) -> None:
        """Publish all current weights without changing the version."""
        self._put(self._all, partial=False)

    def publish_next(self) -> None:
        """Publish all weights as the next version."""
        self.version += 1
        self.publish()

    def publish_normalizers(self) -> None:
        """Publish the normalizers, if there are any. They change with every trajectory."""
        if self._normalizers:
            self._put(self._normalizers, partial=True)

    def _put(self, entries: dict[str, Tensor], *, partial: bool) -> None:
        weights = {name: tensor.clone() for name, tensor in entries.items()}
        self._policies.put(self._policy, PolicyUpdate(self.version, weights, partial=partial))


def check_finite(behavior: str, step: int, statistics: Statistics, may_be_nan: Container[str]) -> None:
    """Check the statistics of an update at ``step``, except for the tags in ``may_be_nan``.

    Raises:
        PolicyDivergedError: the mean of a statistic is not finite.
    """
    means = {tag: values.mean() for tag, values in statistics.items() if len(values) and tag not in may_be_nan}
    diverged = [tag for tag, mean in means.items() if not np.isfinite(mean)]
    if diverged:
        raise PolicyDivergedError(
            f"Behavior {behavior!r}: {', '.join(diverged)} of the update at step {step} is not a finite number, so the "
            "weights have diverged. Lower learning_rate, or look for extreme rewards or observations (normalize: true "
            "limits the latter), and resume from an earlier checkpoint."
        )
